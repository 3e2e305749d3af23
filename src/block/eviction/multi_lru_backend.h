// MultiLruBackend: evicts rarely used blocks first, and among them the one that was released or touched
// longest ago.
//
// Four lists, cold, warm, hot and very hot, by how often the block's hash was used lately (the registry's
// frequency tracker). A release or touch places a block at the newest end of the tier that its current count
// selects; a count that decays later does not move it. The victim comes from the coldest non-empty tier.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined. Complexity: O(1), O(ids written) for peek().
#pragma once

#include <cstdint>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

class MultiLruBackend {
 public:
  static constexpr std::size_t kBytesPerBlock = IntrusiveLists::kBytesPerBlock + sizeof(tokens::SequenceHash);

  // Errors: those of the thresholds; kInvalidArgument when the registry has no frequency tracker.
  static Result<MultiLruBackend> create(const EvictionContext& context,
                                        const MultiLruThresholds& thresholds = {});

  void insert(BlockId id, const tokens::SequenceHash& hash) {
    hashes_[id.value()] = hash;
    tiers_.push_back(tier_of(hash), id);
  }
  void remove(BlockId id) { tiers_.remove(id); }
  void touch(BlockId id) {
    tiers_.remove(id);
    tiers_.push_back(tier_of(hashes_[id.value()]), id);
  }
  std::optional<BlockId> pop();
  std::size_t peek(std::span<BlockId> out) const;
  std::size_t size() const { return tiers_.size(); }

 private:
  static constexpr std::uint32_t kTiers = 4;

  MultiLruBackend(const EvictionContext& context, const MultiLruThresholds& thresholds)
      : registry_(context.registry),
        thresholds_(thresholds),
        hashes_(context.block_count),
        tiers_(context.block_count, kTiers) {}
  // 0 is cold.
  std::uint32_t tier_of(const tokens::SequenceHash& hash) const;

  BlockRegistry registry_;
  MultiLruThresholds thresholds_;
  std::vector<tokens::SequenceHash> hashes_;  // by block id; valid for blocks in the lists
  IntrusiveLists tiers_;
};
static_assert(EvictionBackend<MultiLruBackend>);

}  // namespace ashlar::block
