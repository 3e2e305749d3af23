// Two blocks of one hash: kept side by side, or answered with the first.
#include <gtest/gtest.h>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)

class DuplicatesTest : public ::testing::Test {
 protected:
  Manager rejecting(std::uint32_t blocks) {
    return value_of(builder_of(blocks, registry_).duplicate_policy(DuplicatePolicy::kReject).build());
  }
  bool present() const { return registry_.check_presence<G1>(sequence_.sequence_hashes())[0]; }
  const TokenBlock& tokens(std::size_t i = 0) const { return sequence_.blocks()[i]; }

  TokenSequence sequence_ = sequence_of(4);
  BlockRegistry registry_ = make_registry();
};

TEST_F(DuplicatesTest, AllowKeepsBothWithTheirOwnIds) {
  Manager manager = manager_of(4, registry_);
  const Immutable primary = store_one(manager, tokens());
  const Immutable duplicate = store_one(manager, tokens());
  EXPECT_FALSE(primary.is_duplicate());
  EXPECT_TRUE(duplicate.is_duplicate());
  EXPECT_NE(primary.block_id(), duplicate.block_id());
  EXPECT_EQ(primary.sequence_hash(), duplicate.sequence_hash());
  EXPECT_EQ(primary.registration_handle(), duplicate.registration_handle());
  EXPECT_EQ(primary.use_count(), 2u) << "a duplicate keeps its primary";
  EXPECT_EQ(duplicate.use_count(), 1u);
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 2}));
  EXPECT_EQ(manager.counters().duplicates, 1u);
  const Blocks found = manager.match_blocks(sequence_.sequence_hashes());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].block_id(), primary.block_id()) << "a hash finds its primary";
}

TEST_F(DuplicatesTest, DroppingTheDuplicateFirstResetsItAndLeavesThePrimary) {
  Manager manager = manager_of(4, registry_);
  Immutable primary = store_one(manager, tokens());
  Immutable duplicate = store_one(manager, tokens());
  duplicate = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_EQ(primary.use_count(), 1u);
  EXPECT_TRUE(present());
  primary = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 3, .inactive = 1}));
  EXPECT_TRUE(present());
}

TEST_F(DuplicatesTest, ADuplicateKeepsItsPrimaryAliveUntilItGoes) {
  Manager manager = manager_of(2, registry_);
  Immutable primary = store_one(manager, tokens());
  const BlockId primary_id = primary.block_id();
  Immutable duplicate = store_one(manager, tokens());
  primary = Immutable();
  EXPECT_EQ(places(manager), (Places{.active = 2}));
  EXPECT_FALSE(manager.allocate_blocks(1)) << "neither can be evicted";
  EXPECT_EQ(manager.match_blocks(sequence_.sequence_hashes())[0].block_id(), primary_id);
  const Immutable copy = duplicate;
  duplicate = Immutable();
  EXPECT_EQ(places(manager), (Places{.active = 2}));
  Immutable last = copy;
  {
    const Immutable gone = std::move(last);
  }
  EXPECT_EQ(copy.use_count(), 1u);
}

TEST_F(DuplicatesTest, TheLastDuplicateSendsThePrimaryToTheInactivePool) {
  Manager manager = manager_of(4, registry_);
  Immutable primary = store_one(manager, tokens());
  Blocks duplicates;
  for (int i = 0; i < 3; ++i) duplicates.push_back(store_one(manager, tokens()));
  EXPECT_EQ(primary.use_count(), 4u);
  primary = Immutable();
  EXPECT_EQ(places(manager), (Places{.active = 4}));
  duplicates.truncate(1);
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 2}));
  duplicates.clear();
  EXPECT_EQ(places(manager), (Places{.reset = 3, .inactive = 1}));
  EXPECT_TRUE(present());
  EXPECT_EQ(manager.match_blocks(sequence_.sequence_hashes()).size(), 1u);
}

TEST_F(DuplicatesTest, ManyDroppedTogetherSettleInOneGo) {
  Manager manager = manager_of(100, registry_);
  {
    Blocks blocks;
    for (int i = 0; i < 80; ++i) blocks.push_back(store_one(manager, tokens()));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 99, .inactive = 1}));
  EXPECT_EQ(manager.counters().duplicates, 79u);
}

TEST_F(DuplicatesTest, AllowRevivesAnInactivePrimary) {
  Manager manager = manager_of(4, registry_);
  {
    const Immutable primary = store_one(manager, tokens());
  }
  const Immutable duplicate = store_one(manager, tokens());
  EXPECT_TRUE(duplicate.is_duplicate());
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 2}));
  EXPECT_EQ(manager.counters().revivals, 1u);
}

