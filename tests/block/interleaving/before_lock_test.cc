// Threads that are about to take the store's lock: what they saw before it may be over when they have it.
#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "block/interleaving/race.h"

namespace ashlar::block::interleaving {
namespace {

TEST(BeforeLockInterleavingTest, MatchOfABlockThatIsEvictedBeforeTheLockIsAMiss) {
  Pool pool(1);
  Interleaving order;
  registered(pool.manager, kA) = {};
  order.pause_at("match.before_lock");
  ImmutableBlock<G1> found;
  std::jthread matcher([&] { found = match_one(pool.manager, kA); });
  order.wait_until_paused("match.before_lock");

  auto other = registered(pool.manager, kB);
  order.resume("match.before_lock");
  matcher.join();
  EXPECT_FALSE(found);
  pool.check();
}

// The slots behind the first block keep the names of blocks that are duplicates, or gone. Those in use lie
// elsewhere: matching them is no reason for the lock.
TEST(BeforeLockInterleavingTest, NoMatchOfBlocksInUseTakesTheLockForANeighbourThatHadTheName) {
  constexpr std::uint32_t kBlocks = 100;
  Pool pool(3 * kBlocks);
  Interleaving order;
  std::vector<tokens::SequenceHash> names;
  for (std::uint32_t i = 0; i < kBlocks; ++i)
    names.push_back(*tokens::SequenceHash::make(i, 1000 + i, 999 + i));
  const std::span<const tokens::SequenceHash> behind = std::span(names).subspan(1);
  const ImmutableBlock<G1> first = registered(pool.manager, names[0]);
  BlockList<ImmutableBlock<G1>> earlier = testing::fill(pool.manager, behind);
  const BlockList<ImmutableBlock<G1>> later = testing::fill(pool.manager, behind);
  for (const bool are_gone : {false, true}) {
    if (are_gone) earlier.clear();
    const auto found = pool.manager.match_blocks(names);
    ASSERT_EQ(found.size(), kBlocks);
    EXPECT_EQ(found[1].block_id(), later[0].block_id());
    EXPECT_EQ(order.passes("match.before_lock"), 0u) << are_gone;
  }
}

TEST(BeforeLockInterleavingTest, MatchFindsAHashThatMovedToAnotherSlotBeforeTheLock) {
  Pool pool(2);
  Interleaving order;
  auto first = registered(pool.manager, kA);
  const BlockId old_slot = first.block_id();
  first = {};
  order.pause_at("match.before_lock");
  ImmutableBlock<G1> found;
  std::jthread matcher([&] { found = match_one(pool.manager, kA); });
  order.wait_until_paused("match.before_lock");

  auto owned = pool.manager.allocate_blocks(2);  // evicts kA
  ASSERT_TRUE(owned);
  auto& other = (*owned)[0].block_id() == old_slot ? (*owned)[1] : (*owned)[0];
  auto moved = testing::register_one(pool.manager, std::move(other).stage(kA, KvReady::asserted_by_caller()));
  ASSERT_NE(moved.block_id(), old_slot);
  order.resume("match.before_lock");
  matcher.join();
  ASSERT_TRUE(found);
  EXPECT_EQ(found.block_id(), moved.block_id());
  EXPECT_EQ(moved.use_count(), 2u);
  pool.check();
}

TEST(BeforeLockInterleavingTest, TwoMatchesOfAnInactiveBlockShareIt) {
  Pool pool(1);
  Interleaving order;
  registered(pool.manager, kA) = {};
  order.pause_at("match.before_lock");
  ImmutableBlock<G1> one;
  std::jthread matcher([&] { one = match_one(pool.manager, kA); });
  order.wait_until_paused("match.before_lock");
  ImmutableBlock<G1> two = match_one(pool.manager, kA);
  order.resume("match.before_lock");
  matcher.join();
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one.use_count(), 2u);
  EXPECT_EQ(pool.manager.counters().revivals, 1u);
  pool.check();
}

TEST(BeforeLockInterleavingTest, UpgradeOfABlockThatIsEvictedBeforeTheLockFindsNothingOrItsSuccessor) {
  for (const bool comes_back : {false, true}) {
    Pool pool(2);
    Interleaving order;
    auto guard = registered(pool.manager, kA);
    const auto weak = guard.downgrade();
    guard = {};
    order.pause_at("upgrade.before_lock");
    std::optional<ImmutableBlock<G1>> upgraded;
    std::jthread upgrader([&] { upgraded = weak.upgrade(); });
    order.wait_until_paused("upgrade.before_lock");

    ASSERT_TRUE(pool.manager.allocate_blocks(2));  // evicts kA; both go back
    ImmutableBlock<G1> successor;
    if (comes_back) successor = registered(pool.manager, kA);
    auto other = registered(pool.manager, kB);
    order.resume("upgrade.before_lock");
    upgrader.join();
    ASSERT_EQ(upgraded.has_value(), comes_back);
    if (comes_back) {
      EXPECT_EQ(upgraded->block_id(), successor.block_id());
    }
    pool.check();
  }
}

TEST(BeforeLockInterleavingTest, TwoRegistrationsOfOneHashMakeOnePrimaryInEitherOrder) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Pool pool(2, policy);
    Interleaving order;
    auto early = staged(pool.manager, kA);
    auto late = staged(pool.manager, kA);
    order.pause_at("register.before_lock");
    ImmutableBlock<G1> one;
    std::jthread registrant([&] { one = testing::register_one(pool.manager, std::move(early)); });
    order.wait_until_paused("register.before_lock");
    ImmutableBlock<G1> two = testing::register_one(pool.manager, std::move(late));
    order.resume("register.before_lock");
    registrant.join();
    EXPECT_FALSE(one.is_duplicate());
    EXPECT_EQ(two.is_duplicate(), policy == DuplicatePolicy::kAllow);
    EXPECT_EQ(one.block_id() == two.block_id(), policy == DuplicatePolicy::kReject);
    EXPECT_EQ(two.use_count(), policy == DuplicatePolicy::kAllow ? 1u : 2u);
    pool.check();
  }
}

