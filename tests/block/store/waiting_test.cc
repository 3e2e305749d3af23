// Allocations that wait: first come, first served, deadlines, and everything that must wake them.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <optional>
#include <stop_token>
#include <thread>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

using Waited = Result<BlockList<Mutable>, AllocationRefusal>;

void await_waiters(Manager& manager, std::size_t n) {
  while (manager.status().waiters != n) std::this_thread::yield();
}

std::future<Waited> wait_for_blocks(Manager& manager, std::size_t n, Clock::TimePoint deadline) {
  return std::async(std::launch::async,
                    [&manager, n, deadline] { return manager.try_allocate_until(n, deadline); });
}

bool is_waiting(std::future<Waited>& future) {
  return future.wait_for(0s) != std::future_status::ready;
}

class WaitingTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  Manager manager_ = value_of(builder_of(4).clock(clock_).max_pins(4).build());
  Clock::TimePoint in(Clock::Duration time) const { return clock_.now() + time; }
};

TEST_F(WaitingTest, TakesAtOnceWhatIsThereEvenAfterTheDeadline) {
  EXPECT_EQ(value_of(manager_.try_allocate_until(4, in(1s))).size(), 4u);
  EXPECT_EQ(value_of(manager_.try_allocate_until(4, in(-1s))).size(), 4u);
  EXPECT_EQ(manager_.status().waiters, 0u);
}

TEST_F(WaitingTest, ADeadlineThatHasPassedIsARefusalWithoutAWait) {
  auto held = value_of(manager_.allocate_blocks(3));
  const Waited refused = manager_.try_allocate_until(2, clock_.now());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::kTimedOut);
  EXPECT_EQ(refused.error().to_error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(manager_.status().waiters, 0u);
}

TEST_F(WaitingTest, AStopRequestEndsTheWaitWhereverItStandsInTheQueue) {
  auto held = value_of(manager_.allocate_blocks(4));
  std::stop_source stop;
  const auto wait_stoppably = [&](std::size_t n) {
    auto waiting = std::async(std::launch::async, [this, n, deadline = in(1h), token = stop.get_token()] {
      return manager_.try_allocate_until(n, deadline, token);
    });
    return waiting;
  };
  auto first = wait_stoppably(4);
  await_waiters(manager_, 1);
  auto second = wait_for_blocks(manager_, 3, in(1h));
  await_waiters(manager_, 2);
  auto third = wait_stoppably(1);
  await_waiters(manager_, 3);
  static_cast<void>(held.take_back());
  EXPECT_TRUE(is_waiting(third));  // the others came before it
  stop.request_stop();
  for (auto* stopped : {&first, &third}) {
    const Waited refused = stopped->get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, Reason::kCancelled);
    EXPECT_EQ(refused.error().to_error().code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(manager_.status().waiters, 1u);
  held.clear();
  EXPECT_EQ(value_of(second.get()).size(), 3u);
  // As after a deadline: what is there is taken.
  EXPECT_EQ(value_of(manager_.try_allocate_until(4, in(1h), stop.get_token())).size(), 4u);
}

TEST_F(WaitingTest, GivesUpWhenTheClockReachesTheDeadline) {
  auto held = value_of(manager_.allocate_blocks(4));
  auto waiting = wait_for_blocks(manager_, 1, in(10s));
  await_waiters(manager_, 1);
  clock_.advance(9s);
  EXPECT_TRUE(is_waiting(waiting));
  clock_.advance(1s);
  const Waited refused = waiting.get();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::kTimedOut);
  EXPECT_EQ(places(manager_), (Places{.owned = 4}));
  EXPECT_EQ(manager_.status().waiters, 0u);
}

TEST_F(WaitingTest, ADropWakesTheWaiter) {
  auto held = value_of(manager_.allocate_blocks(4));
  auto waiting = wait_for_blocks(manager_, 2, in(1h));
  await_waiters(manager_, 1);
  held.truncate(3);
  EXPECT_TRUE(is_waiting(waiting)) << "one is not two";
  held.truncate(2);
  EXPECT_EQ(value_of(waiting.get()).size(), 2u);
}

TEST_F(WaitingTest, EveryWayToFreeABlockWakesTheWaiter) {
  const TokenSequence sequence = sequence_of(1);
  const auto waits_for = [&](auto&& free_one) {
    auto waiting = wait_for_blocks(manager_, 1, in(1h));
    await_waiters(manager_, 1);
    free_one();
    EXPECT_EQ(value_of(waiting.get()).size(), 1u);
    EXPECT_EQ(places(manager_).owned, 3u);
  };
  auto held = value_of(manager_.allocate_blocks(3));
  {
    Immutable block = store_one(manager_, sequence.blocks()[0]);
    waits_for([&] { block = Immutable(); });  // the last reference
  }
  {
    Partial block = value_of(take_one(manager_).init_sequence({}));
    ASSERT_TRUE(block.add_token(Token(1)));
    auto [fence, signal] = Fence::create();
    {
      const auto dropped = value_of(std::move(block).schedule()).launch(fence);
    }
    waits_for([&] { std::move(signal).signal(); });  // the end of quarantine
  }
  {
    Immutable block = store_one(manager_, sequence.blocks()[0]);
    auto [fence, signal] = Fence::create();
    std::move(block).release_after(fence);
    waits_for([&] { std::move(signal).signal(); });  // release_after
  }
  {
    Pin pin = value_of(store_one(manager_, sequence.blocks()[0]).pin(1h));
    waits_for([&] { std::move(pin).unpin(); });
  }
}

