// Executor: runs transfer plans between certain kinds of storage. Transfer: a handle to one running copy.
//
// submit() queues a request. It returns at once while there is room, and blocks while the queue is full.
// Limits bound what is in flight, so a caller that is faster than the device is slowed down and never fills
// memory. Transfers of one executor are not ordered among each other.
//
// A transfer is done only when the device or the kernel has reported the end of every operation it started.
// Until then it owns both block sets and whatever its request gave it to own. A deadline or a cancel ends the
// waiting and keeps further operations from starting; it never interrupts a running one. Done means that the
// bytes are in place, not that a disk has persisted them: that is DiskStorage::sync().
//
// Thread safety: thread-safe. Destroying an executor cancels what has not started, fails callers blocked in
//                submit() and waits for what runs; it must not happen on a thread of the executor, that is in
//                a callback. Callbacks run once, outside every lock, on the thread that saw the end or on the
//                one that registers too late; for small copies that is inside submit(). They must not wait
//                for other transfers of the same executor, nor drop its last reference. They may submit: a
//                full queue refuses them at once.
// Invariant:     what was admitted never exceeds QueueLimits, except that one larger transfer runs alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/base/storage_kind.h"
#include "ashlar/block/fence.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::transfer {

class TransferState;

// What a transfer did. Complete once it is done.
struct TransferStats {
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;    // copies, reads, writes, launches
  std::uint64_t continued = 0;     // operations that ended short and were resumed
  std::uint64_t direct_bytes = 0;  // that bypassed the page cache
  std::uint64_t staged_bytes = 0;  // that went through a staging buffer
  Clock::Duration queued = {};     // from submission to the first operation
  Clock::Duration running = {};    // from there to the end
};

// Proof that every byte was moved, as registration requires it. Only a transfer makes one.
class TransferDone {
 public:
  block::KvReady kv_ready() const noexcept { return block::KvReady::asserted_by_caller(); }

  TransferStats stats;

 private:
  friend class TransferState;
  explicit TransferDone(const TransferStats& its_stats) : stats(its_stats) {}
};

using TransferResult = Result<TransferDone>;

// Transfer: a handle to one running copy. Copies of it refer to the same transfer; dropping all of them does
// not cancel it.
//
// Thread safety: thread-safe.
class Transfer {
 public:
  explicit Transfer(std::shared_ptr<TransferState> state) noexcept : state_(std::move(state)) {}

  bool done() const;
  // Waits for the end, for cancel(), or for the deadline of the request. Errors: kTimeout and kCancelled,
  // after which the transfer may still run (see done()); the failure of the transfer. After an error the
  // destination blocks are undefined; the source is unchanged.
  TransferResult wait() const;
  // The same, but no longer than until `when`.
  TransferResult wait_until(Clock::TimePoint when) const;
  // Waits until the transfer is done, however late: for callers that must reuse its memory.
  TransferResult wait_for_end() const;
  // Starts no further operation and ends all waits. The transfer is done soon, with kCancelled unless all its
  // operations had started.
  void cancel() const;
  // Runs `callback` when the transfer is done; at once if it is.
  void on_done(std::function<void(const TransferResult&)> callback) const;
  // Passes when the transfer has succeeded, and fails when it is done otherwise.
  block::Fence fence() const;
  // Bytes whose copies have ended.
  std::uint64_t bytes_done() const;
  std::uint64_t bytes_total() const;

 private:
  std::shared_ptr<TransferState> state_;
};

struct TransferRequest {
  TransferPlan plan;
  // Kept until the transfer is done, for example the guards of the blocks.
  std::shared_ptr<const void> owned = {};
  std::optional<Clock::TimePoint> deadline = {};
  // False: a full queue refuses the request at once. True: submit() waits for room, at most until the
  // deadline; never in a callback.
  bool wait_for_room = true;
  std::function<void(const TransferResult&)> on_done = {};
};

// What may be in flight in one executor. A transfer larger than `bytes` runs alone.
struct QueueLimits {
  std::uint32_t transfers = 1024;
  std::uint64_t bytes = std::uint64_t{1} << 30;

  // Errors: kInvalidArgument: a limit of 0.
  Result<void> validate() const;
};

// Largest strip of a piece that is moved as one operation.
inline constexpr std::uint64_t kMaxStripBytes = std::uint64_t{1} << 30;

// What an executor has done so far; consistent with each other.
struct ExecutorCounters {
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;     // ended with an error of their own
  std::uint64_t cancelled = 0;  // or late
  std::uint64_t refused = 0;    // no room
  std::uint64_t bytes = 0;      // of completed transfers
  std::uint64_t in_flight = 0;
  std::uint64_t in_flight_bytes = 0;
};

// Executor: see the top of this file. The library brings MemcpyExecutor and FileExecutor (host_executors.h)
// and TransferEngine, which combines executors.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual bool handles(const BlockSet& from, const BlockSet& to) const noexcept = 0;
  // Errors: kUnsupported: kinds of storage it does not handle; kCapacity: no room now, with the numbers;
  // kTimeout: none until the deadline; kCancelled: the executor is being destroyed; kInvalidArgument: an
  // empty plan. A request that was refused has no effect, and its callback is not called.
  virtual Result<Transfer> submit(TransferRequest request) = 0;
  virtual ExecutorCounters counters() const = 0;
};

// For implementations of submit(). Errors: kUnsupported, with both kinds of storage, when the executor does
// not handle them; kInvalidArgument: an empty plan, or a target that its owner offers for reading only.
Result<void> check_handles(const Executor& executor, const TransferPlan& plan);

}  // namespace ashlar::transfer
