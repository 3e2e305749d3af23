#include "ashlar/base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace ashlar {
namespace {

TEST(MutexTest, LetsOneThreadInAtATime) {
  Mutex mu;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        const MutexLock lock(mu);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(MutexTest, TryLockFailsWhileAnotherHoldsIt) {
  Mutex mu;
  bool taken = true;
  mu.lock();
  std::thread([&] {
    const bool got = mu.try_lock();
    if (got) mu.unlock();
    taken = got;
  }).join();
  mu.unlock();
  EXPECT_FALSE(taken);
  const bool free = mu.try_lock();
  EXPECT_TRUE(free);
  if (free) mu.unlock();
}

TEST(MutexTest, LockReleasedEarlyIsNotReleasedTwice) {
  Mutex mu;
  {
    MutexLock lock(mu);
    lock.unlock();
    const bool free = mu.try_lock();
    EXPECT_TRUE(free);
    if (free) mu.unlock();
  }
  const bool free = mu.try_lock();
  EXPECT_TRUE(free);
  if (free) mu.unlock();
}

TEST(CondVarTest, WaitEndsWhenNotified) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  bool answered = false;
  std::thread other([&] {
    const MutexLock lock(mu);
    while (!ready) changed.wait(mu);
    answered = true;
    changed.notify_all();
  });
  {
    const MutexLock lock(mu);
    ready = true;
    changed.notify_one();
    while (!answered) changed.wait(mu);
  }
  other.join();
  EXPECT_TRUE(answered);
}

TEST(CondVarTest, WaitUntilAPastMomentReportsThatItPassed) {
  Mutex mu;
  CondVar never;
  const MutexLock lock(mu);
  const auto past = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_FALSE(never.wait_until(mu, past));
}

TEST(CondVarTest, WaitUntilHoldsTheMutexAgainAfterwards) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::thread other([&] {
    const MutexLock lock(mu);
    ready = true;
    changed.notify_all();
  });
  {
    const MutexLock lock(mu);
    const auto far = std::chrono::steady_clock::now() + std::chrono::hours(1);
    while (!ready) EXPECT_TRUE(changed.wait_until(mu, far));
  }
  other.join();
  EXPECT_TRUE(ready);
}

}  // namespace
}  // namespace ashlar
