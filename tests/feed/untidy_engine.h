// UntidyEngine: the cache of an inference engine, and everything strange that engines say about theirs. It
// knows what it really holds, so that a listener can be measured against it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "feed/batch_builder.h"

namespace ashlar::feed {

struct UntidyOptions {
  std::uint32_t ranks = 1;
  std::uint32_t groups = 1;         // the first is full attention, the others slide
  double full_reports = 0;          // of requests with a hit
  double lock_step = 0.2;           // of requests: a second one fills the same blocks behind the hit
  bool first_blocks_twice = false;  // also without a hit, and requests that ignore the cache
  double offload = 0.5;
  double out_of_order = 0.2;
  double clears = 0.01;
};

class UntidyEngine {
 public:
  static constexpr std::uint32_t kBlockSize = 4;

  UntidyEngine(std::uint64_t seed, const UntidyOptions& options)
      : random_(seed), options_(options), ranks_(options.ranks) {}

  // The next batch, and whether everything that happened has been said. The batch lives until the next call.
  const EngineBatch& step() {
    rank_number_ = static_cast<std::uint32_t>(random_.below(options_.ranks));
    Rank& rank = ranks_[rank_number_];
    builder_.emplace(rank_number_);
    for (const Said& said : rank.held_back) say(said);
    rank.held_back.clear();
    for (; rank.unsaid_clears > 0; --rank.unsaid_clears) builder_->cleared();
    const std::size_t turns = 1 + random_.below(3);
    for (std::size_t i = 0; i < turns; ++i) {
      evict(rank);
      request(rank, i + 1 == turns);
    }
    if (random_.chance(0.3)) evict_host(rank);
    if (random_.chance(0.1)) builder_->removed(BlockName(random_.next()));
    if (random_.chance(options_.clears)) {
      rank.device.clear();
      ++rank.unsaid_clears;
    }
    return builder_->batch();
  }
  bool quiet() const {
    for (const Rank& rank : ranks_)
      if (!rank.held_back.empty() || rank.unsaid_clears > 0) return false;
    return true;
  }
  std::set<PresenceBook::Key> contents() const {
    std::set<PresenceBook::Key> keys;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      for (const auto& [key, count] : ranks_[r].device)
        if (count > 0) keys.insert({r, key.first, 0, key.second});
      for (const auto& key : ranks_[r].host) keys.insert({r, key.first, 1, key.second});
    }
    return keys;
  }
  // The name of the block before it.
  std::optional<BlockName> parent_of(std::uint64_t name) const {
    const Block& block = blocks_.at(name);
    return block.position == 0 ? std::nullopt : std::optional(BlockName(block.parent));
  }
  // The chain hash that the name stands for, in group 0.
  tokens::SequenceHash hash_of(std::uint64_t name) const {
    std::vector<Token> text;
    const Block* block = &blocks_.at(name);
    const std::string salt = block->salt;
    std::vector<std::uint64_t> labels;
    for (;; block = &blocks_.at(block->parent)) {
      labels.push_back(block->label);
      if (block->position == 0) break;
    }
    for (auto label = labels.rbegin(); label != labels.rend(); ++label) append_tokens(*label, text);
    std::vector<tokens::BlockHashes> hashes(labels.size());
    const tokens::SequenceHasher hasher{tokens::Salt("", salt)};
    (void)hasher.hash_blocks(std::nullopt, text, kBlockSize, hashes).value();
    return hashes.back().sequence;
  }

 private:
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // group, name
  struct Block {
    std::uint64_t parent = 0;
    std::uint64_t label = 0;
    std::uint32_t position = 0;
    std::string salt;
  };
  struct Said {
    std::uint32_t group = 0;
    std::size_t first = 0;
    std::size_t end = 0;
    std::vector<std::uint64_t> names;  // of the whole sequence
    std::string medium = "GPU";
  };
  struct Rank {
    std::map<Key, std::uint32_t> device;
    std::set<Key> host;
    std::vector<Said> held_back;
    int unsaid_clears = 0;
  };

  static void append_tokens(std::uint64_t label, std::vector<Token>& out) {
    for (std::uint32_t i = 0; i < kBlockSize; ++i)
      out.emplace_back(static_cast<std::uint32_t>(label * 16 + i));
  }

  void say(const Said& said) {
    std::vector<BlockName> names;
    std::vector<Token> text;
    for (std::size_t i = said.first; i < said.end; ++i) {
      names.emplace_back(said.names[i]);
      append_tokens(blocks_.at(said.names[i]).label, text);
    }
    EngineEvent& event = builder_->stored(
        said.first == 0 ? std::nullopt : std::optional(BlockName(said.names[said.first - 1])), names, text,
        kBlockSize, said.medium == "GPU" ? "GPU" : "CPU");
    event.group = said.group;
    if (said.medium == "GPU" && said.group != 0) event.spec_kind = "sliding_window";
    const std::string& salt = blocks_.at(said.names[0]).salt;
    if (said.medium == "GPU" && said.first == 0 && !salt.empty()) builder_->key(0, salt);
  }

