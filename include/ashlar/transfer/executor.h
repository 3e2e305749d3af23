// Executor: runs transfer plans between certain kinds of storage.
//
// submit() takes a request in, waits for room where the queue is full, and returns at once otherwise. Limits
// bound what is in flight, so a caller that is faster than the device is slowed down and never fills memory.
//
// Transfers of one executor are not ordered among each other.
//
// Thread safety: thread-safe. Destruction cancels what has not started, sends away those who wait in
// submit(), and waits for
//                what runs; it must not happen on a thread of the executor, that is in a callback.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/base/storage_kind.h"
#include "ashlar/transfer/transfer.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::transfer {

struct TransferRequest {
  TransferPlan plan;
  // Held until the transfer is done: the guards of the blocks.
  std::shared_ptr<const void> owned = {};
  std::optional<Clock::TimePoint> deadline = {};
  // False: a full queue is an error at once. True: submit() waits for room, at most until the deadline; not
  // in a callback.
  bool wait_for_room = true;
  std::function<void(const TransferResult&)> on_done = {};
};

// What may be in flight. A transfer that is larger than `bytes` runs alone.
struct QueueLimits {
  std::uint32_t transfers = 1024;
  std::uint64_t bytes = std::uint64_t{1} << 30;

  // Errors: kInvalidArgument: a limit of 0.
  Result<void> validate() const;
};

// Largest part of a piece that is moved as one operation.
inline constexpr std::uint64_t kMaxStripBytes = std::uint64_t{1} << 30;

// What an executor has done so far.
struct ExecutorCounters {
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;     // neither completed nor cancelled nor late
  std::uint64_t cancelled = 0;  // also by their deadline
  std::uint64_t refused = 0;    // no room
  std::uint64_t bytes = 0;      // of completed transfers
  std::uint64_t in_flight = 0;
  std::uint64_t in_flight_bytes = 0;
};

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

// Errors: kUnsupported, naming both kinds of storage, when the executor does not handle them;
// kInvalidArgument: a plan that plan() did not make.
Result<void> check_handles(const Executor& executor, const TransferPlan& plan);

}  // namespace ashlar::transfer
