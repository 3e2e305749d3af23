// OffloadLane: one way down, from a tier to the one below it.
//
// Blocks are offered by name, pass the policy, wait in the queue (offload_queue.h) and go down in batches on the lane's
// thread: when enough of them are on deck, or the oldest has waited long enough. Those that have arrived can be offered to
// the next lane. Offering a block that is on its way already joins it: nothing is copied twice.
//
// Thread safety: thread-safe. Destruction takes out what has not started and waits for the batch that runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/block_mover.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tiers/offload_policy.h"
#include "ashlar/tiers/offload_queue.h"
#include "ashlar/tiers/tier_pool.h"

namespace ashlar::tiers {

struct LaneLink;

struct OffloadLaneOptions {
  OffloadQueueOptions queue = {};
  std::size_t batch_blocks = 32;  // largest batch
  std::size_t full_batch = 8;     // so many on deck go at once
  // The oldest block waits no longer than this for others to go along.
  Clock::Duration max_wait = std::chrono::milliseconds(2);
  OffloadPolicy policy = every_block();
  // Recent uses of a hash, for the policy.
  std::function<unsigned(const tokens::SequenceHash&)> uses = {};
  Clock* clock = nullptr;

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

struct OffloadLaneCounters {
  std::uint64_t batches = 0;
  std::uint64_t arrived = 0;
  std::uint64_t there = 0;
  std::uint64_t filtered = 0;
  std::uint64_t gone = 0;
  std::uint64_t damaged = 0;
  std::uint64_t failed = 0;
  std::uint64_t bytes = 0;
  OffloadQueueCounters queue = {};
};

class OffloadLane {
 public:
  // A block that has arrived below, with the priority that it went with.
  using Arrived = std::function<void(const tokens::SequenceHash&, std::uint8_t priority)>;

  // Pools and mover outlive the lane. `arrived` runs on the lane's thread. Errors: kInvalidArgument; kCapacity: no thread.
  static Result<std::unique_ptr<OffloadLane>> create(TierPool& from, TierPool& to, BlockMover& mover,
                                                     OffloadLaneOptions options, Arrived arrived = {});
  ~OffloadLane();

  OffloadHandle offload(std::span<const tokens::SequenceHash> hashes, std::uint8_t priority);
  // Lets what waits go now, and waits until nothing waits or is on its way.
  void drain();
  OffloadLaneCounters counters() const;

 private:
  OffloadLane(TierPool& from, TierPool& to, BlockMover& mover, OffloadLaneOptions options, Arrived arrived);
  void run();
  // Waits until a batch should go; false when the lane ends.
  bool wait_for_batch();
  void move(std::vector<OffloadQueue::Item> items);
  void end(const tokens::SequenceHash& hash, std::size_t OffloadProgress::* outcome,
           const std::optional<Error>& error);
  // A call does not want to know any more; the last one takes the hash out.
  void forget(const tokens::SequenceHash& hash, const std::shared_ptr<OffloadCall>& call);

  TierPool& from_;
  TierPool& to_;
  BlockMover& mover_;
  const OffloadLaneOptions options_;
  const Arrived arrived_;
  Clock& clock_;
  const std::shared_ptr<LaneLink> link_;
  std::unique_ptr<OffloadQueue> queue_;

  mutable Mutex mu_;
  CondVar changed_;
  // Calls that want to know what becomes of a hash.
  std::unordered_map<tokens::SequenceHash, std::vector<std::shared_ptr<OffloadCall>>> calls_
      ASHLAR_GUARDED_BY(mu_);
  std::optional<Clock::TimePoint> oldest_ ASHLAR_GUARDED_BY(mu_);  // since when something waits
  std::size_t flushers_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool moving_ ASHLAR_GUARDED_BY(mu_) = false;
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  OffloadLaneCounters counters_ ASHLAR_GUARDED_BY(mu_);
  std::thread thread_;

  friend class OffloadHandle;
};

}  // namespace ashlar::tiers
