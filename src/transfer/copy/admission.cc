#include "transfer/copy/admission.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::transfer {

namespace {
thread_local const Admission* calling_back = nullptr;
}  // namespace

Admission::CallbackScope::CallbackScope(const Admission* admission) noexcept : before_(calling_back) {
  calling_back = admission;
}
Admission::CallbackScope::~CallbackScope() {
  calling_back = before_;
}

Result<void> QueueLimits::validate() const {
  if (transfers == 0 || bytes == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "limits of %u transfers and %llu bytes let nothing through", transfers,
                      static_cast<unsigned long long>(bytes));
  return {};
}

bool Admission::fits(std::uint64_t bytes) const {
  if (counters_.in_flight == 0) return true;
  return counters_.in_flight < limits_.transfers && counters_.in_flight_bytes <= limits_.bytes &&
         bytes <= limits_.bytes - counters_.in_flight_bytes;
}

Result<void> Admission::enter(std::uint64_t bytes, bool wait, std::optional<Clock::TimePoint> deadline) {
  if (calling_back == this) wait = false;
  const MutexLock lock(mu_);
  const std::uint64_t ticket = next_ticket_++;
  line_.push_back(ticket);
  while (!closed_ && (line_.front() != ticket || !fits(bytes))) {
    const bool late = deadline && clock_.now() >= *deadline;
    if (!wait || late) {
      std::erase(line_, ticket);
      changed_.notify_all();
      ++counters_.refused;
      return make_error(
          late ? ErrorCode::kTimeout : ErrorCode::kCapacity,
          "no room for %llu bytes: %llu transfers with %llu bytes are in flight, the limits are %u and "
          "%llu; %zu wait",
          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(counters_.in_flight),
          static_cast<unsigned long long>(counters_.in_flight_bytes), limits_.transfers,
          static_cast<unsigned long long>(limits_.bytes), line_.size());
    }
    if (deadline) {
      clock_.wait_until(changed_, mu_, *deadline);
    } else {
      changed_.wait(mu_);
    }
  }
  std::erase(line_, ticket);
  changed_.notify_all();
  if (closed_) return make_error(ErrorCode::kCancelled, "the executor is shutting down");
  ASHLAR_DCHECK(fits(bytes), "a transfer of %llu bytes was admitted over the limits",
                static_cast<unsigned long long>(bytes));
  ++counters_.submitted;
  ++counters_.in_flight;
  counters_.in_flight_bytes += bytes;
  return {};
}

void Admission::leave(std::uint64_t bytes, TransferOutcome outcome) {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(counters_.in_flight != 0 && counters_.in_flight_bytes >= bytes,
               "a transfer of %llu bytes leaves an executor that it never entered",
               static_cast<unsigned long long>(bytes));
  --counters_.in_flight;
  counters_.in_flight_bytes -= bytes;
  switch (outcome) {
    case TransferOutcome::kCompleted:
      ++counters_.completed;
      counters_.bytes += bytes;
      break;
    case TransferOutcome::kFailed:
      ++counters_.failed;
      break;
    case TransferOutcome::kCancelled:
      ++counters_.cancelled;
      break;
  }
  changed_.notify_all();
}

void Admission::close() {
  const MutexLock lock(mu_);
  closed_ = true;
  changed_.notify_all();
}

void Admission::wait_empty() {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(closed_, "waits for an executor to run empty while it still admits transfers");
  while (counters_.in_flight != 0 || !line_.empty()) changed_.wait(mu_);
}

ExecutorCounters Admission::counters() const {
  const MutexLock lock(mu_);
  return counters_;
}

}  // namespace ashlar::transfer
