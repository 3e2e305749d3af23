// SimulatedEngine: an engine whose KV memory is numbers, so that a test can read what every block holds.
//
// The KV of a token is a number made of its group and of all tokens up to it: it is right for one prefix and
// for no other. A step makes the copies it is asked for, looks at everything the new tokens attend to, and
// writes their KV through the block tables. A block that is shared wrongly, handed out while it is read, or
// found in the cache before it was computed, holds a wrong number, and the next look says so.
//
// Every look answers with a sentence: empty when all is right.
//
// Thread safety: the memory has no locks: requests of different threads use different blocks, or the same
// ones for reading; what orders the one before the other is the manager's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block::support {

template <events::Tier Tier>
class SimulatedEngine {
 public:
  using Kv = std::uint64_t;
  using Request = RequestSequence<Tier>;

  // All requests have these groups.
  SimulatedEngine(std::size_t blocks, std::uint32_t block_size, std::vector<CacheGroup> groups = {})
      : block_size_(block_size),
        groups_(groups.empty() ? std::vector<CacheGroup>(1) : std::move(groups)),
        memory_(blocks * block_size) {}

  std::uint32_t block_size() const noexcept { return block_size_; }
  const std::vector<CacheGroup>& groups() const noexcept { return groups_; }

  // The KV of every token in a group.
  static std::vector<Kv> kv_of(std::span<const tokens::Token> tokens, std::size_t group) {
    std::vector<Kv> values;
    values.reserve(tokens.size());
    std::uint64_t prefix = 0x5EED;
    for (const tokens::Token token : tokens) {
      prefix = mixed(prefix ^ token.value());
      values.push_back(mixed(prefix + group));
    }
    return values;
  }
  // What a block holds now.
  std::span<const Kv> block(BlockId id) const {
    return std::span(memory_).subspan(std::size_t{id.value()} * block_size_, block_size_);
  }

  // What another owner of the block might leave in it.
  void scribble(BlockId id) {
    for (std::size_t i = 0; i < block_size_; ++i) cell(id, i) = ~cell(id, i);
  }

  // The copies of the scheduled step. Exactly once per step, before compute().
  std::string copy(const Request& request) {
    for (const BlockCopy& copy : request.copies()) {
      if (copy.group >= groups_.size()) return "a copy for group " + std::to_string(copy.group);
      if (!exists(copy.source) || !exists(copy.destination)) return "a copy with a block that does not exist";
      if (copy.source == copy.destination) return "a copy of block " + text(copy.source) + " onto itself";
      for (std::size_t i = 0; i < block_size_; ++i) cell(copy.destination, i) = cell(copy.source, i);
    }
    return {};
  }
  // Writes the KV of `step`, the tokens after the computed ones.
  std::string compute(const Request& request, std::span<const tokens::Token> step) {
    const std::size_t computed = request.computed_tokens();
    std::vector<tokens::Token> all(request.tokens().begin(), request.tokens().begin() + long(computed));
    all.insert(all.end(), step.begin(), step.end());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<Kv> values = kv_of(all, g);
      if (std::string wrong = look(request, g, values, computed); !wrong.empty())
        return "before a step " + wrong;
      const std::span<const BlockId> table = request.block_table(g);
      const std::size_t blocks = (all.size() + block_size_ - 1) / block_size_;
      if (table.size() != blocks) {
        return "a table of " + std::to_string(table.size()) + " blocks for " + std::to_string(all.size()) +
               " tokens";
      }
      for (std::size_t i = computed; i < all.size(); ++i) {
        const BlockId id = table[i / block_size_];
        if (!exists(id))
          return "no block to write token " + std::to_string(i) + " of group " + std::to_string(g);
        cell(id, i % block_size_) = values[i];
      }
    }
    return {};
  }
  // The whole step: `count` of the request's own tokens.
  std::string run(const Request& request, std::size_t count) {
    return run(request, request.tokens().subspan(request.computed_tokens(), count));
  }
  std::string run(const Request& request, std::span<const tokens::Token> step) {
    std::string wrong = copy(request);
    return wrong.empty() ? compute(request, step) : wrong;
  }
  // One token, which may be the first of several: the request's own, then the drafts.
  std::string run_with_drafts(const Request& request, std::span<const tokens::Token> drafts) {
    std::vector<tokens::Token> step{request.tokens().back()};
    step.insert(step.end(), drafts.begin(), drafts.end());
    return run(request, step);
  }

  // Whether the memory behind the block tables of a request without a scheduled step is that of its tokens,
  // and no block is missing or kept too long.
  std::string check(const Request& request) const {
    if (request.group_count() != groups_.size()) return "another number of groups";
    const std::size_t computed = request.computed_tokens();
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::size_t blocks = (computed + block_size_ - 1) / block_size_;
      if (request.block_table(g).size() != blocks) {
        return "a table of " + std::to_string(request.block_table(g).size()) + " blocks for " +
               std::to_string(computed) + " computed tokens";
      }
      if (std::string wrong = look(request, g, kv_of(request.tokens(), g), computed); !wrong.empty())
        return wrong;
    }
    return {};
  }

 private:
  static constexpr std::uint64_t mixed(std::uint64_t x) noexcept {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  static std::string text(BlockId id) { return id == kNoBlock ? "none" : std::to_string(id.value()); }
  bool exists(BlockId id) const noexcept {
    return id != kNoBlock && id.value() < memory_.size() / block_size_;
  }
  Kv& cell(BlockId id, std::size_t place) { return memory_[std::size_t{id.value()} * block_size_ + place]; }

  // The computed tokens through one table: all that the next token looks at must be there and be right;
  // blocks that it does not look at must be gone.
  std::string look(const Request& request, std::size_t group, std::span<const Kv> values,
                   std::size_t computed) const {
    const std::span<const BlockId> table = request.block_table(group);
    const std::size_t gone = groups_[group].tokens_outside(computed) / block_size_;
    for (std::size_t b = 0; b * block_size_ < computed; ++b) {
      const std::string where = "group " + std::to_string(group) + " has at place " + std::to_string(b) +
                                " block " + (b < table.size() ? text(table[b]) : "(outside the table)");
      if (b >= table.size()) return where;
      if ((table[b] == kNoBlock) != (b < gone))
        return where + ", " + std::to_string(gone) + " are outside the window";
      if (b < gone) continue;
      if (!exists(table[b])) return where + ", which does not exist";
      for (std::size_t i = b * block_size_; i < computed && i < (b + 1) * block_size_; ++i) {
        if (block(table[b])[i % block_size_] != values[i]) {
          return where + ", which does not hold the KV of token " + std::to_string(i);
        }
      }
    }
    return {};
  }

  std::uint32_t block_size_;
  std::vector<CacheGroup> groups_;
  std::vector<Kv> memory_;
};

}  // namespace ashlar::block::support
