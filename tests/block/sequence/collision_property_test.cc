// Random programs over prompts that collide on purpose, in every group shape, through every interface that
// finds blocks by tokens. A model knows which tokens the KV of every block was computed for: whatever is
// found is of the same tokens from the first on.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/testing/managers.h"
#include "support/block_fixture.h"
#include "support/colliding_tokens.h"
#include "support/until_seen.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using Request = RequestSequence<G1>;
using Small = Sequence<G1>;

// What the programs have met.
struct Seen {
  std::uint64_t collisions = 0;
  std::uint64_t evictions = 0;
  std::uint64_t request_hits = 0;
  std::uint64_t small_hits = 0;
  std::uint64_t block_hits = 0;
  std::uint64_t refound = 0;  // weak blocks found again
  bool all() const {
    return collisions != 0 && evictions != 0 && request_hits != 0 && small_hits != 0 && block_hits != 0 &&
           refound != 0;
  }
};

class Program {
 public:
  Program(std::uint64_t seed, Seen& seen)
      : random_(seed),
        seen_(seen),
        block_size_(random_.chance(0.5) ? 4 : 16),
        groups_(random_groups()),
        manager_(make()),
        sequences_(manager_, {.register_blocks = random_.chance(0.5) ? RegisterBlocks::kAtOnce
                                                                     : RegisterBlocks::kWhenComputed,
                              .reuse_last_token = random_.chance(0.3)}) {}

  // The first thing that went wrong; empty when nothing did.
  std::string run() {
    for (int step = 0; step < 300 && wrong_.empty(); ++step) {
      switch (random_.below(12)) {
        case 0:
        case 1:
        case 2:
          begin_request();
          break;
        case 3:
          if (Running* request = some(requests_)) preempt(*request);
          break;
        case 4:
          if (Running* request = some(requests_)) decode(*request);
          break;
        case 5:
          begin_small();
          break;
        case 6:
          match_blocks();
          break;
        case 7:
          pin();
          break;
        case 8:
          evict();
          break;
        case 9:
          upgrade();
          break;
        default:
          drop_one();
          break;
      }
      manager_.check_invariants();
    }
    seen_.collisions += manager_.counters().collisions;
    seen_.evictions += manager_.counters().evictions;
    return wrong_;
  }

 private:
  struct Running {
    Request request;
  };
  // What the KV in a block was computed for: a group of layers, and all tokens up to the block's end.
  struct Content {
    std::size_t group = 0;
    std::vector<Token> tokens;
    friend bool operator==(const Content&, const Content&) = default;
  };

  std::vector<CacheGroup> random_groups() {
    std::vector<CacheGroup> groups;
    const std::size_t count = random_.between<std::size_t>(1, 3);
    for (std::size_t i = 0; i < count; ++i) {
      const auto window = random_.between<std::uint32_t>(2, 3 * block_size_);
      groups.push_back(random_.chance(0.5) ? CacheGroup::sliding_window(window)
                                           : CacheGroup::full_attention());
    }
    return groups;
  }
  Manager make() {
    const std::vector<std::string> backends = eviction_names();
    ManagerOptions options = testing::manager_options(random_.between<std::uint32_t>(12, 60), block_size_,
                                                      backends[random_.below(backends.size())]);
    options.registry = testing::make_counting_registry();
    options.duplicates = random_.chance(0.5) ? DuplicatePolicy::kAllow : DuplicatePolicy::kReject;
    return testing::make_manager<G1>(options);
  }
  template <class T>
  T* some(std::vector<T>& all) {
    return all.empty() ? nullptr : &all[random_.below(all.size())];
  }

