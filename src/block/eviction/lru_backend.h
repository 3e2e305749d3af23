// LruBackend: evicts the block that was released or touched longest ago.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined. Complexity: O(1), O(ids written) for peek().
#pragma once

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

class LruBackend {
 public:
  static constexpr std::size_t kBytesPerBlock = IntrusiveOrder::kBytesPerBlock;

  explicit LruBackend(const EvictionContext& context) : order_(context.block_count) {}

  void insert(BlockId id) { order_.push_back(id); }
  void insert(BlockId id, const tokens::SequenceHash&) { insert(id); }
  void remove(BlockId id) { order_.remove(id); }
  void touch(BlockId id) {
    order_.remove(id);
    order_.push_back(id);
  }
  std::optional<BlockId> pop() { return order_.pop_front(); }
  std::size_t peek(std::span<BlockId> out) const { return order_.peek(out); }
  std::size_t size() const { return order_.size(); }

 private:
  IntrusiveOrder order_;
};
static_assert(EvictionBackend<LruBackend>);

}  // namespace ashlar::block
