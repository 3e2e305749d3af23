// RootFilter: tells that no block with a given local hash begins a chain, without walking the tree. It counts
// the first blocks by a few bits of their keyed hash: a count of zero is a miss.
//
// Thread safety: may_have() at any time; add() and remove() are the writer's. Who sees a node in the tree, or
//                what its store returned, sees its count.
// Complexity:    O(1), one line of 16 KiB. Denies 1 - n / 16,384 of unknown hashes beside n first blocks.
// Invariant:     a count is at least the number of its first blocks, or kFull, where it stays.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ashlar::index::detail {

class RootFilter {
 public:
  static constexpr std::size_t kCells = 16'384;
  static constexpr std::uint8_t kFull = UINT8_MAX;

  // Before the node is published.
  void add(std::uint64_t hash) noexcept {
    const std::uint8_t count = at(hash).load(std::memory_order_relaxed);
    if (count != kFull) at(hash).store(count + 1, std::memory_order_relaxed);
  }
  // After it is withdrawn. Requires: an add() of the same hash that has no remove() yet.
  void remove(std::uint64_t hash) noexcept {
    const std::uint8_t count = at(hash).load(std::memory_order_relaxed);
    if (count != kFull) at(hash).store(count - 1, std::memory_order_relaxed);
  }
  // relaxed: the count orders nothing; a reader that sees an older one answers as of then.
  bool may_have(std::uint64_t hash) const noexcept {
    return counts_[cell(hash)].load(std::memory_order_relaxed) != 0;
  }

 private:
  static std::size_t cell(std::uint64_t hash) noexcept { return hash >> 32 & (kCells - 1); }
  std::atomic<std::uint8_t>& at(std::uint64_t hash) noexcept { return counts_[cell(hash)]; }

  std::array<std::atomic<std::uint8_t>, kCells> counts_{};
};

}  // namespace ashlar::index::detail
