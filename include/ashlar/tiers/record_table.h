// RecordTable: the records of a pool's blocks, and how old blocks get.
//
// A record is written by the block's owner before the block is registered, and read by those who hold the block.
//
// Thread safety: as above; counters are thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/hold.h"
#include "ashlar/tiers/block_record.h"

namespace ashlar::tiers {

// Ages in whole milliseconds, shown in seconds: 1 ms to 12 days.
inline std::vector<std::uint64_t> age_bounds() {
  return Histogram::exponential_bounds(1, 4, 16);
}
inline constexpr std::uint64_t kAgeDivisor = 1000;

class RecordTable {
 public:
  RecordTable(std::size_t blocks, Clock& clock) : clock_(clock), records_(blocks) {}

  // The block is about to be registered as this.
  void write(block::BlockId id, const BlockRecord& record) noexcept {
    records_[id.value()] = record;
    records_[id.value()].since = clock_.now();
  }
  // The record of a block that the caller holds; bare where it was registered past this table.
  BlockRecord of(const block::Hold& hold) const {
    const BlockRecord& record = records_[hold.block_id().value()];
    if (record.hash == hold.sequence_hash()) return record;
    return {.hash = hold.sequence_hash()};
  }
  // What the block was registered as last.
  const tokens::SequenceHash& last(block::BlockId id) const noexcept { return records_[id.value()].hash; }
  // These blocks were handed out empty, for which `evicted` had to go.
  template <class Blocks>
  void handed_out(const Blocks& blocks, std::span<const tokens::SequenceHash> evicted) {
    evicted_.add(evicted.size());
    const std::unordered_set<tokens::SequenceHash> gone(evicted.begin(), evicted.end());
    for (const auto& block : blocks) {
      BlockRecord& record = records_[block.block_id().value()];
      if (record.empty()) continue;
      if (gone.contains(record.hash)) age_at_eviction_.observe(age(record));
      record = {};
    }
  }
  void hit(block::BlockId id) noexcept {
    if (!records_[id.value()].empty()) age_at_hit_.observe(age(records_[id.value()]));
  }

  const Counter& evictions() const noexcept { return evicted_; }
  const Histogram& age_at_hit() const noexcept { return age_at_hit_; }
  const Histogram& age_at_eviction() const noexcept { return age_at_eviction_; }

 private:
  std::uint64_t age(const BlockRecord& record) const noexcept {
    const auto passed = clock_.now() - record.since;
    return passed.count() < 0 ? 0
                              : static_cast<std::uint64_t>(
                                    std::chrono::duration_cast<std::chrono::milliseconds>(passed).count());
  }

  Clock& clock_;
  std::vector<BlockRecord> records_;
  Counter evicted_;
  Histogram age_at_hit_{age_bounds(), kAgeDivisor};
  Histogram age_at_eviction_{age_bounds(), kAgeDivisor};
};

}  // namespace ashlar::tiers
