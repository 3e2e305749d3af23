// Clock: the source of time, so that tests control it.
//
// Clock::real() follows the machine's steady clock. ManualClock stands still until a test moves it, and wakes
// every thread whose deadline has come.
//
// Thread safety: thread-safe.
// Complexity:    now() is one read of the clock; ManualClock::advance() is O(waiters).
// Invariant:     time never goes back.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "ashlar/base/mutex.h"

namespace ashlar {

class Clock {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

  virtual ~Clock() = default;

  // The current time. Never less than any thread has read before.
  virtual TimePoint now() const = 0;
  // Waits on `condition` until it is notified or `deadline` passes; spurious wake-ups happen. Callers loop.
  virtual void wait_until(CondVar& condition, Mutex& mutex, TimePoint deadline) ASHLAR_REQUIRES(mutex) = 0;

  // The machine's steady clock; never destroyed.
  static Clock& real();
};

// A clock that moves only when told to. Must outlive everything that waits on it.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(TimePoint start = TimePoint(std::chrono::seconds(1))) : now_(start) {}

  TimePoint now() const override;
  void wait_until(CondVar& condition, Mutex& mutex, TimePoint deadline) override ASHLAR_REQUIRES(mutex);

  // Moves time forward and wakes every waiter, so that it checks the clock again.
  void advance(Duration by);
  // The number of threads waiting on this clock.
  std::size_t waiters() const;

 private:
  mutable Mutex mu_;
  TimePoint now_ ASHLAR_GUARDED_BY(mu_);
  std::vector<CondVar*> waiters_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar
