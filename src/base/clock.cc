#include "ashlar/base/clock.h"

#include <algorithm>

namespace ashlar {
namespace {

class RealClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  void wait_until(CondVar& condition, Mutex& mutex, TimePoint deadline) override ASHLAR_REQUIRES(mutex) {
    condition.wait_until(mutex, deadline);
  }
};

}  // namespace

Clock& Clock::real() {
  static RealClock& clock = *new RealClock;  // never destroyed: threads may outlive main()
  return clock;
}

Clock::TimePoint ManualClock::now() const {
  const MutexLock lock(mu_);
  return now_;
}

// A waiter stays listed while it sleeps, and leaves the list under mu_, so advance() notifies only live
// condition variables. A notification may fall between the waiter's check of the clock and its sleep; the
// short real-time slice bounds that delay.
void ManualClock::wait_until(CondVar& condition, Mutex& mutex, TimePoint deadline) {
  {
    const MutexLock lock(mu_);
    if (now_ >= deadline) return;
    waiters_.push_back(&condition);
  }
  condition.wait_until(mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  const MutexLock lock(mu_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &condition));
}

void ManualClock::advance(Duration by) {
  const MutexLock lock(mu_);
  now_ += by;
  for (CondVar* condition : waiters_) condition->notify_all();
}

std::size_t ManualClock::waiters() const {
  const MutexLock lock(mu_);
  return waiters_.size();
}

}  // namespace ashlar
