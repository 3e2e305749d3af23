// OffloadWorker: runs one offload route, from a tier to one below it.
//
// Blocks are offered by hash, pass the policy, wait for their precondition and then in the queue
// (offload_queue.h), and are copied in batches on the worker's thread: when enough of them are on deck, or
// the oldest has waited long enough. Blocks that have arrived can be offered to the next worker. Offering a
// block that is already queued or in flight joins it: nothing is copied twice.
//
// Thread safety: thread-safe. Destruction drops queued blocks and waits for the batches in flight.
// Invariant:     see check_invariants().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/fence.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tiers/offload_options.h"
#include "tiers/offload/offload_queue.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

struct OffloadWorkerLink;

class OffloadWorker {
 public:
  // Starts copying blocks to the lower tier; the returned function is called once and completes the move. A
  // batch is completed while the next one is copied, so batches arrive in order. The control lives until
  // then, and the worker may cancel it at any time. The deadline is in the worker's clock.
  using Finish = std::function<MoveReport()>;
  using Begin = std::function<Finish(std::vector<block::Hold>, const MoveOptions&)>;
  // Called for each block that has arrived in the lower tier, with the priority it was offloaded at.
  using Arrived = std::function<void(const tokens::SequenceHash&, std::uint8_t priority)>;

  // Pools outlive the worker. `begin` and `arrived` run on the worker's thread. Errors: kInvalidArgument;
  // kCapacity: no thread.
  static Result<std::unique_ptr<OffloadWorker>> create(TierPool& from, TierPool& to, Begin begin,
                                                       OffloadWorkerOptions options, Arrived arrived = {});
  ~OffloadWorker();

  // `also`: further preconditions. Requires: 0, 1 or `hashes.size()` preconditions.
  OffloadHandle offload(std::span<const tokens::SequenceHash> hashes, const OffloadOptions& options,
                        std::span<const block::Fence> also = {});
  OffloadHandle offload(std::span<const tokens::SequenceHash> hashes, std::uint8_t priority) {
    return offload(hashes, OffloadOptions{.priority = priority});
  }
  // The same without a handle: the blocks are offered permanently and cost only their place in the queue. A
  // block that waits for a precondition is kept once, however often it is suggested. Requires: as offload().
  void suggest(std::span<const tokens::SequenceHash> hashes, std::uint8_t priority,
               std::span<const block::Fence> after = {});
  // Starts queued blocks at once and waits until none is queued or in flight. Blocks that wait for a
  // precondition stay. False when `until` passed first.
  bool drain(std::optional<Clock::TimePoint> until = {});
  // How withdraw() treats copies in flight.
  enum class Started : std::uint8_t { kFinish, kStop };
  // Drops queued blocks, and either waits for copies in flight or stops their batches and re-offers the other
  // blocks of those batches. Calls for dropped blocks end as cancelled. On return the worker holds none of
  // the blocks, except those offered concurrently.
  void withdraw(std::span<const tokens::SequenceHash> hashes, Started started = Started::kFinish);
  // Drops every block that has not started. Returns their number.
  std::size_t drop_queued();
  OffloadCounters counters() const;
  // For tests: stops the process unless calls, blocked blocks, batches and queue agree. O(blocks known here).
  // Safe at any time.
  void check_invariants() const;

 private:
  // A block whose preconditions have not passed.
  struct Blocked {
    std::uint8_t priority = 0;
    bool permanently = false;
    std::vector<std::pair<const OffloadCall*, block::Fence>> after =
        {};  // with the call each belongs to; null: the block's own

    bool passed() const;
  };

