// TransferState: the executor's view of a transfer.
//
// The executor calls start() before its first operation, may_continue() before each further one, reports with
// moved() and fail(), and calls finish() once, when every operation it started has ended. finish() releases
// the block sets and the request's resources, makes room in the queue, and then notifies waiters: a notified
// waiter finds everything released.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/block/fence.h"
#include "ashlar/transfer/executor.h"
#include "transfer/copy/admission.h"

namespace ashlar::transfer {

class TransferState {
 public:
  // Waits for room. Errors: those of Admission::enter().
  static Result<std::shared_ptr<TransferState>> admit(TransferRequest request, Admission& admission);

  TransferState(TransferRequest request, Admission& admission);

  // For the executor. The plan lives until finish().
  const TransferPlan& plan() const noexcept { return request_.plan; }
  void start();
  // False once it failed, was cancelled, or its deadline has passed.
  bool may_continue();
  void moved(const TransferStats& part);
  // The first error is the one reported.
  void fail(Error error);
  void finish();
  // A transfer that is part of this one; cancel() cancels it too. Replaces the previous one.
  void set_part(std::optional<Transfer> part);
  std::optional<Clock::TimePoint> deadline() const noexcept { return deadline_; }

  // For the handle.
  bool done() const;
  TransferResult wait(std::optional<Clock::TimePoint> when, bool heed_deadline);
  void cancel();
  void on_done(std::function<void(const TransferResult&)> callback);
  block::Fence fence() const { return fence_.first; }
  // relaxed: a recent number
  std::uint64_t bytes_done() const noexcept { return bytes_done_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_total() const noexcept { return bytes_total_; }

 private:
  TransferResult judge() ASHLAR_REQUIRES(mu_);

  TransferRequest request_;
  Admission& admission_;  // not used after finish()
  Clock& clock_;
  const std::optional<Clock::TimePoint> deadline_;
  const std::uint64_t bytes_total_;
  const Clock::TimePoint submitted_;
  std::atomic<std::uint64_t> bytes_done_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> failed_{false};

  mutable Mutex mu_;
  CondVar ended_;
  std::optional<Clock::TimePoint> started_ ASHLAR_GUARDED_BY(mu_);
  TransferStats stats_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Error> error_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Transfer> part_ ASHLAR_GUARDED_BY(mu_);
  bool left_ ASHLAR_GUARDED_BY(mu_) = false;  // the executor may be destroyed
  std::optional<TransferResult> result_ ASHLAR_GUARDED_BY(mu_);
  std::vector<std::function<void(const TransferResult&)>> callbacks_ ASHLAR_GUARDED_BY(mu_);
  std::pair<block::Fence, block::FenceSignal> fence_;
};

}  // namespace ashlar::transfer