TEST_F(DuplicatesTest, RejectAnswersWithThePrimaryAndResetsTheCandidate) {
  Manager manager = rejecting(4);
  const Immutable primary = store_one(manager, tokens());
  Complete candidate = complete_one(manager, tokens());
  const BlockId candidate_id = candidate.block_id();
  const Immutable answer = value_of(manager.register_block(std::move(candidate)));
  EXPECT_EQ(answer.block_id(), primary.block_id());
  EXPECT_NE(answer.block_id(), candidate_id) << "a block table reads its ids from the guards";
  EXPECT_FALSE(answer.is_duplicate());
  EXPECT_EQ(primary.use_count(), 2u);
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_EQ(manager.counters().deduplications, 1u);
  EXPECT_EQ(manager.counters().duplicates, 0u);
  EXPECT_EQ(manager.counters().registrations, 2u);
}

TEST_F(DuplicatesTest, RejectRevivesAnInactivePrimary) {
  Manager manager = rejecting(4);
  BlockId id;
  {
    const Immutable primary = store_one(manager, tokens());
    id = primary.block_id();
  }
  const Immutable answer = store_one(manager, tokens());
  EXPECT_EQ(answer.block_id(), id);
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_EQ(manager.counters().revivals, 1u);
}

TEST_F(DuplicatesTest, AMixedBatchKeepsItsOrderUnderBothPolicies) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(builder_of(16).duplicate_policy(policy).build());
    Immutable active = store_one(manager, tokens(1));
    {
      const Immutable inactive = store_one(manager, tokens(3));
    }
    // new, existing and active, new, existing and inactive
    const Blocks blocks = store_all(manager, sequence_);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(blocks[i].sequence_hash(), tokens(i).sequence_hash());
    const bool allow = policy == DuplicatePolicy::kAllow;
    EXPECT_EQ(blocks[1].is_duplicate(), allow);
    EXPECT_EQ(blocks[1].block_id() == active.block_id(), !allow);
    EXPECT_EQ(blocks[3].is_duplicate(), allow);
    EXPECT_FALSE(blocks[0].is_duplicate());
    EXPECT_FALSE(blocks[2].is_duplicate());
    EXPECT_EQ(places(manager).active, allow ? 6u : 4u);
    EXPECT_EQ(manager.block_registry().registered_count(), 4u);
  }
}

TEST_F(DuplicatesTest, OneBatchMayCarryAHashTwice) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(builder_of(16).duplicate_policy(policy).build());
    BlockList<Complete> batch;
    for (const std::size_t i : {0u, 1u, 0u, 1u, 0u}) batch.push_back(complete_one(manager, tokens(i)));
    const Blocks blocks = value_of(manager.register_blocks(std::move(batch)));
    const bool allow = policy == DuplicatePolicy::kAllow;
    EXPECT_FALSE(blocks[0].is_duplicate());
    EXPECT_FALSE(blocks[1].is_duplicate());
    for (const std::size_t i : {2u, 3u, 4u}) {
      EXPECT_EQ(blocks[i].is_duplicate(), allow);
      EXPECT_EQ(blocks[i].block_id() == blocks[i % 2].block_id(), !allow);
    }
    EXPECT_EQ(blocks[0].use_count(), 3u);
    EXPECT_EQ(places(manager).active, allow ? 5u : 2u);
  }
}

TEST_F(DuplicatesTest, AHashTwiceInALargeBatchIsFoundAcrossChunks) {
  Manager manager = manager_of(200);
  auto names = names_from(1, 70);
  names.push_back(names.front());
  const Blocks blocks = store_names(manager, names);
  EXPECT_TRUE(blocks[70].is_duplicate());
  EXPECT_EQ(blocks[0].use_count(), 2u);
}

TEST_F(DuplicatesTest, PresenceIsAboutTheHashNotTheNumberOfBlocks) {
  Manager manager = manager_of(4, registry_);
  Immutable primary = store_one(manager, tokens());
  Immutable duplicate = store_one(manager, tokens());
  EXPECT_TRUE(present());
  primary = Immutable();
  EXPECT_TRUE(present());
  duplicate = Immutable();
  EXPECT_TRUE(present());
  EXPECT_EQ(manager.reset_inactive_pool(), 1u);
  EXPECT_FALSE(present());
  EXPECT_EQ(registry_.registered_count(), 0u);
}

TEST_F(DuplicatesTest, AResetDuplicateSlotMayBecomeAPrimaryOfItsOwn) {
  Manager manager = manager_of(2, registry_);
  const Immutable primary = store_one(manager, tokens(0));
  BlockId id;
  {
    const Immutable duplicate = store_one(manager, tokens(0));
    id = duplicate.block_id();
  }
  const Immutable other = store_one(manager, tokens(1));
  EXPECT_EQ(other.block_id(), id);
  EXPECT_FALSE(other.is_duplicate());
  EXPECT_EQ(places(manager), (Places{.active = 2}));
}

}  // namespace
}  // namespace ashlar::block
