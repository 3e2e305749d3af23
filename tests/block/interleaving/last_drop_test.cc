// The last drop counts down without the lock and settles under it. These tests stop a thread between the two
// and let others use, evict and rename the block meanwhile.
#include <vector>

#include "block/interleaving/race.h"

namespace ashlar::block::interleaving {
namespace {

TEST(LastDropInterleavingTest, MatchFindsABlockWhoseLastDropHasNotSettled) {
  Pool pool(2);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  const BlockId id = guard.block_id();
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

  auto found = match_one(pool.manager, kA);
  ASSERT_TRUE(found);
  EXPECT_EQ(found.block_id(), id);
  EXPECT_EQ(found.use_count(), 1u);

  settle(order, dropper);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  EXPECT_EQ(pool.manager.status().active, 1u);
  found = {};
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  pool.check();
}

TEST(LastDropInterleavingTest, ABlockInBetweenIsCountedAsActiveAndIsNotHandedOut) {
  Pool pool(1);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

  const auto refused = pool.manager.allocate_blocks(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, AllocationRefusal::Reason::kNoRoom);
  EXPECT_EQ(refused.error().status.active, 1u);
  EXPECT_EQ(pool.manager.eviction_candidates(1).size(), 0u);
  EXPECT_EQ(pool.manager.reset_inactive_pool(), 0u);

  settle(order, dropper);
  EXPECT_EQ(pool.manager.available_blocks(), 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 0u);
  pool.check();
}

TEST(LastDropInterleavingTest, AMatchThatDropsAgainSettlesForTheFirst) {
  Pool pool(2);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

  ASSERT_TRUE(match_one(pool.manager, kA));
  EXPECT_EQ(pool.manager.status().inactive, 1u);

  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  EXPECT_EQ(pool.manager.eviction_candidates(2).size(), 1u);
  pool.check();
}

TEST(LastDropInterleavingTest, RegisteringTheSameHashFindsThePrimaryThatIsInBetween) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Pool pool(3, policy);
    Interleaving order;
    auto guard = registered(pool.manager, kA);
    const BlockId primary = guard.block_id();
    std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

    auto second = registered(pool.manager, kA);
    EXPECT_FALSE(second.is_duplicate());
    EXPECT_EQ(second.block_id() == primary, policy == DuplicatePolicy::kReject);

    settle(order, dropper);
    EXPECT_EQ(match_one(pool.manager, kA).block_id(), second.block_id());
    EXPECT_EQ(pool.manager.status().reset, 2u);
    EXPECT_EQ(pool.manager.counters().late_releases, policy == DuplicatePolicy::kReject ? 1u : 0u);
    pool.check();
    second = {};
    EXPECT_EQ(pool.manager.status().inactive, 1u);
    pool.check();
  }
}

TEST(LastDropInterleavingTest, ALateSettleLeavesTheNextLifeOfTheSlotAlone) {
  // The slot's next life is: owned, primary of another hash, a duplicate, inactive, free.
  enum class Next { kOwned, kPrimary, kDuplicate, kInactive, kReset };
  for (const Next next : {Next::kOwned, Next::kPrimary, Next::kDuplicate, Next::kInactive, Next::kReset}) {
    SCOPED_TRACE(static_cast<int>(next));
    Pool pool(2);
    Interleaving order;
    auto other = registered(pool.manager, kB);
    auto guard = registered(pool.manager, kA);
    const BlockId slot = guard.block_id();
    std::jthread dropper = held_before_settle(order, [&] { guard = {}; });
    // Found and dropped by somebody else, who settles; then evicted.
    ASSERT_TRUE(match_one(pool.manager, kA));
    auto taken = testing::allocate_one(pool.manager);
    ASSERT_EQ(taken.block_id(), slot);
    EXPECT_FALSE(match_one(pool.manager, kA));

    MutableBlock<G1> owned;
    ImmutableBlock<G1> held;
    if (next == Next::kOwned) {
      owned = std::move(taken);
    } else if (next != Next::kReset) {
      const auto& hash = next == Next::kDuplicate ? kB : kC;
      auto staged = std::move(taken).stage(hash, KvReady::asserted_by_caller());
      held = testing::register_one(pool.manager, std::move(staged));
      ASSERT_EQ(held.block_id(), slot);
      if (next == Next::kInactive) held = {};
    } else {
      taken = {};
    }
    const PoolStatus before = pool.manager.status();

    settle(order, dropper);
    EXPECT_EQ(pool.manager.status().to_string(), before.to_string());
    EXPECT_EQ(pool.manager.counters().late_releases, 1u);
    pool.check();
    if (held) {
      EXPECT_EQ(held.use_count(), 1u);
      held = {};
    }
    owned = {};
    other = {};
    pool.check();
    EXPECT_EQ(pool.manager.available_blocks(), 2u);
  }
}

