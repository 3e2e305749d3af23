// The last drops of a primary and of its duplicate, each held between its count and what follows from it.
#include "block/interleaving/race.h"

namespace ashlar::block::interleaving {
namespace {

TEST(DuplicateInterleavingTest, ThePrimaryGivesWayToADuplicateThatIsInBetween) {
  Pool pool(2);
  Interleaving order;
  auto duplicate = registered(pool.manager, kA);
  auto primary = registered(pool.manager, kA);
  const BlockId heir = duplicate.block_id();
  std::jthread dropper = held_before_settle(order, [&] { duplicate = {}; });

  primary = {};
  EXPECT_EQ(pool.manager.status().reset, 1u) << "the primary is empty";
  EXPECT_EQ(pool.manager.status().active, 1u) << "nobody refers to the heir, and nobody has settled it";
  {
    const auto found = match_one(pool.manager, kA);
    EXPECT_EQ(found.block_id(), heir);
    EXPECT_FALSE(found.is_duplicate());
  }
  EXPECT_EQ(pool.manager.status().inactive, 1u) << "that match has settled it";
  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  pool.check();
}

TEST(DuplicateInterleavingTest, AnHeirThatNobodyMatchedIsSettledByItsOwnDrop) {
  Pool pool(2);
  Interleaving order;
  auto duplicate = registered(pool.manager, kA);
  auto primary = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { duplicate = {}; });
  primary = {};
  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().reset, 1u);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 0u);
  pool.check();
}

TEST(DuplicateInterleavingTest, APrimaryThatIsInBetweenBecomesADuplicateAndThePrimaryAgain) {
  Pool pool(2);
  Interleaving order;
  auto first = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { first = {}; });
  auto second = registered(pool.manager, kA);
  EXPECT_FALSE(second.is_duplicate());
  EXPECT_EQ(pool.manager.status().active, 2u);
  second = {};  // gives way to the first, which nobody refers to
  EXPECT_EQ(pool.manager.status().reset, 1u);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.counters().late_releases, 0u);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  pool.check();
}

TEST(DuplicateInterleavingTest, ADropThatIsLateFindsTheNextLifeOfItsSlot) {
  Pool pool(2);
  Interleaving order;
  auto first = registered(pool.manager, kA);
  const BlockId slot = first.block_id();
  std::jthread dropper = held_before_settle(order, [&] { first = {}; });
  registered(pool.manager, kA) = {};  // took the place, and gave it back
  EXPECT_EQ(match_one(pool.manager, kA).block_id(), slot) << "settled by whoever found it";
  auto empty = testing::allocate_one(pool.manager);
  auto evicted = testing::allocate_one(pool.manager);
  ASSERT_EQ(evicted.block_id(), slot);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  EXPECT_EQ(pool.manager.status().owned, 2u);
  pool.check();
}

TEST(DuplicateInterleavingTest, AMatchOnItsWayToAPrimaryThatLosesItsPlaceFindsTheNewOne) {
  for (const bool inactive : {false, true}) {
    Pool pool(3);
    Interleaving order;
    auto first = registered(pool.manager, kA);
    std::jthread dropper;
    // Nobody refers to the block, settled or not: the match goes to the lock.
    if (inactive) {
      first = {};
    } else {
      dropper = held_before_settle(order, [&] { first = {}; });
    }
    const auto waiting = order.pause_at("match.before_lock");
    BlockId found;
    std::jthread matcher([&] { found = match_one(pool.manager, kA).block_id(); });
    order.wait_until_paused(waiting);
    auto second = registered(pool.manager, kA);
    order.resume(waiting);
    matcher.join();
    EXPECT_EQ(found, second.block_id());
    if (!inactive) settle(order, dropper);
    EXPECT_EQ(pool.manager.status().reset, 2u);
    pool.check();
  }
}

TEST(DuplicateInterleavingTest, AWeakDuplicateInBetweenFindsThePrimary) {
  Pool pool(2);
  Interleaving order;
  auto duplicate = registered(pool.manager, kA);
  auto primary = registered(pool.manager, kA);
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
