// PriorityReuse: the block of the lowest priority is reused first, of equals the one released longest ago.
//
// The priority is that of the block's retention when it is released or touched,
// BlockRetention::kDefaultPriority for a block nobody spoke about. It stays until then, whatever time the
// retention names; for priorities that fade there is the RetentionBackend. A touch counts as a release.
// Releases are numbered one by one, so that the end of a sequence goes before its head; the tick of
// acquisition, the last word of the order, would decide between two of one number.
//
// Memory: kBytesPerBlock per block of the pool. Facts: retention, acquisition.
//
// Thread safety: confined. Complexity: O(log n), O(k log k) for a peek at k blocks, which allocates.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "ashlar/block/eviction.h"
#include "ashlar/block/indexed_heap.h"
#include "ashlar/block/reuse_policy.h"

namespace ashlar::block {

// Lowest first.
struct PriorityKey {
  std::uint8_t priority = BlockRetention::kDefaultPriority;
  std::uint64_t returned = 0;  // tick of the last release or touch
  std::uint64_t acquired = 0;  // tick of the last allocation or revival (block_facts.h)

  friend auto operator<=>(const PriorityKey&, const PriorityKey&) = default;
};

class PriorityReuse {
 public:
  static constexpr std::size_t kBytesPerBlock = IndexedHeap<PriorityKey>::kBytesPerBlock;

  explicit PriorityReuse(const EvictionContext& context) : heap_(context.block_count), facts_(context.facts) {
    facts_->keep_retentions();
    facts_->keep_acquisitions();
  }

  void insert(BlockId id, const tokens::SequenceHash&) { heap_.push(id, next_key(id)); }
  void remove(BlockId id) { heap_.remove(id); }
  void touch(BlockId id) { heap_.update(id, next_key(id)); }
  std::optional<BlockId> next() { return heap_.pop(); }
  std::size_t peek(std::span<BlockId> out) const { return heap_.peek(out); }
  std::size_t size() const { return heap_.size(); }

 private:
  PriorityKey next_key(BlockId id) {
    return {facts_->retention(id).value_or(BlockRetention{}).priority, ++tick_, facts_->acquired(id)};
  }

  IndexedHeap<PriorityKey> heap_;
  std::shared_ptr<BlockFacts> facts_;
  std::uint64_t tick_ = 0;
};
static_assert(ReusePolicy<PriorityReuse>);

}  // namespace ashlar::block