  std::vector<std::uint64_t> make_sequence() {
    const std::size_t length = 1 + random_.below(8);
    const std::string salt = random_.chance(0.2) ? "tenant-a" : "";
    std::vector<std::uint64_t> names;
    std::uint64_t parent = salt.empty() ? 17 : 18;
    for (std::size_t i = 0; i < length; ++i) {
      const std::uint64_t label = 1 + random_.below(3);
      const std::uint64_t name = Random(parent * 1'000'003 + label).next();
      blocks_[name] = {
          .parent = parent, .label = label, .position = static_cast<std::uint32_t>(i), .salt = salt};
      names.push_back(name);
      parent = name;
    }
    return names;
  }

  // The last request of a batch may be told in part by the next one.
  void request(Rank& rank, bool last) {
    const std::vector<std::uint64_t> names = make_sequence();
    std::size_t hit = 0;
    while (hit < names.size() && rank.device[{0, names[hit]}] > 0) ++hit;
    if (hit == names.size()) --hit;  // the last token is always computed
    if (hit == 0 && rank.device[{0, names[0]}] > 0 && !options_.first_blocks_twice) return;
    if (options_.first_blocks_twice && random_.chance(0.1)) hit = 0;
    if (hit > 0 && random_.chance(options_.full_reports)) say({.first = 0, .end = hit, .names = names});
    const bool early = random_.chance(options_.offload / 4);
    if (early) offload_names(rank, names, hit);
    const bool twice = (hit > 0 || options_.first_blocks_twice) && random_.chance(options_.lock_step);
    for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
      for (std::uint32_t group = 0; group < options_.groups; ++group) {
        for (std::size_t i = hit; i < names.size(); ++i) ++rank.device[{group, names[i]}];
        const std::size_t cut = hit + random_.below(names.size() - hit);
        if (cut > hit && random_.chance(options_.out_of_order)) {
          say({.group = group, .first = cut, .end = names.size(), .names = names});
          const Said front{.group = group, .first = hit, .end = cut, .names = names};
          if (last && random_.chance(0.5)) {
            rank.held_back.push_back(front);
          } else {
            say(front);
          }
        } else {
          say({.group = group, .first = hit, .end = names.size(), .names = names});
        }
      }
    }
    if (!early && random_.chance(options_.offload)) offload_names(rank, names, hit);
  }

  // With tokens or without; the order of an engine's tables, not of the sequence.
  void offload_names(Rank& rank, const std::vector<std::uint64_t>& names, std::size_t from) {
    std::vector<std::size_t> order;
    for (std::size_t i = from; i < names.size(); ++i) order.push_back(i);
    random_.shuffle(order);
    const bool with_tokens = random_.chance(0.5);
    for (const std::size_t i : order) {
      if (!rank.host.insert({0, names[i]}).second) continue;
      if (with_tokens) {
        say({.group = 0, .first = i, .end = i + 1, .names = names, .medium = "CPU"});
      } else {
        builder_->placeholder(BlockName(names[i]));
      }
    }
  }

  // Group 0 loses blocks from the end of chains, the others anywhere.
  void evict(Rank& rank) {
    std::vector<Key> present;
    for (const auto& [key, count] : rank.device)
      if (count > 0) present.push_back(key);
    if (present.size() < 30) return;
    random_.shuffle(present);
    std::size_t left = random_.below(12);
    for (const Key& key : present) {
      if (left == 0) return;
      if (key.first == 0 && has_children(rank, key)) continue;
      --rank.device[key];
      --left;
      builder_->removed(BlockName(key.second)).group = key.first;
    }
  }
  bool has_children(const Rank& rank, const Key& key) const {
    for (const auto& [other, count] : rank.device)
      if (count > 0 && other.first == key.first && blocks_.at(other.second).parent == key.second) return true;
    return false;
  }
  void evict_host(Rank& rank) {
    std::vector<BlockName> names;
    while (rank.host.size() > 15 && names.size() < 5) {
      auto at = rank.host.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random_.below(rank.host.size())));
      names.emplace_back(at->second);
      rank.host.erase(at);
    }
    if (names.empty()) return;
    if (random_.chance(0.2)) names.insert(names.begin(), BlockName(random_.next()));  // nobody knows it
    builder_->removed(names, "CPU");
  }

  Random random_;
  UntidyOptions options_;
  std::vector<Rank> ranks_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint32_t rank_number_ = 0;
  std::optional<BatchBuilder> builder_;
};

}  // namespace ashlar::feed