  OffloadWorker(TierPool& from, TierPool& to, Begin begin, OffloadWorkerOptions options, Arrived arrived);
  void run();
  // Waits until a batch is due. False when the worker is stopping, or when `wait` is false and no batch is
  // due.
  bool wait_for_batch(bool wait);
  // When the next batch is due; empty: not before the state changes.
  std::optional<Clock::TimePoint> next_batch() ASHLAR_REQUIRES(mu_);
  // Offers blocks whose preconditions have passed.
  void unblock();
  void offer(const tokens::SequenceHash& hash, std::uint8_t priority, bool permanently = false);
  // Wakes the worker's thread after an offer.
  void wake();
  void wake_when_passed(const block::Fence& fence);
  struct Member {
    tokens::SequenceHash hash;
    std::uint8_t priority = 0;
    bool permanently = false;
  };
  // A batch in flight.
  struct Batch {
    std::vector<Member> members;
    std::optional<Clock::TimePoint> deadline;  // after it no call wants any block
    MoveControl control;
    Finish finish;
  };
  std::shared_ptr<Batch> begin(std::vector<OffloadQueue::Item> items);
  void finish(const std::shared_ptr<Batch>& batch);
  // The highest priority among the calls that want the hash.
  std::optional<std::uint8_t> wanted_by(const tokens::SequenceHash& hash) const ASHLAR_REQUIRES(mu_);
  // True when no call wants any block of the batch.
  bool unwanted(const Batch& batch) const ASHLAR_REQUIRES(mu_);
  // Handles a block whose copy was stopped: re-offers it if it is still wanted.
  void stopped(const Member& member);
  struct Ended {
    tokens::SequenceHash hash;
    std::size_t OffloadProgress::* outcome;
  };
  // Notifies the waiting calls. `error` applies to the blocks that failed.
  void end(std::span<const Ended> ended, const std::optional<Error>& error);
  void end(const tokens::SequenceHash& hash, std::size_t OffloadProgress::* outcome,
           const std::optional<Error>& error);
  // Ends a hash for one call.
  void tell(const std::shared_ptr<OffloadCall>& call, const tokens::SequenceHash& hash,
            std::size_t OffloadProgress::* outcome, const std::optional<Error>& error);
  // Ends this hash for a call that was abandoned (OffloadCall::abandoned()).
  void forget(const tokens::SequenceHash& hash, const std::shared_ptr<OffloadCall>& call);
  // Drops the preconditions of one call, or of all calls.
  void leave_blocked(const tokens::SequenceHash& hash, const OffloadCall* call) ASHLAR_REQUIRES(mu_);
  // A hash in transition between two places has reached one of them.
  void arrived_somewhere(const tokens::SequenceHash& hash);
  // Removes a hash that no call wants and that was not offered permanently, or stops its batch if this holds
  // for every block in it.
  void drop_unwanted(const tokens::SequenceHash& hash);
  // Ends the calls whose deadline has passed.
  void expire();

  TierPool& to_;
  const Begin begin_;
  const OffloadWorkerOptions options_;
  const Arrived arrived_;
  Clock& clock_;
  const std::shared_ptr<OffloadWorkerLink> link_;
  const std::size_t largest_batch_;
  std::unique_ptr<OffloadQueue> queue_;

  mutable Mutex mu_;
  CondVar changed_;
  // Calls that wait for the outcome of a hash.
  std::unordered_map<tokens::SequenceHash, std::vector<std::shared_ptr<OffloadCall>>> calls_
      ASHLAR_GUARDED_BY(mu_);
  std::unordered_map<tokens::SequenceHash, Blocked> blocked_ ASHLAR_GUARDED_BY(mu_);
  std::unordered_multiset<tokens::SequenceHash> between_
      ASHLAR_GUARDED_BY(mu_);                                           // neither blocked nor in the queue
  std::vector<std::shared_ptr<Batch>> batches_ ASHLAR_GUARDED_BY(mu_);  // in flight
  std::unordered_multiset<tokens::SequenceHash> withdrawn_
      ASHLAR_GUARDED_BY(mu_);  // stopped copies of these are not re-offered
  std::set<std::pair<Clock::TimePoint, std::shared_ptr<OffloadCall>>> deadlines_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Clock::TimePoint> oldest_ ASHLAR_GUARDED_BY(mu_);  // when the oldest queued block was offered
  Clock::TimePoint not_before_ ASHLAR_GUARDED_BY(mu_) = {};        // the budget is spent until then
  std::size_t flushers_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool moving_ ASHLAR_GUARDED_BY(mu_) = false;
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  OffloadCounters counters_ ASHLAR_GUARDED_BY(mu_);
  std::thread thread_;

  friend class OffloadHandle;
};

}  // namespace ashlar::tiers
