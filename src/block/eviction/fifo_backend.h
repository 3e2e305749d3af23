// FifoBackend: evicts the block that was registered longest ago, however often it was used since.
//
// A block keeps its place while it is in use; `hashmap_fifo` orders by the last release instead. It is the
// yardstick of a cache that never learns.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined. Complexity: O(log n); peek() at k blocks O(k log k), and it allocates.
// Invariant:     a block has a turn while it is registered, in the heap or in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

class FifoBackend {
 public:
  static constexpr std::size_t kBytesPerBlock =
      IndexedHeap<std::uint64_t>::kBytesPerBlock + sizeof(std::uint64_t);

  explicit FifoBackend(const EvictionContext& context)
      : turns_(context.block_count), inactive_(context.block_count) {}

  void registered(BlockId id, const tokens::SequenceHash&) { turns_[id.value()] = ++turn_; }
  void unregistered(BlockId id) { turns_[id.value()] = 0; }
  void insert(BlockId id, const tokens::SequenceHash&) {
    std::uint64_t& turn = turns_[id.value()];
    if (turn == 0) turn = ++turn_;
    inactive_.push(id, turn);
  }
  void remove(BlockId id) { inactive_.remove(id); }
  void touch(BlockId) {}
  std::optional<BlockId> pop() {
    const std::optional<BlockId> victim = inactive_.pop();
    if (victim) turns_[victim->value()] = 0;
    return victim;
  }
  std::size_t peek(std::span<BlockId> out) const { return inactive_.peek(out); }
  std::size_t size() const { return inactive_.size(); }

 private:
  std::vector<std::uint64_t> turns_;  // by id; 0: not registered
  IndexedHeap<std::uint64_t> inactive_;
  std::uint64_t turn_ = 0;
};
static_assert(EvictionBackend<FifoBackend> && FollowsRegistrations<FifoBackend>);

}  // namespace ashlar::block
