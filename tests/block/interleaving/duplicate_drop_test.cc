// A duplicate holds a reference to its primary, and gives it up when its own last drop settles.
#include "block/interleaving/race.h"

namespace ashlar::block::interleaving {
namespace {

TEST(DuplicateInterleavingTest, ThePrimaryStaysWhileItsDuplicateIsInBetween) {
  Pool pool(2);
  Interleaving order;
  auto primary = registered(pool.manager, kA);
  auto duplicate = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { duplicate = {}; });

  EXPECT_EQ(primary.use_count(), 2u);
  primary = {};
  EXPECT_EQ(pool.manager.status().active, 2u);
  EXPECT_TRUE(match_one(pool.manager, kA));
  EXPECT_FALSE(pool.manager.allocate_blocks(1));

  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().reset, 1u);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 0u);
  pool.check();
}

TEST(DuplicateInterleavingTest, TheDuplicateGoesWhileThePrimaryIsInBetween) {
  Pool pool(2);
  Interleaving order;
  auto primary = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { primary = {}; });
  auto duplicate = registered(pool.manager, kA);
  ASSERT_TRUE(duplicate.is_duplicate());

  // The duplicate's drop takes the primary's count to zero again and settles it.
  duplicate = {};
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.status().reset, 1u);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  pool.check();
}

TEST(DuplicateInterleavingTest, AWeakDuplicateInBetweenFindsThePrimary) {
  Pool pool(2);
  Interleaving order;
  auto primary = registered(pool.manager, kA);
  auto duplicate = registered(pool.manager, kA);
  const auto weak = duplicate.downgrade();
  std::jthread dropper = held_before_settle(order, [&] { duplicate = {}; });

  const auto upgraded = weak.upgrade();
  ASSERT_TRUE(upgraded);
  EXPECT_EQ(upgraded->block_id(), primary.block_id());
  settle(order, dropper);
  EXPECT_EQ(primary.use_count(), 2u);
  EXPECT_EQ(pool.manager.status().reset, 1u);
  pool.check();
}

TEST(DuplicateInterleavingTest, ALateSettleMaySettleTheSlotsNextDuplicateForItsDropper) {
  Pool pool(2);
  Interleaving order;
  auto primary = registered(pool.manager, kB);
  auto guard = registered(pool.manager, kA);
  const BlockId slot = guard.block_id();
  const auto first = order.pause_at("drop.before_settle");
  std::jthread one([&] { guard = {}; });
  order.wait_until_paused(first);
  ASSERT_TRUE(match_one(pool.manager, kA));  // settled, so that it can be evicted
  auto duplicate = registered(pool.manager, kB);
  ASSERT_EQ(duplicate.block_id(), slot);
  const auto second = order.pause_at("drop.before_settle");
  std::jthread two([&] { duplicate = {}; });
  order.wait_until_paused(second);

  // The first thread was about to settle another life of the slot; this one has a count of zero too.
  order.resume(first);
  one.join();
  EXPECT_EQ(primary.use_count(), 1u);
  EXPECT_EQ(pool.manager.status().reset, 1u);
  order.resume(second);
  two.join();
  EXPECT_EQ(primary.use_count(), 1u);
  EXPECT_EQ(pool.manager.status().reset, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  pool.check();
}

}  // namespace
}  // namespace ashlar::block::interleaving