TEST(LastDropInterleavingTest, TwoDropsInBetweenSettleOnce) {
  Pool pool(2);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  const auto first = order.pause_at("drop.before_settle");
  const auto second = order.pause_at("drop.before_settle");
  std::jthread one([&] { guard = {}; });
  order.wait_until_paused(first);
  auto again = match_one(pool.manager, kA);
  std::jthread two([&] { again = {}; });
  order.wait_until_paused(second);

  order.resume(second);
  two.join();
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  order.resume(first);
  one.join();
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  pool.check();
}

TEST(LastDropInterleavingTest, WeakUpgradeRevivesABlockInBetween) {
  Pool pool(2);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  const auto weak = guard.downgrade();
  const BlockId id = guard.block_id();
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

  auto upgraded = weak.upgrade();
  ASSERT_TRUE(upgraded);
  EXPECT_EQ(upgraded->block_id(), id);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().active, 1u);
  upgraded.reset();
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  pool.check();
}

TEST(LastDropInterleavingTest, ResetOnReleaseIsUndoneByWhoeverIsFaster) {
  Pool pool(2);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  guard.set_reset_on_release(true);
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

  auto found = match_one(pool.manager, kA);
  ASSERT_TRUE(found);
  found.set_reset_on_release(false);
  settle(order, dropper);
  EXPECT_TRUE(match_one(pool.manager, kA));
  found = {};
  EXPECT_EQ(pool.manager.status().inactive, 1u);
  pool.check();
}

TEST(LastDropInterleavingTest, ResetOfTheInactivePoolLeavesABlockInBetweenToItsDrop) {
  Pool pool(3);
  Interleaving order;
  auto idle = registered(pool.manager, kB);
  idle = {};
  auto guard = registered(pool.manager, kA);
  std::jthread dropper = held_before_settle(order, [&] { guard = {}; });

  EXPECT_EQ(pool.manager.reset_inactive_pool(), 1u);
  EXPECT_TRUE(match_one(pool.manager, kA));
  EXPECT_EQ(pool.manager.reset_inactive_pool(), 1u);
  EXPECT_FALSE(match_one(pool.manager, kA));
  settle(order, dropper);
  EXPECT_EQ(pool.manager.status().reset, 3u);
  EXPECT_EQ(pool.manager.counters().late_releases, 1u);
  pool.check();
}

TEST(LastDropInterleavingTest, ABulkDropInBetweenGivesUpOnlyWhatNobodyTookAgain) {
  Pool pool(4);
  Interleaving order;
  const auto names = testing::numbered_hashes(4);
  auto blocks = testing::fill(pool.manager, std::span<const tokens::SequenceHash>(names));
  std::jthread dropper = held_before_settle(order, [&] { blocks.clear(); });

  auto found = pool.manager.match_blocks(std::span(names).first(2));
  ASSERT_EQ(found.size(), 2u);
  settle(order, dropper);
  EXPECT_EQ(pool.manager.counters().late_releases, 2u);
  const std::vector expected{names[3], names[2]};
  EXPECT_EQ(pool.manager.eviction_candidates(4), expected);
  found.clear();
  pool.check();
  EXPECT_EQ(pool.manager.status().inactive, 4u);
}

}  // namespace
}  // namespace ashlar::block::interleaving
