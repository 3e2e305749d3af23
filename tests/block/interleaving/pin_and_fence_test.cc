// Time and devices: pins that end and fences that pass while other threads use the manager.
#include <optional>

#include "block/interleaving/race.h"

namespace ashlar::block::interleaving {
namespace {

using std::chrono::seconds;

TEST(PinInterleavingTest, APinThatEndsBeforeAMatchHasTheLockTakesNothingFromIt) {
  ManualClock clock;
  ManagerOptions options = Pool::options(1);
  options.clock = &clock;
  Pool pool(options);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  auto pin = guard.pin(seconds(1));
  ASSERT_TRUE(pin);
  guard = {};
  ASSERT_EQ(pool.manager.status().pinned_inactive, 1u);
  order.pause_at("match.before_lock");
  ImmutableBlock<G1> found;
  std::jthread matcher([&] { found = match_one(pool.manager, kA); });
  order.wait_until_paused("match.before_lock");

  clock.advance(seconds(2));
  EXPECT_EQ(pool.manager.status().inactive, 1u);  // noticed
  order.resume("match.before_lock");
  matcher.join();
  ASSERT_TRUE(found);
  EXPECT_FALSE(pin->active());
  EXPECT_EQ(pool.manager.status().active, 1u);
  pool.check();
}

TEST(PinInterleavingTest, APinTakenWhileTheLastDropIsInBetweenSetsTheBlockAside) {
  Pool pool(1);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });
  auto pin = pool.manager.pin(kA, seconds(1000));
  ASSERT_TRUE(pin);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().pinned_inactive, 1u);
  EXPECT_FALSE(pool.manager.allocate_blocks(1));
  std::move(*pin).unpin();
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  pool.check();
}

TEST(PinInterleavingTest, APinThatEndsWhileTheLastDropIsInBetweenLeavesTheBlockToTheDrop) {
  Pool pool(1);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  auto pin = guard.pin(seconds(1000));
  ASSERT_TRUE(pin);
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });
  std::move(*pin).unpin();
  EXPECT_EQ(pool.manager.status().available(), 0u);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 0u);
  pool.check();
}

// A clock that stands still, and tells for which moment somebody waits.
class WatchedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(seconds(1)); }
  void wait_until(CondVar& condition, Mutex& mutex, TimePoint deadline) override ASHLAR_REQUIRES(mutex) {
    {
      const MutexLock lock(mu_);
      deadline_ = deadline;
      changed_.notify_all();
    }
    condition.wait(mutex);
  }
  // Returns true when somebody waits for exactly this moment, false when nobody does for a minute.
  bool is_waited_for(TimePoint deadline) {
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    const MutexLock lock(mu_);
    while (deadline_ != deadline && std::chrono::steady_clock::now() < end) changed_.wait_until(mu_, end);
    return deadline_ == deadline;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  TimePoint deadline_ ASHLAR_GUARDED_BY(mu_);
};

TEST(PinInterleavingTest, AWaitingAllocationLearnsOfPinsTakenAfterItBeganToWait) {
  WatchedClock clock;
  ManagerOptions options = Pool::options(1);
  options.clock = &clock;
  Pool pool(options);
  auto guard = registered(pool.manager, kA);
  const Clock::TimePoint deadline = clock.now() + seconds(3600);
  std::optional<bool> got;
  std::jthread waiter([&] { got = pool.manager.try_allocate_until(1, deadline).has_value(); });
  EXPECT_TRUE(clock.is_waited_for(deadline));
  auto pin = guard.pin(seconds(5));
  ASSERT_TRUE(pin);
  EXPECT_TRUE(clock.is_waited_for(clock.now() + seconds(5)));  // it would have slept for an hour
  std::move(*pin).unpin();
  guard = {};
  waiter.join();
  EXPECT_TRUE(got.value());
  pool.check();
}

PartialBlock<G1> begin(BlockManager<G1>& manager) {
  auto partial = testing::allocate_one(manager).init_sequence({});
  EXPECT_TRUE(partial->add_token(tokens::Token(7)));
  return *std::move(partial);
}

TEST(FenceInterleavingTest, AFenceThatPassesOnAnotherThreadEndsTheQuarantine) {
  Pool pool(1);
  auto [fence, signal] = Fence::create();
  {
    auto scheduled = begin(pool.manager).schedule();
    ASSERT_TRUE(scheduled);
    const auto inflight = std::move(*scheduled).launch(fence);
  }
  EXPECT_EQ(pool.manager.status().quarantined, 1u);
  EXPECT_FALSE(pool.manager.allocate_blocks(1));
  std::optional<bool> got;
  std::jthread waiter(
      [&] { got = pool.manager.try_allocate_until(1, Clock::real().now() + seconds(60)).has_value(); });
  while (pool.manager.status().waiters == 0) std::this_thread::yield();
  std::jthread device([&] { std::move(signal).signal(); });
  device.join();
  waiter.join();
  EXPECT_TRUE(got.value());
  EXPECT_EQ(pool.manager.status().reset, 1u);
  pool.check();
}

TEST(FenceInterleavingTest, AReferenceThatAFenceHoldsSettlesOnTheSignallingThread) {
  Pool pool(1);
  Interleaving order;
  auto [fence, signal] = Fence::create();
  registered(pool.manager, kA).release_after(fence);
  EXPECT_EQ(pool.manager.status().active, 1u);
  order.pause_at("drop.before_settle");
  std::jthread device([&] { std::move(signal).signal(); });
  order.wait_until_paused("drop.before_settle");
  EXPECT_TRUE(fence.passed());
  auto found = match_one(pool.manager, kA);
  ASSERT_TRUE(found);
  settle(order, device);
  EXPECT_EQ(found.use_count(), 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  found = {};
  pool.check();
}

}  // namespace
}  // namespace ashlar::block::interleaving
