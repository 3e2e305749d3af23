#include "transfer/copy/transfer_state.h"

#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::transfer {

Result<std::shared_ptr<TransferState>> TransferState::admit(TransferRequest request, Admission& admission) {
  const Clock::TimePoint asked = admission.clock().now();
  if (request.deadline && *request.deadline <= asked)
    return make_error(ErrorCode::kTimeout, "the deadline had passed before the transfer was submitted");
  ASHLAR_RETURN_IF_ERROR(admission.enter(request.plan.bytes(), request.wait_for_room, request.deadline));
  return std::make_shared<TransferState>(std::move(request), admission);
}

TransferState::TransferState(TransferRequest request, Admission& admission)
    : request_(std::move(request)),
      admission_(admission),
      clock_(admission.clock()),
      deadline_(request_.deadline),
      bytes_total_(request_.plan.bytes()),
      submitted_(clock_.now()),
      fence_(block::Fence::create()) {
  if (request_.on_done) callbacks_.push_back(std::move(request_.on_done));
}

void TransferState::start() {
  const MutexLock lock(mu_);
  ASHLAR_DCHECK(!left_, "an operation starts after its transfer has finished");
  if (!started_) started_ = clock_.now();
}

void TransferState::cancel() {
  std::optional<Transfer> part;
  {
    const MutexLock lock(mu_);
    cancelled_.store(true, std::memory_order_relaxed);  // relaxed: a request, seen soon
    if (!left_) admission_.note_cancel();
    part = part_;
    ended_.notify_all();
  }
  if (part) part->cancel();
}

void TransferState::set_part(std::optional<Transfer> part) {
  bool late = false;
  {
    const MutexLock lock(mu_);
    part_ = part;
    late = cancelled_.load(std::memory_order_relaxed);  // relaxed: written under the lock
  }
  if (late && part) part->cancel();
}

bool TransferState::may_continue() {
  // relaxed: each flag is independent; the error is read under the lock
  if (failed_.load(std::memory_order_relaxed) || cancelled_.load(std::memory_order_relaxed)) return false;
  return !deadline_ || clock_.now() < *deadline_;
}

void TransferState::moved(const TransferStats& part) {
  bytes_done_.fetch_add(part.bytes,
                        std::memory_order_relaxed);  // relaxed: read after every adder has ended
  const MutexLock lock(mu_);
  stats_.bytes += part.bytes;
  ASHLAR_CHECK(stats_.bytes <= bytes_total_, "%llu bytes were moved for a plan of %llu",
               static_cast<unsigned long long>(stats_.bytes), static_cast<unsigned long long>(bytes_total_));
  stats_.operations += part.operations;
  stats_.continued += part.continued;
  stats_.direct_bytes += part.direct_bytes;
  stats_.staged_bytes += part.staged_bytes;
}

void TransferState::fail(Error error) {
  const MutexLock lock(mu_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_relaxed);  // relaxed: only stops further operations
}

TransferResult TransferState::judge() {
  if (error_) return *error_;
  if (stats_.bytes == bytes_total_) {
    const Clock::TimePoint now = clock_.now();
    stats_.queued = started_.value_or(now) - submitted_;
    stats_.running = now - started_.value_or(now);
    return TransferDone(stats_);
  }
  const auto moved = static_cast<unsigned long long>(stats_.bytes);
  const auto total = static_cast<unsigned long long>(bytes_total_);
  if (cancelled_.load(std::memory_order_relaxed))  // relaxed: as in may_continue()
    return make_error(ErrorCode::kCancelled, "cancelled after %llu of %llu bytes", moved, total);
  if (deadline_ && clock_.now() >= *deadline_)
    return make_error(ErrorCode::kTimeout, "the deadline passed after %llu of %llu bytes", moved, total);
  return make_error(ErrorCode::kInternal, "%llu of %llu bytes were moved, and no error was reported", moved,
                    total);
}

void TransferState::finish() {
  std::optional<TransferResult> result;
  {
    const MutexLock lock(mu_);
    ASHLAR_CHECK(!left_, "a transfer is finished twice");
    result = judge();
    part_.reset();
    left_ = true;
  }
  request_.owned.reset();
  request_.plan = TransferPlan();
  const TransferOutcome outcome =
      *result ? TransferOutcome::kCompleted
      : result->error().code() == ErrorCode::kCancelled || result->error().code() == ErrorCode::kTimeout
          ? TransferOutcome::kCancelled
          : TransferOutcome::kFailed;
  const Admission* admission = &admission_;
  admission_.leave(bytes_total_, outcome);
  const Admission::CallbackScope scope(admission);
  if (*result) {
    std::move(fence_.second).signal();
  } else {
    std::move(fence_.second).fail();
  }
  std::vector<std::function<void(const TransferResult&)>> callbacks;
  {
    const MutexLock lock(mu_);
    result_ = result;
    callbacks.swap(callbacks_);
    ended_.notify_all();
  }
  for (const auto& callback : callbacks) callback(*result);
}

bool TransferState::done() const {
  const MutexLock lock(mu_);
  return result_.has_value();
}

TransferResult TransferState::wait(std::optional<Clock::TimePoint> when, bool heed_deadline) {
  if (heed_deadline && deadline_ && (!when || *deadline_ < *when)) when = deadline_;
  const MutexLock lock(mu_);
  while (!result_) {
    // relaxed: written under the lock
    if (heed_deadline && cancelled_.load(std::memory_order_relaxed))
      return make_error(
          ErrorCode::kCancelled, "cancelled; started operations still run: %llu of %llu bytes are moved",
          static_cast<unsigned long long>(stats_.bytes), static_cast<unsigned long long>(bytes_total_));
    if (when && clock_.now() >= *when)
      return make_error(ErrorCode::kTimeout, "the transfer still runs: %llu of %llu bytes are moved",
                        static_cast<unsigned long long>(stats_.bytes),
                        static_cast<unsigned long long>(bytes_total_));
    if (when) {
      clock_.wait_until(ended_, mu_, *when);
    } else {
      ended_.wait(mu_);
    }
  }
  return *result_;
}

void TransferState::on_done(std::function<void(const TransferResult&)> callback) {
  if (!callback) return;
  {
    const MutexLock lock(mu_);
    if (!result_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(wait({}, false));
}

}  // namespace ashlar::transfer
