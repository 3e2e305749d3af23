// Allocations that wait, from many threads: first come, first served; nothing lost, nothing given twice.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "ashlar/testing/time_box.h"

namespace ashlar::block::stress {
namespace {

using events::G1;
using std::chrono::microseconds;
using std::chrono::seconds;

Clock::TimePoint in(Clock::Duration time) {
  return Clock::real().now() + time;
}

TEST(WaitingStressTest, WaitersAreServedInTheOrderInWhichTheyCame) {
  const testing::TimeBox box(1);
  Random random(1);
  do {
    constexpr std::uint32_t kBlocks = 8;
    constexpr std::size_t kWaiters = 6;
    auto manager = testing::make_manager<G1>(kBlocks);
    auto all = manager.allocate_blocks(kBlocks);
    std::atomic<std::size_t> served = 0;
    std::atomic<bool> over = false;
    std::vector<std::size_t> order(kWaiters);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < kWaiters; ++i) {
        // More than half of the blocks: one at a time holds them, so the order in which they got them can be
        // seen.
        const std::size_t n = kBlocks / 2 + 1 + random.below(kBlocks / 2);
        threads.emplace_back([&, i, n] {
          auto got = manager.try_allocate_until(n, in(seconds(60)));
          ASSERT_TRUE(got.has_value());
          ASSERT_EQ(got->size(), n);
          order[i] = served.fetch_add(1);
        });
        while (manager.status().waiters != i + 1) std::this_thread::yield();
      }
      // Somebody who does not wait must not overtake.
      std::jthread overtaker([&] {
        while (!over.load()) {
          const auto got = manager.allocate_blocks(1);
          if (got) continue;
          EXPECT_NE(got.error().reason, AllocationRefusal::Reason::kTooMany);
        }
      });
      EXPECT_EQ(manager.can_allocate(1).error().reason, AllocationRefusal::Reason::kQueued);
      while (!all->empty()) const auto given_back = all->take_back();
      threads.clear();
      over.store(true);
    }
    for (std::size_t i = 0; i < kWaiters; ++i) EXPECT_EQ(order[i], i);
    EXPECT_EQ(manager.status().reset, kBlocks);
    manager.check_invariants();
  } while (!box.over() && !HasFailure());
}

TEST(WaitingStressTest, EveryWaiterIsServedOrTimesOutAndNoBlockIsGivenTwice) {
  const testing::TimeBox box(1);
  std::uint64_t seed = 0;
  do {
    constexpr std::uint32_t kBlocks = 8;
    auto manager = testing::make_manager<G1>(kBlocks);
    std::vector<std::size_t> owner(kBlocks, 0);  // plain memory: owned while the block is
    std::atomic<std::size_t> timed_out = 0;
    Random random(++seed);
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 1; t <= 6; ++t) {
        threads.emplace_back([&, t, own = random.fork()]() mutable {
          for (std::size_t i = 0; i < 150; ++i) {
            const std::size_t n = 1 + own.below(kBlocks);
            const bool patient = own.chance(0.7);
            auto got =
                manager.try_allocate_until(n, in(patient ? Clock::Duration(seconds(60)) : microseconds(50)));
            if (!got) {
              ASSERT_EQ(got.error().reason, AllocationRefusal::Reason::kTimedOut);
              ASSERT_FALSE(patient);
              timed_out.fetch_add(1);
              continue;
            }
            for (const auto& block : *got) owner[block.block_id().value()] = t;
            for (const auto& block : *got) ASSERT_EQ(owner[block.block_id().value()], t);
            if (own.chance(0.5)) {
              // Leave something behind that must be evicted.
              const auto name = testing::numbered_hash(static_cast<std::uint32_t>(own.below(100)));
              auto block = got->take_back();
              auto staged = std::move(block).stage(name, KvReady::asserted_by_caller());
              ASSERT_TRUE(manager.register_block(std::move(staged)).has_value());
            }
          }
        });
      }
    }
    EXPECT_EQ(manager.available_blocks(), kBlocks);
    EXPECT_EQ(manager.status().waiters, 0u);
    manager.check_invariants();
  } while (!box.over() && !HasFailure());
}

TEST(WaitingStressTest, PinsThatRunOutServeAWaiter) {
  const testing::TimeBox box(1);
  do {
    constexpr std::uint32_t kBlocks = 4;
    ManagerOptions options = testing::manager_options(kBlocks);
    options.max_pins = kBlocks;
    auto manager = testing::make_manager<G1>(options);
    std::vector<Pin> pins;
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      pins.push_back(
          *testing::registered(manager, testing::numbered_hash(i)).pin(microseconds(100 * (i + 1))));
    }
    const auto got = manager.try_allocate_until(kBlocks, in(seconds(60)));
    ASSERT_TRUE(got.has_value());
    for (const Pin& pin : pins) EXPECT_FALSE(pin.active());
  } while (!box.over());
}

}  // namespace
}  // namespace ashlar::block::stress
