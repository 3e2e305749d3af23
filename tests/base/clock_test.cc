#include "ashlar/base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace ashlar {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(RealClockTest, NeverGoesBack) {
  Clock& clock = Clock::real();
  EXPECT_EQ(&clock, &Clock::real());
  const Clock::TimePoint first = clock.now();
  EXPECT_LE(first, clock.now());
}

TEST(RealClockTest, WaitEndsAtItsDeadline) {
  Clock& clock = Clock::real();
  Mutex mu;
  CondVar never;
  const MutexLock lock(mu);
  const Clock::TimePoint deadline = clock.now() + milliseconds(2);
  while (clock.now() < deadline) clock.wait_until(never, mu, deadline);
  EXPECT_GE(clock.now(), deadline);
}

TEST(ManualClockTest, MovesOnlyWhenTold) {
  ManualClock clock;
  const Clock::TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(seconds(3));
  EXPECT_EQ(clock.now(), start + seconds(3));
}

TEST(ManualClockTest, StartsWhereTold) {
  const Clock::TimePoint start(hours(5));
  EXPECT_EQ(ManualClock(start).now(), start);
}

TEST(ManualClockTest, WaitForAMomentThatHasComeReturnsAtOnce) {
  ManualClock clock;
  Mutex mu;
  CondVar never;
  const MutexLock lock(mu);
  clock.wait_until(never, mu, clock.now());
  EXPECT_EQ(clock.waiters(), 0U);
}

TEST(ManualClockTest, AdvanceToTheDeadlineWakesTheWaiter) {
  ManualClock clock;
  const Clock::TimePoint deadline = clock.now() + hours(1);
  std::thread waiter([&] {
    Mutex mu;
    CondVar never;
    const MutexLock lock(mu);
    while (clock.now() < deadline) clock.wait_until(never, mu, deadline);
  });
  while (clock.waiters() == 0) std::this_thread::yield();
  clock.advance(minutes(30));
  EXPECT_LT(clock.now(), deadline);
  clock.advance(minutes(30));
  waiter.join();
  EXPECT_EQ(clock.now(), deadline);
  EXPECT_EQ(clock.waiters(), 0U);
}

TEST(ManualClockTest, NotificationWakesTheWaiterBeforeItsDeadline) {
  ManualClock clock;
  const Clock::TimePoint start = clock.now();
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::thread waiter([&] {
    const MutexLock lock(mu);
    while (!ready) clock.wait_until(changed, mu, start + hours(1));
  });
  while (clock.waiters() == 0) std::this_thread::yield();
  {
    const MutexLock lock(mu);
    ready = true;
    changed.notify_all();
  }
  waiter.join();
  EXPECT_EQ(clock.now(), start);
}

TEST(ManualClockTest, OneAdvanceWakesEveryWaiterThatIsDue) {
  ManualClock clock;
  const Clock::TimePoint deadline = clock.now() + seconds(1);
  Mutex mu;
  CondVar shared;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      const MutexLock lock(mu);
      while (clock.now() < deadline) clock.wait_until(shared, mu, deadline);
    });
  }
  while (clock.waiters() == 0) std::this_thread::yield();
  clock.advance(seconds(1));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(clock.waiters(), 0U);
}

}  // namespace
}  // namespace ashlar