TEST(BeforeLockInterleavingTest, EvictionAndRegistrationOfOneHashKeepPresenceRight) {
  // The hash is inactive; one thread evicts it, another registers a new block of it. Both orders.
  for (const bool evict_first : {false, true}) {
    Pool pool(2);
    Interleaving order;
    registered(pool.manager, kA) = {};
    const auto handle = pool.manager.block_registry().register_sequence_hash(kA);
    auto candidate = staged(pool.manager, kA);
    order.pause_at("register.before_lock");
    order.pause_at("allocate.before_lock");
    ImmutableBlock<G1> block;
    BlockList<MutableBlock<G1>> taken;
    std::jthread registrant([&] { block = testing::register_one(pool.manager, std::move(candidate)); });
    std::jthread evictor([&] {
      if (auto got = pool.manager.allocate_blocks(1)) taken = *std::move(got);
    });
    order.wait_until_paused("register.before_lock");
    order.wait_until_paused("allocate.before_lock");
    if (evict_first) {
      order.resume("allocate.before_lock");
      evictor.join();
      EXPECT_FALSE(handle.has_block<G1>());
      order.resume("register.before_lock");
      registrant.join();
      EXPECT_FALSE(block.is_duplicate());
      EXPECT_EQ(taken.size(), 1u);
    } else {
      order.resume("register.before_lock");
      registrant.join();
      order.resume("allocate.before_lock");
      evictor.join();
      EXPECT_FALSE(block.is_duplicate()) << "it took the place of the inactive one";
      EXPECT_EQ(taken.size(), 1u);
    }
    EXPECT_TRUE(handle.has_block<G1>());
    pool.check();
  }
}

TEST(BeforeLockInterleavingTest, AllocationsNeverOvercommitInAnyOrder) {
  // Three threads want 1, 2 and 3 of 4 blocks, half of them inactive; every order of their turns.
  std::vector<std::size_t> turns = {0, 1, 2};
  do {
    Pool pool(4);
    Interleaving order;
    registered(pool.manager, kA) = {};
    auto held = registered(pool.manager, kB);
    held = {};
    BlockList<MutableBlock<G1>> taken[3];
    std::jthread threads[3];
    Interleaving::Pause pauses[3];
    for (std::size_t i = 0; i < 3; ++i) {
      pauses[i] = order.pause_at("allocate.before_lock");
      threads[i] = std::jthread([&, i] {
        if (auto got = pool.manager.allocate_blocks(i + 1)) taken[i] = *std::move(got);
      });
      order.wait_until_paused(pauses[i]);
    }
    std::size_t left = 4;
    for (const std::size_t turn : turns) {
      order.resume(pauses[turn]);
      threads[turn].join();
      const bool fits = turn + 1 <= left;
      EXPECT_EQ(taken[turn].size(), fits ? turn + 1 : 0);
      if (fits) left -= turn + 1;
    }
    std::set<std::uint32_t> ids;
    std::size_t count = 0;
    for (const auto& list : taken) {
      for (const auto& block : list) ids.insert(block.block_id().value());
      count += list.size();
    }
    EXPECT_EQ(ids.size(), count);
    EXPECT_EQ(pool.manager.status().owned, count);
    EXPECT_EQ(pool.manager.available_blocks(), left);
    pool.check();
  } while (std::next_permutation(turns.begin(), turns.end()));
}

TEST(BeforeLockInterleavingTest, AnAllocationGetsWhatIsDroppedBeforeItsTurn) {
  Pool pool(1);
  Interleaving order;
  auto guard = registered(pool.manager, kA);
  order.pause_at("allocate.before_lock");
  bool got = false;
  std::jthread allocator([&] { got = pool.manager.allocate_blocks(1).has_value(); });
  order.wait_until_paused("allocate.before_lock");
  guard = {};
  order.resume("allocate.before_lock");
  allocator.join();
  EXPECT_TRUE(got);
  pool.check();
}

}  // namespace
}  // namespace ashlar::block::interleaving