  // Few labels and two variants: most prompts have the names of another, and share a stretch of its tokens.
  std::vector<Token> some_prompt() {
    std::vector<Token> tokens;
    const std::size_t blocks = random_.between<std::size_t>(1, 5);
    for (std::size_t i = 0; i < blocks; ++i) {
      const auto label = static_cast<std::uint32_t>(random_.chance(0.9) ? i : random_.below(3));
      const auto more = testing::colliding_block(block_size_, label, random_.chance(0.3) ? 1 : 0);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    for (std::uint64_t rest = random_.between<std::uint32_t>(1, block_size_ - 1); rest != 0; --rest) {
      tokens.emplace_back(static_cast<std::uint32_t>(rest));
    }
    return tokens;
  }

  Content content(std::size_t group, std::span<const Token> tokens, std::size_t block) const {
    const auto prefix = tokens.first((block + 1) * block_size_);
    return {group, {prefix.begin(), prefix.end()}};
  }
  // The blocks [0, count) of a table are found, or computed: all that are there are of these tokens.
  void expect(const char* what, std::size_t group, std::span<const BlockId> table,
              std::span<const Token> tokens, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (table[i] == kNoBlock || !wrong_.empty()) continue;
      const auto held = memory_.find(table[i].value());
      if (held == memory_.end() || held->second != content(group, tokens, i)) {
        wrong_ = std::string(what) + " has other tokens in block " + std::to_string(i) + " of group " +
                 std::to_string(group);
      }
    }
  }
  // The KV of the full blocks [from, to) exists now.
  void compute(std::size_t group, std::span<const BlockId> table, std::span<const Token> tokens,
               std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      if (table[i] != kNoBlock) memory_[table[i].value()] = content(group, tokens, i);
    }
  }

  // ---- requests

  void expect_all(const Request& request, const char* what) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      expect(what, g, request.block_table(g), request.tokens(), request.computed_tokens() / block_size_);
    }
  }
  // Computes `tokens` tokens, with the token that the last chunk yields. False without room.
  bool step(Request& request, std::size_t tokens) {
    if (!request.schedule_prefill(tokens)) return false;
    const std::size_t from = request.computed_tokens() / block_size_;
    const std::size_t to = (request.computed_tokens() + tokens) / block_size_;
    for (std::size_t g = 0; g < groups_.size(); ++g)
      compute(g, request.block_table(g), request.tokens(), from, to);
    const bool last = tokens == request.tokens_to_compute();
    value_of(request.apply_prefill(last ? std::optional(Token(9)) : std::nullopt));
    expect_all(request, "a request after a step");
    return true;
  }
  void begin_request() {
    RequestOptions options;
    options.groups = groups_;
    Running running{value_of(Request::create(manager_, some_prompt(), std::move(options)))};
    const std::size_t found = value_of(running.request.match_prefix());
    seen_.request_hits += found != 0 ? 1 : 0;
    expect_all(running.request, "a match");
    while (running.request.tokens_to_compute() > 1) {
      if (!step(running.request, random_.below(running.request.tokens_to_compute()) + 1)) return;
      if (running.request.tokens().back() == Token(9)) break;
    }
    if (random_.chance(0.5)) requests_.push_back(std::move(running));
  }
  void preempt(Running& running) {
    if (!running.request.preempt()) return;
    if (random_.chance(0.5)) evict();
    value_of(running.request.resume());
    expect_all(running.request, "a resumed request");
  }
  void decode(Running& running) {
    if (random_.chance(0.2)) {
      if (auto forked = running.request.fork()) requests_.push_back({*std::move(forked)});
      return;
    }
    step(running.request, running.request.tokens_to_compute());
  }

  // ---- whole sequences

  void begin_small() {
    auto sequence = value_of(sequences_.make_sequence(some_prompt()));
    const auto found = sequences_.allocate(sequence);
    if (!found) return;
    seen_.small_hits += *found != 0 ? 1 : 0;
    const std::size_t full = sequence.size() / block_size_;
    expect("a sequence", 0, sequence.block_table(), sequence.tokens(), *found / block_size_);
    compute(0, sequence.block_table(), sequence.tokens(), *found / block_size_, full);
    value_of(sequences_.computed(sequence, sequence.size()));
    expect("a computed sequence", 0, sequence.block_table(), sequence.tokens(), full);
    if (random_.chance(0.5)) small_.push_back(std::move(sequence));
  }

  // ---- blocks

  void match_blocks() {
    const std::vector<Token> tokens = some_prompt();
    const auto sequence = value_of(TokenSequence::create(std::span<const Token>(tokens), block_size_));
    const auto found = manager_.match_blocks(sequence.blocks());
    seen_.block_hits += found.empty() ? 0 : 1;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto held = memory_.find(found[i].block_id().value());
      if (held == memory_.end() || held->second != content(0, tokens, i)) {
        wrong_ = "a match of token blocks has other tokens in block " + std::to_string(i);
      }
    }
    if (!found.empty() && random_.chance(0.5)) {
      const std::size_t at = random_.below(found.size());
      weak_.emplace_back(found[at].downgrade(), content(0, tokens, at));
    }
  }
  void upgrade() {
    const auto* weak = some(weak_);
    if (weak == nullptr) return;
    const auto block = weak->first.upgrade();
    if (!block) return;
    ++seen_.refound;
    if (memory_[block->block_id().value()] != weak->second) wrong_ = "a weak block found other tokens";
  }
  void pin() {
    std::vector<SequenceHash> names;
    manager_.for_each_registered([&](const SequenceHash& hash, BlockId) { names.push_back(hash); });
    if (names.empty()) return;
    auto pinned = manager_.pin(names[random_.below(names.size())], std::chrono::hours(1));
    if (pinned) pins_.push_back(*std::move(pinned));
  }
  void evict() {
    const auto taken = manager_.allocate_blocks(random_.below(manager_.available_blocks() + 1));
    if (!taken) return;
    for (const Mutable& block : *taken) memory_.erase(block.block_id().value());
  }
  template <class T>
  void erase_one(std::vector<T>& all) {
    if (all.empty()) return;
    std::swap(all[random_.below(all.size())], all.back());
    all.pop_back();
  }
  void drop_one() {
    erase_one(requests_);
    erase_one(small_);
    if (random_.chance(0.3)) erase_one(pins_);
    if (weak_.size() > 10) weak_.erase(weak_.begin());
  }

  Random random_;
  Seen& seen_;
  std::uint32_t block_size_;
  std::vector<CacheGroup> groups_;
  Manager manager_;
  SequenceManager<G1> sequences_;
  std::map<std::uint32_t, Content> memory_;
  std::vector<Running> requests_;
  std::vector<Small> small_;
  std::vector<std::pair<WeakBlock<G1>, Content>> weak_;
  std::vector<Pin> pins_;
  std::string wrong_;
};

TEST(CollisionPropertyTest, WhatIsFoundHasTheSameTokensFromTheFirstOn) {
  const testing::UntilSeen loop(1.0);
  Seen seen;
  std::uint64_t seed = 1;
  for (; !loop.over([&] { return seen.all(); }); ++seed) {
    ASSERT_EQ(Program(seed, seen).run(), "") << "seed " << seed;
  }
  EXPECT_TRUE(seen.all()) << seen.collisions << " collisions, " << seen.evictions << " evictions, hits of "
                          << seen.request_hits << " requests, " << seen.small_hits << " sequences, "
                          << seen.block_hits << " matches, " << seen.refound << " weak blocks";
  RecordProperty("programs", static_cast<int>(seed - 1));
}

}  // namespace
}  // namespace ashlar::block