TEST_F(WaitingTest, ALargeFirstWaiterIsNotOvertakenBySmallAllocations) {
  auto held = value_of(manager_.allocate_blocks(4));
  auto large = wait_for_blocks(manager_, 3, in(1h));
  await_waiters(manager_, 1);
  held.truncate(2);  // two are free now: enough for small ones, not for the large one
  const auto refused = manager_.allocate_blocks(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::kQueued);
  EXPECT_EQ(refused.error().to_error().code(), ErrorCode::kCapacity);
  EXPECT_EQ(refused.error().status.waiters, 1u);
  EXPECT_EQ(manager_.can_allocate(1).error().reason, Reason::kQueued);
  EXPECT_TRUE(manager_.allocate_blocks(0)) << "nothing is nobody's";

  auto small = wait_for_blocks(manager_, 1, in(1h));
  await_waiters(manager_, 2);
  EXPECT_TRUE(is_waiting(small));
  EXPECT_TRUE(is_waiting(large));
  held.truncate(1);
  const auto large_got = value_of(large.get());
  EXPECT_EQ(large_got.size(), 3u);
  EXPECT_TRUE(is_waiting(small));
  held.clear();
  EXPECT_EQ(value_of(small.get()).size(), 1u);
}

TEST_F(WaitingTest, WhoGivesUpLetsTheNextOneThrough) {
  auto held = value_of(manager_.allocate_blocks(3));  // one is free
  auto large = wait_for_blocks(manager_, 3, in(5s));
  await_waiters(manager_, 1);
  auto small = wait_for_blocks(manager_, 1, in(1h));
  await_waiters(manager_, 2);
  clock_.advance(5s);
  EXPECT_EQ(large.get().error().reason, Reason::kTimedOut);
  EXPECT_EQ(value_of(small.get()).size(), 1u);
}

TEST_F(WaitingTest, AWaiterInTheMiddleOfTheQueueMayGiveUp) {
  auto held = value_of(manager_.allocate_blocks(4));
  auto first = wait_for_blocks(manager_, 2, in(1h));
  await_waiters(manager_, 1);
  auto second = wait_for_blocks(manager_, 2, in(5s));
  await_waiters(manager_, 2);
  auto third = wait_for_blocks(manager_, 1, in(1h));
  await_waiters(manager_, 3);
  clock_.advance(5s);
  EXPECT_EQ(second.get().error().reason, Reason::kTimedOut);
  held.truncate(2);
  const auto first_got = value_of(first.get());
  EXPECT_TRUE(is_waiting(third));
  held.truncate(1);
  EXPECT_EQ(value_of(third.get()).size(), 1u);
}

TEST_F(WaitingTest, ServedInTheOrderOfArrival) {
  auto held = value_of(manager_.allocate_blocks(4));
  std::vector<std::future<Waited>> queue;
  for (std::size_t i = 0; i < 4; ++i) {
    queue.push_back(wait_for_blocks(manager_, 1, in(1h)));
    await_waiters(manager_, i + 1);
  }
  std::vector<BlockList<Mutable>> got;
  for (std::size_t i = 0; i < 4; ++i) {
    held.truncate(held.size() - 1);
    got.push_back(value_of(queue[i].get()));
    for (std::size_t later = i + 1; later < 4; ++later) EXPECT_TRUE(is_waiting(queue[later]));
  }
}

TEST_F(WaitingTest, ZeroBlocksNeverWait) {
  auto held = value_of(manager_.allocate_blocks(4));
  auto large = wait_for_blocks(manager_, 4, in(1h));
  await_waiters(manager_, 1);
  EXPECT_TRUE(value_of(manager_.try_allocate_until(0, clock_.now())).empty());
  held.clear();
  EXPECT_EQ(value_of(large.get()).size(), 4u);
}

TEST_F(WaitingTest, APinThatRunsOutWakesTheWaiter) {
  const Pin pin = value_of(store_one(manager_, sequence_of(1).blocks()[0]).pin(3s));
  auto held = value_of(manager_.allocate_blocks(3));
  auto waiting = wait_for_blocks(manager_, 1, in(1h));
  await_waiters(manager_, 1);
  clock_.advance(2s);
  EXPECT_TRUE(is_waiting(waiting));
  clock_.advance(1s);
  EXPECT_EQ(value_of(waiting.get()).size(), 1u);
  EXPECT_FALSE(pin.active());
}

TEST_F(WaitingTest, ManyThreadsShareFairly) {
  constexpr int kThreads = 4;
  constexpr int kTurns = 200;
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTurns; ++i) {
        const auto blocks = value_of(
            manager_.try_allocate_until(static_cast<std::size_t>((t + i) % 4 + 1), Clock::TimePoint::max()));
        served.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served.load(), kThreads * kTurns);
  EXPECT_EQ(places(manager_), (Places{.reset = 4}));
}

