// NestingBoard: the workers that are not nested (positional_indexer.h) or hold blocks in lower tiers; written
// by their writers, read by queries.
//
// A writer posts a slot before the change that breaks the nesting, and removes the post after the change that
// restored it. A query's conclusions about a slot not posted at its start hold to its end: if the worker
// holds a block then, it held those before it when the query began, or it stored the block meanwhile, behind
// a block of which the same is true. But blocks stored meanwhile may lie in lower tiers. A slot that gets its
// first such block draws a number, and at its end the query checks which slots drew one since it began;
// usually that is one load.
//
// Orders are sequentially consistent: a query either sees a post at its start, or starts with a number below
// the slot's; and both are written before the blocks change.
//
// Thread safety: thread-safe, except resize(), which must run alone.
// Complexity:    O(1), except when it doubles or halves; at most 16 bytes per slot.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/walked_steps.h"

namespace ashlar::index::detail {

class NestingBoard {
 public:
  // Resizes to that many slots. Requires: no dropped slot is posted. Shrinking never fails: without memory
  // the board stays as it is. Growing throws std::bad_alloc with the board unchanged.
  void resize(std::size_t slots) {
    const std::size_t words = (slots + 63) / 64;
    if (words <= capacity_ && words * 4 > capacity_) return;
    const std::size_t capacity = words == 0 ? 0 : std::bit_ceil(words);
    if (capacity == capacity_) return;
    auto posted = allocate(capacity);
    auto last = allocate(capacity * 64);
    if (capacity != 0 && (posted == nullptr || last == nullptr)) {
      if (capacity < capacity_) return;
      throw std::bad_alloc();
    }
    const std::size_t kept = std::min(capacity, capacity_);
    for (std::size_t word = 0; word < kept; ++word) posted[word] = posted_[word].load();
    for (std::size_t slot = 0; slot < kept * 64; ++slot) last[slot] = last_[slot].load();
    posted_ = std::move(posted);
    last_ = std::move(last);
    capacity_ = capacity;
    count_steps(kept * 65);
  }
  std::size_t bytes() const noexcept { return capacity_ * 65 * sizeof(std::uint64_t); }

  // Called by the slot's writer.
  bool is_posted(std::uint32_t slot) const noexcept { return (posted_[slot / 64] & bit(slot)) != 0; }
  void post(std::uint32_t slot) noexcept { posted_[slot / 64] |= bit(slot); }
  // Called when the slot gets its first block in a lower tier.
  void post_lower_tier(std::uint32_t slot) noexcept {
    post(slot);
    last_[slot] = ++numbers_;
  }
  void take_down(std::uint32_t slot) noexcept { posted_[slot / 64] &= ~bit(slot); }

  // For queries: number() and then posted() at the start; at the end number() again and, if it changed,
  // drew_since().
  std::uint64_t number() const noexcept { return numbers_; }
  std::uint64_t posted(std::size_t word) const noexcept { return posted_[word]; }
  bool drew_since(std::uint32_t slot, std::uint64_t number) const noexcept { return last_[slot] > number; }

 private:
  using Words = std::unique_ptr<std::atomic<std::uint64_t>[]>;

  // Null without memory, and for 0 words.
  static Words allocate(std::size_t words) noexcept {
    return Words(words == 0 ? nullptr : new (std::nothrow) std::atomic<std::uint64_t>[words]());
  }
  static std::uint64_t bit(std::uint32_t slot) noexcept { return std::uint64_t{1} << (slot % 64); }

  std::size_t capacity_ = 0;  // words
  Words posted_;              // a bit per slot
  Words last_;                // the last number the slot drew
  std::atomic<std::uint64_t> numbers_{0};
};

}  // namespace ashlar::index::detail
