#include "base/spin_lock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/scoped_hold.h"

namespace ashlar {
namespace {

TEST(SpinLockTest, OneAtATime) {
  SpinLock lock;
  std::uint64_t count = 0;  // a race here is seen by its sum, and by ThreadSanitizer
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const ExclusiveHold hold(lock);
        ++count;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80'000u);
}

TEST(SpinLockTest, WhoWaitsForLongGetsItInTheEnd) {
  SpinLock lock;
  bool held = true;
  lock.lock();
  std::thread waiter([&] {
    const ExclusiveHold hold(lock);
    EXPECT_FALSE(held);
  });
  // Long enough for it to spin, to yield and to sleep; the test holds however long it takes.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  held = false;
  lock.unlock();
  waiter.join();
}

}  // namespace
}  // namespace ashlar
