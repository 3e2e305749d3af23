// LfuBackend: evicts the block that was used least often since it was registered, and among equals the one
// that was released or touched longest ago.
//
// A use is a release or a touch. Counts never decay, and are lost with the block: a block that was popular
// once stays for long. `multi_lru` counts names instead, with decay.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined. Complexity: O(log n); peek() at k blocks O(k log k), and it allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

class LfuBackend {
 public:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;  // uses, then the turn of the last one
  static constexpr std::size_t kBytesPerBlock = IndexedHeap<Rank>::kBytesPerBlock + sizeof(std::uint32_t);

  explicit LfuBackend(const EvictionContext& context)
      : uses_(context.block_count), inactive_(context.block_count) {}

  void registered(BlockId id, const tokens::SequenceHash&) { uses_[id.value()] = 0; }
  void unregistered(BlockId id) { uses_[id.value()] = 0; }
  void insert(BlockId id, const tokens::SequenceHash&) { inactive_.push(id, used(id)); }
  void remove(BlockId id) { inactive_.remove(id); }
  void touch(BlockId id) { inactive_.update(id, used(id)); }
  std::optional<BlockId> pop() {
    const std::optional<BlockId> victim = inactive_.pop();
    if (victim) uses_[victim->value()] = 0;
    return victim;
  }
  std::size_t peek(std::span<BlockId> out) const { return inactive_.peek(out); }
  std::size_t size() const { return inactive_.size(); }

 private:
  // Counts a use. Returns the block's place in the order.
  Rank used(BlockId id) {
    std::uint32_t& uses = uses_[id.value()];
    if (uses != std::numeric_limits<std::uint32_t>::max()) ++uses;
    return {uses, ++turn_};
  }

  std::vector<std::uint32_t> uses_;  // by id
  IndexedHeap<Rank> inactive_;
  std::uint64_t turn_ = 0;
};
static_assert(EvictionBackend<LfuBackend> && FollowsRegistrations<LfuBackend>);

}  // namespace ashlar::block