// Wakes a sleeper exactly when its own moment comes or it is notified, as the machine's clock does; unlike
// ManualClock it never looks again by itself, so a wake-up that is missing is seen.
class StrictClock final : public Clock {
 public:
  TimePoint now() const override {
    const MutexLock lock(mu_);
    return now_;
  }
  void wait_until(CondVar& condition, Mutex& mutex, TimePoint deadline) override ASHLAR_REQUIRES(mutex) {
    {
      const MutexLock lock(mu_);
      if (now_ >= deadline) return;
      sleepers_.push_back({&condition, &mutex, deadline});
    }
    condition.wait(mutex);
    const MutexLock lock(mu_);
    sleepers_.erase(std::find_if(sleepers_.begin(), sleepers_.end(),
                                 [&](const Sleeper& sleeper) { return sleeper.condition == &condition; }));
  }
  // Whoever holds a sleeper's mutex and finds it listed knows that it is asleep, so no notification falls
  // beside it.
  void advance(Duration by) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    std::vector<Sleeper> due;
    {
      const MutexLock lock(mu_);
      now_ += by;
      for (const Sleeper& sleeper : sleepers_) {
        if (now_ >= sleeper.deadline) due.push_back(sleeper);
      }
    }
    for (const Sleeper& sleeper : due) {
      const MutexLock asleep(*sleeper.mutex);
      const MutexLock lock(mu_);
      if (std::find(sleepers_.begin(), sleepers_.end(), sleeper) != sleepers_.end())
        sleeper.condition->notify_all();
    }
  }

 private:
  struct Sleeper {
    CondVar* condition;
    Mutex* mutex;
    TimePoint deadline;
    friend bool operator==(const Sleeper&, const Sleeper&) = default;
  };
  mutable Mutex mu_;
  TimePoint now_ ASHLAR_GUARDED_BY(mu_){std::chrono::seconds(1)};
  std::vector<Sleeper> sleepers_ ASHLAR_GUARDED_BY(mu_);
};

class MissedWakeTest : public ::testing::Test {
 protected:
  // True once the allocation is done; a generous bound in real time, reached only by a failure.
  static bool done(std::future<Waited>& future) { return future.wait_for(20s) == std::future_status::ready; }

  StrictClock clock_;
  Manager manager_ = value_of(builder_of(4).clock(clock_).max_pins(4).build());
};

TEST_F(MissedWakeTest, APinMadeWhileSomebodyWaitsWakesHimWhenItRunsOut) {
  Immutable block = store_one(manager_, sequence_of(1).blocks()[0]);
  auto held = value_of(manager_.allocate_blocks(3));
  auto waiting = wait_for_blocks(manager_, 1, clock_.now() + 1h);
  await_waiters(manager_, 1);
  const Pin pin = value_of(block.pin(3s));
  block = Immutable();  // goes aside, not free
  (void)manager_.status();
  clock_.advance(3s);
  EXPECT_TRUE(done(waiting)) << "the pin ran out and made room, and nobody told the waiter";
  if (is_waiting(waiting)) held.clear();
  EXPECT_EQ(value_of(waiting.get()).size(), 1u);
}

TEST_F(MissedWakeTest, WhoBecomesFirstKnowsOfThePinsMadeMeanwhile) {
  Immutable block = store_one(manager_, sequence_of(1).blocks()[0]);
  auto held = value_of(manager_.allocate_blocks(3));
  auto large = wait_for_blocks(manager_, 4, clock_.now() + 2s);
  await_waiters(manager_, 1);
  auto small = wait_for_blocks(manager_, 1, clock_.now() + 1h);
  await_waiters(manager_, 2);
  const Pin pin = value_of(block.pin(4s));
  block = Immutable();
  (void)manager_.status();
  clock_.advance(2s);
  EXPECT_EQ(large.get().error().reason, Reason::kTimedOut);
  await_waiters(manager_, 1);
  clock_.advance(2s);
  EXPECT_TRUE(done(small));
  if (is_waiting(small)) held.clear();
  EXPECT_EQ(value_of(small.get()).size(), 1u);
}

TEST_F(WaitingTest, WhatTheValuesOfAnEndedPinHeldIsServedToo) {
  auto held = value_of(manager_.allocate_blocks(2));
  std::optional<Pin> pin;
  {
    Immutable kept = store_name(manager_, name_of(0, 1));
    Immutable holder = store_name(manager_, name_of(1, 2));
    holder.set_reset_on_release(true);
    pin = value_of(holder.pin(5s));
    // When the hash of `holder` is forgotten, its value lets `kept` go.
    ASSERT_TRUE(holder.registration_handle().attach_unique(std::make_shared<Immutable>(std::move(kept))));
  }
  auto waiting = wait_for_blocks(manager_, 2, in(10s));
  await_waiters(manager_, 1);
  clock_.advance(6s);
  EXPECT_EQ(value_of(waiting.get()).size(), 2u);
}

}  // namespace
}  // namespace ashlar::block
