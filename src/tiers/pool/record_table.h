// RecordTable: what a pool keeps of its blocks beyond what their manager does: checksums, the preconditions
// of blocks that are still being written, and the ages at which blocks are hit and evicted.
//
// It observes the manager, so it hears of every block, whichever way it was taken or registered. A
// precondition ends with this life of the block.
//
// Thread safety: thread-safe. A checksum is written by the owner of a block before it registers the block, or
//                later by any holder.
// Complexity:    O(1) per block; registering blocks also drops preconditions that have passed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_observer.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/pin.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_checksum.h"

namespace ashlar::tiers {

// Ages in whole milliseconds, shown in seconds: 1 ms to 12 days.
inline std::vector<std::uint64_t> age_bounds() {
  return Histogram::exponential_bounds(1, 4, 16);
}
inline constexpr std::uint64_t kAgeDivisor = 1000;

class RecordTable final : public block::BlockObserver {
 public:
  RecordTable(std::size_t blocks, Clock& clock)
      : clock_(clock), last_(blocks), since_(blocks), checksums_(blocks) {}

  // Records the checksum of a block that the caller owns and is about to register.
  void write(block::BlockId id, const std::optional<transfer::BlockChecksum>& checksum) noexcept {
    // relaxed, here and below: registration publishes the value, or it publishes nothing.
    checksums_[id.value()].store(checksum ? checksum->value() : kUnknown, std::memory_order_relaxed);
  }
  // Records the checksum of a block that the caller holds.
  void learn(const block::Hold& hold, transfer::BlockChecksum checksum) noexcept {
    checksums_[hold.block_id().value()].store(checksum.value(), std::memory_order_relaxed);
  }
  // Empty: unknown.
  std::optional<transfer::BlockChecksum> checksum(const block::Hold& hold) const noexcept {
    const std::uint64_t value = checksums_[hold.block_id().value()].load(std::memory_order_relaxed);
    return value == kUnknown ? std::nullopt : std::optional(transfer::BlockChecksum(value));
  }
  // When a held block entered its tier.
  Clock::TimePoint since(const block::Hold& hold) const noexcept {
    return Clock::TimePoint(Clock::Duration(since_[hold.block_id().value()].load(std::memory_order_relaxed)));
  }
  // The precondition to wait for before copying a block that the caller holds; empty when its bytes are
  // complete.
  std::optional<block::Fence> precondition(const block::Hold& hold) const {
    if (fence_count_ == 0) return std::nullopt;
    const MutexLock lock(fences_mu_);
    const auto found = fences_.find(hold.block_id());
    if (found == fences_.end() || found->second.passed()) return std::nullopt;
    return found->second;
  }
  // The hash under which the block was last registered, or was to be, in this or an earlier life; zero: none
  // since forget(). Any thread may ask: it learns the hash, zero, or what no block is called.
  tokens::SequenceHash last(block::BlockId id) const noexcept {
    const Name& name = last_[id.value()];
    return tokens::SequenceHash::from_bits(name.hi.load(std::memory_order_relaxed),
                                           name.lo.load(std::memory_order_relaxed));
  }
  // Requires: the caller owns the block.
  void forget(block::BlockId id) noexcept { set_last(id, {}); }
  // Calls `arrived` for blocks that can be found from now on; it must not throw. Set it before other threads
  // use the pool.
  void on_arrival(std::function<void(std::span<const block::RegisteredBlock>)> arrived) {
    arrived_ = std::move(arrived);
  }
  // Calls `removed` for hashes whose blocks the pool gives up, so that nothing else keeps them; it must not
  // throw. Set it before other threads use the pool.
  void on_removal(std::function<void(std::span<const tokens::SequenceHash>)> removed) {
    removed_ = std::move(removed);
  }
  void removed(std::span<const tokens::SequenceHash> hashes) const {
    if (removed_) removed_(hashes);
  }
  void hit(block::BlockId id) noexcept { age_at_hit_.observe(age(id)); }

  void handed_out(std::span<const block::BlockId> blocks) noexcept override {
    for (const block::BlockId id : blocks) {
      write(id, {});
      if (fence_count_ != 0) drop_precondition(id);
    }
  }
  void registering(std::span<const block::RegisteredBlock> blocks) override {
    const std::int64_t now = clock_.now().time_since_epoch().count();
    for (const block::RegisteredBlock& block : blocks) {
      set_last(block.id, block.identity.hash);
      since_[block.id.value()].store(now, std::memory_order_relaxed);
      if (block.after && !block.after->passed()) set_precondition(block.id, *block.after);
    }
  }
  void registered(std::span<const block::RegisteredBlock> blocks) noexcept override {
    if (arrived_) arrived_(blocks);
  }
  void evicted(std::span<const block::EvictedBlock> blocks) noexcept override {
    evicted_.add(blocks.size());
    for (const block::EvictedBlock& block : blocks) age_at_eviction_.observe(age(block.id));
  }

  const Counter& evictions() const noexcept { return evicted_; }
  const Histogram& age_at_hit() const noexcept { return age_at_hit_; }
  const Histogram& age_at_eviction() const noexcept { return age_at_eviction_; }

 private:
  static constexpr std::uint64_t kUnknown = 0;  // a checksum that happens to be this is recomputed every time
  std::uint64_t age(block::BlockId id) const noexcept {
    const auto passed =
        clock_.now().time_since_epoch().count() - since_[id.value()].load(std::memory_order_relaxed);
    return passed < 0
               ? 0
               : static_cast<std::uint64_t>(
                     std::chrono::duration_cast<std::chrono::milliseconds>(Clock::Duration(passed)).count());
  }
  struct Name {
    std::atomic<std::uint64_t> hi{0};
    std::atomic<std::uint64_t> lo{0};
  };
  void set_last(block::BlockId id, const tokens::SequenceHash& hash) noexcept {
    last_[id.value()].hi.store(hash.hi(), std::memory_order_relaxed);
    last_[id.value()].lo.store(hash.lo(), std::memory_order_relaxed);
  }
  using Fences = std::unordered_map<block::BlockId, block::Fence>;

  void set_precondition(block::BlockId id, const block::Fence& after) {
    std::vector<Fences::node_type> gone;  // destroyed outside the lock
    const MutexLock lock(fences_mu_);
    for (auto at = fences_.begin(); at != fences_.end();) {
      const auto here = at++;
      if (here->first == id || here->second.passed()) gone.push_back(fences_.extract(here));
    }
    fences_.emplace(id, after);
    fence_count_ = fences_.size();
  }
  void drop_precondition(block::BlockId id) noexcept {
    Fences::node_type gone;  // destroyed outside the lock
    const MutexLock lock(fences_mu_);
    gone = fences_.extract(id);
    fence_count_ = fences_.size();
  }

  Clock& clock_;
  std::function<void(std::span<const block::RegisteredBlock>)> arrived_;
  std::function<void(std::span<const tokens::SequenceHash>)> removed_;
  mutable Mutex fences_mu_;
  Fences fences_ ASHLAR_GUARDED_BY(fences_mu_);
  std::atomic<std::size_t> fence_count_{0};  // of fences_; a block's owner and holders see their own
  std::vector<Name> last_;
  std::vector<std::atomic<std::int64_t>> since_;  // ticks of the clock
  std::vector<std::atomic<std::uint64_t>> checksums_;
  Counter evicted_;
  Histogram age_at_hit_{age_bounds(), kAgeDivisor};
  Histogram age_at_eviction_{age_bounds(), kAgeDivisor};
};

}  // namespace ashlar::tiers
