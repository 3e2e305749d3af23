// RecordTable: the records of a pool's blocks, and the ages at which blocks are hit and evicted.
//
// The owner of a block writes its record before it registers the block; holders of the block read it. Only
// the checksum may be added later, by any holder.
//
// A block registered while still being written has a precondition: the fence of its writer. The precondition
// ends with this life of the block: the next record, or handing the block out, replaces it.
//
// Thread safety: records as above; counters and preconditions are thread-safe.
// Complexity:    O(1) per block; write() also drops preconditions that have passed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/pin.h"
#include "tiers/pool/tier_record.h"

namespace ashlar::tiers {

// Ages in whole milliseconds, shown in seconds: 1 ms to 12 days.
inline std::vector<std::uint64_t> age_bounds() {
  return Histogram::exponential_bounds(1, 4, 16);
}
inline constexpr std::uint64_t kAgeDivisor = 1000;

class RecordTable {
 public:
  RecordTable(std::size_t blocks, Clock& clock) : clock_(clock), records_(blocks), checksums_(blocks) {}

  // Call before registering the block with this record. `after`: the block is being written until it passes.
  void write(block::BlockId id, const TierRecord& record, const std::optional<block::Fence>& after = {}) {
    ASHLAR_DCHECK(!record.empty(), "block %u is recorded under no hash", id.value());
    set_precondition(id, after);
    records_[id.value()] = {record.hash, record.parent, record.salt, clock_.now(), record.priority};
    // relaxed, here and below: registration publishes the value, or it publishes nothing.
    checksums_[id.value()].store(record.checksum ? record.checksum->value() : kUnknown,
                                 std::memory_order_relaxed);
  }
  // The record of a block that the caller holds; bare if it was registered bypassing this table.
  TierRecord of(const block::Hold& hold) const {
    const Kept& kept = records_[hold.block_id().value()];
    if (kept.hash != hold.sequence_hash()) return {.hash = hold.sequence_hash()};
    TierRecord record{.hash = kept.hash,
                      .parent = kept.parent,
                      .salt = kept.salt,
                      .priority = kept.priority,
                      .since = kept.since};
    const std::uint64_t checksum = checksums_[hold.block_id().value()].load(std::memory_order_relaxed);
    if (checksum != kUnknown) record.checksum = transfer::BlockChecksum(checksum);
    return record;
  }
  // The precondition to wait for before copying a block that the caller holds; empty when its bytes are
  // complete.
  std::optional<block::Fence> precondition(const block::Hold& hold) const {
    if (fence_count_ == 0 || records_[hold.block_id().value()].hash != hold.sequence_hash())
      return std::nullopt;
    const MutexLock lock(fences_mu_);
    const auto found = fences_.find(hold.block_id());
    if (found == fences_.end() || found->second.passed()) return std::nullopt;
    return found->second;
  }
  bool has_preconditions() const noexcept { return fence_count_ != 0; }
  // Records the checksum of the block's bytes.
  void learn(const block::Hold& hold, transfer::BlockChecksum checksum) noexcept {
    if (records_[hold.block_id().value()].hash == hold.sequence_hash())
      checksums_[hold.block_id().value()].store(checksum.value(), std::memory_order_relaxed);
  }
  // The hash the block was last registered with.
  const tokens::SequenceHash& last(block::BlockId id) const noexcept { return records_[id.value()].hash; }
  // Resets blocks handed out empty, and counts the `evicted` ones with their ages.
  template <class Blocks>
  void handed_out(const Blocks& blocks, std::span<const tokens::SequenceHash> evicted) {
    evicted_.add(evicted.size());
    const std::unordered_set<tokens::SequenceHash> gone(evicted.begin(), evicted.end());
    for (const auto& block : blocks) {
      set_precondition(block.block_id(), {});
      Kept& kept = records_[block.block_id().value()];
      if (kept.hash == tokens::SequenceHash()) continue;
      if (gone.contains(kept.hash)) age_at_eviction_.observe(age(kept));
      kept = {};
    }
  }
  void hit(block::BlockId id) noexcept {
    const Kept& kept = records_[id.value()];
    if (kept.hash != tokens::SequenceHash()) age_at_hit_.observe(age(kept));
  }

  const Counter& evictions() const noexcept { return evicted_; }
  const Histogram& age_at_hit() const noexcept { return age_at_hit_; }
  const Histogram& age_at_eviction() const noexcept { return age_at_eviction_; }

 private:
  static constexpr std::uint64_t kUnknown = 0;  // a checksum that happens to be this is recomputed every time
  struct Kept {
    tokens::SequenceHash hash = {};
    tokens::SequenceHash parent = {};
    tokens::SaltFingerprint salt = {};
    Clock::TimePoint since = {};
    std::uint8_t priority = 0;
  };
  std::uint64_t age(const Kept& kept) const noexcept {
    const auto passed = clock_.now() - kept.since;
    return passed.count() < 0 ? 0
                              : static_cast<std::uint64_t>(
                                    std::chrono::duration_cast<std::chrono::milliseconds>(passed).count());
  }

  void set_precondition(block::BlockId id, const std::optional<block::Fence>& after) {
    const bool waits = after && !after->passed();
    if (!waits && fence_count_ == 0) return;
    std::vector<std::unordered_map<block::BlockId, block::Fence>::node_type>
        gone;  // destroyed outside the lock
    const MutexLock lock(fences_mu_);
    gone.push_back(fences_.extract(id));
    if (waits) {
      for (auto at = fences_.begin(); at != fences_.end();) {
        const auto here = at++;
        if (here->second.passed()) gone.push_back(fences_.extract(here));
      }
      fences_.emplace(id, *after);
    }
    fence_count_ = fences_.size();
  }

  Clock& clock_;
  mutable Mutex fences_mu_;
  std::unordered_map<block::BlockId, block::Fence> fences_ ASHLAR_GUARDED_BY(fences_mu_);
  std::atomic<std::size_t> fence_count_{0};  // of fences_; a block's owner and holders see their own
  std::vector<Kept> records_;
  std::vector<std::atomic<std::uint64_t>> checksums_;
  Counter evicted_;
  Histogram age_at_hit_{age_bounds(), kAgeDivisor};
  Histogram age_at_eviction_{age_bounds(), kAgeDivisor};
};

}  // namespace ashlar::tiers
