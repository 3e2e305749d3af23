// LifoReuse: the block that was released last is reused first; a touch changes nothing.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined. Complexity: O(1), O(ids written) for peek().
#pragma once

#include "ashlar/block/eviction.h"
#include "ashlar/block/intrusive_order.h"
#include "ashlar/block/reuse_policy.h"

namespace ashlar::block {

class LifoReuse {
 public:
  static constexpr std::size_t kBytesPerBlock = IntrusiveOrder::kBytesPerBlock;

  explicit LifoReuse(const EvictionContext& context) : order_(context.block_count) {}

  void insert(BlockId id) { order_.push_front(id); }
  void insert(BlockId id, const tokens::SequenceHash&) { insert(id); }
  void remove(BlockId id) { order_.remove(id); }
  std::optional<BlockId> next() { return order_.pop_front(); }
  std::size_t peek(std::span<BlockId> out) const { return order_.peek(out); }
  std::size_t size() const { return order_.size(); }

 private:
  IntrusiveOrder order_;
};
static_assert(ReusePolicy<LifoReuse>);

}  // namespace ashlar::block
