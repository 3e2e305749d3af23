// Admission: bounds the bytes an executor has in flight, and queues callers that wait for room.
//
// First come, first served: a large transfer waits at the head of the queue until it fits, so small ones
// cannot starve it.
//
// Thread safety: thread-safe. Runs no callback under its lock.
// Invariant:     the bytes in flight stay within the limits, except that one larger transfer runs alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::transfer {

enum class TransferOutcome : std::uint8_t { kCompleted, kFailed, kCancelled };

class Admission {
 public:
  Admission(const QueueLimits& limits, Clock& clock) : limits_(limits), clock_(clock) {}

  // While it lives, callbacks of this executor's transfers run on this thread: enter() does not wait here,
  // because the completion it would wait for may have to come from this thread.
  class CallbackScope {
   public:
    explicit CallbackScope(const Admission* admission) noexcept;
    ~CallbackScope();
    CallbackScope(const CallbackScope&) = delete;
    CallbackScope& operator=(const CallbackScope&) = delete;

   private:
    const Admission* before_;
  };

  // Errors: kCapacity: no room and `wait` is false; kTimeout: no room before the deadline; kCancelled:
  // closed.
  Result<void> enter(std::uint64_t bytes, bool wait, std::optional<Clock::TimePoint> deadline);
  void leave(std::uint64_t bytes, TransferOutcome outcome);

  // Records a cancel of a transfer in flight; executors then scan their queues.
  void note_cancel() noexcept { cancels_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: seen soon
  std::uint64_t cancels() const noexcept { return cancels_.load(std::memory_order_relaxed); }

  // Admits no more callers; waiting ones get kCancelled.
  void close();
  // Waits until nothing is in flight.
  void wait_empty();
  ExecutorCounters counters() const;
  Clock& clock() const noexcept { return clock_; }

 private:
  bool fits(std::uint64_t bytes) const ASHLAR_REQUIRES(mu_);

  const QueueLimits limits_;
  Clock& clock_;
  std::atomic<std::uint64_t> cancels_{0};
  mutable Mutex mu_;
  CondVar changed_;
  ExecutorCounters counters_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::uint64_t> line_ ASHLAR_GUARDED_BY(mu_);  // tickets of waiting callers
  std::uint64_t next_ticket_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool closed_ ASHLAR_GUARDED_BY(mu_) = false;
};

}  // namespace ashlar::transfer
