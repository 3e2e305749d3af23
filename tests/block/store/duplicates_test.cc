// Two blocks of one hash: kept side by side while both are in use, or answered with the first.
#include <gtest/gtest.h>

#include <chrono>
#include <tuple>
#include <utility>
#include <vector>

#include "ashlar/testing/manual_clock.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

class DuplicatesTest : public ::testing::Test {
 protected:
  Manager rejecting(std::uint32_t blocks) {
    return value_of(builder_of(blocks, registry_).duplicate_policy(DuplicatePolicy::kReject).build());
  }
  // The block that the first hash finds.
  BlockId found(Manager& manager) const {
    const Blocks blocks = manager.match_blocks(sequence_.sequence_hashes());
    EXPECT_FALSE(blocks.empty());
    return blocks[0].block_id();
  }
  bool present() const { return registry_.check_presence<G1>(sequence_.sequence_hashes())[0]; }
  const TokenBlock& tokens(std::size_t i = 0) const { return sequence_.blocks()[i]; }

  TokenSequence sequence_ = sequence_of(4);
  BlockRegistry registry_ = make_registry();
};

TEST_F(DuplicatesTest, AllowKeepsBothWithTheirOwnIds) {
  Manager manager = manager_of(4, registry_);
  const Immutable duplicate = store_one(manager, tokens());
  EXPECT_FALSE(duplicate.is_duplicate());
  const Immutable primary = store_one(manager, tokens());
  EXPECT_FALSE(primary.is_duplicate()) << "the block that was registered last";
  EXPECT_TRUE(duplicate.is_duplicate());
  EXPECT_NE(primary.block_id(), duplicate.block_id());
  EXPECT_EQ(primary.sequence_hash(), duplicate.sequence_hash());
  EXPECT_EQ(primary.registration_handle(), duplicate.registration_handle());
  EXPECT_EQ(primary.use_count(), 1u);
  EXPECT_EQ(duplicate.use_count(), 1u);
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 2}));
  EXPECT_EQ(manager.counters().duplicates, 1u);
  EXPECT_EQ(found(manager), primary.block_id()) << "a hash finds its primary";
}

// What is known of a hash stays known, whichever of its blocks it finds.
TEST_F(DuplicatesTest, MetadataAndAncestryGoFromPrimaryToPrimary) {
  Manager manager =
      value_of(builder_of(4, registry_).event_log(std::make_shared<events::EventLog>(64)).build());
  const SequenceHash hash = tokens(1).sequence_hash();
  const Immutable first = store_one(manager, tokens(1));
  ASSERT_TRUE(manager.set_metadata(hash, 7));
  const auto known = value_of(manager.describe(first.block_id())).identity;
  {
    const Immutable second = store_name(manager, hash);
    const auto found = manager.describe(hash);
    ASSERT_TRUE(found && found->id == second.block_id());
    EXPECT_EQ(found->identity->parent, known->parent);
    EXPECT_EQ(found->identity->root, known->root);
    EXPECT_EQ(found->identity->local, known->local);
    EXPECT_EQ(found->identity->metadata, 7u);
    ASSERT_TRUE(manager.set_metadata(hash, 8));
  }
  const auto found = manager.describe(hash);
  ASSERT_TRUE(found && found->id == first.block_id()) << "the other one gave way";
  EXPECT_EQ(found->identity->metadata, 8u);
}

TEST_F(DuplicatesTest, MetadataOfAPrimaryThatIsNotWrittenGoesToItsDuplicate) {
  Manager manager =
      value_of(builder_of(4, registry_).event_log(std::make_shared<events::EventLog>(64)).build());
  const SequenceHash hash = tokens(1).sequence_hash();
  const Immutable written = store_one(manager, tokens(1));
  auto [fence, signal] = Fence::create();
  const Immutable late =
      value_of(manager.register_block(complete_one(manager, tokens(1)), {.after = {fence}}));
  ASSERT_TRUE(manager.set_metadata(hash, 9));
  std::move(signal).fail();
  const auto found = manager.describe(hash);
  ASSERT_TRUE(found && found->id == written.block_id());
  EXPECT_EQ(found->identity->metadata, 9u);
}

TEST_F(DuplicatesTest, DroppingTheDuplicateFirstResetsItAndLeavesThePrimary) {
  Manager manager = manager_of(4, registry_);
  Immutable duplicate = store_one(manager, tokens());
  Immutable primary = store_one(manager, tokens());
  duplicate = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_FALSE(primary.is_duplicate());
  EXPECT_TRUE(present());
  primary = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 3, .inactive = 1}));
  EXPECT_TRUE(present());
}

TEST_F(DuplicatesTest, APrimaryThatNobodyRefersToGivesWayToItsDuplicate) {
  Manager manager = manager_of(2, registry_);
  Immutable duplicate = store_one(manager, tokens());
  Immutable primary = store_one(manager, tokens());
  const WeakBlock<G1> weak = primary.downgrade();
  const RegistrationHandle handle = primary.registration_handle();
  primary = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 1})) << "one block of the hash is enough";
  EXPECT_FALSE(duplicate.is_duplicate());
  EXPECT_TRUE(present());
  EXPECT_EQ(duplicate.registration_handle(), handle);
  EXPECT_EQ(found(manager), duplicate.block_id());
  EXPECT_EQ(weak.upgrade()->block_id(), duplicate.block_id()) << "a weak reference looks for its hash";
  EXPECT_TRUE(manager.allocate_blocks(1).has_value());
  duplicate = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
  EXPECT_TRUE(present());
}

TEST_F(DuplicatesTest, EachOfManyGivesWayToTheOneBefore) {
  Manager manager = manager_of(5, registry_);
  std::vector<Immutable> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(store_one(manager, tokens()));
  blocks[2] = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 4}));
  std::size_t primary = 4;
  for (const std::size_t heir : {3u, 1u, 0u}) {
    EXPECT_TRUE(blocks[heir].is_duplicate());
    blocks[std::exchange(primary, heir)] = Immutable();
    EXPECT_FALSE(blocks[heir].is_duplicate());
    EXPECT_EQ(found(manager), blocks[heir].block_id());
    manager.check_invariants();
  }
  EXPECT_EQ(places(manager), (Places{.reset = 4, .active = 1}));
  blocks.clear();
  EXPECT_EQ(places(manager), (Places{.reset = 4, .inactive = 1}));
}

TEST_F(DuplicatesTest, AMatchedPrimaryStaysAndItsDuplicateToo) {
  Manager manager = manager_of(4, registry_);
  const Immutable duplicate = store_one(manager, tokens());
  Immutable primary = store_one(manager, tokens());
  Blocks third = manager.match_blocks(sequence_.sequence_hashes());
  primary = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 2}));
  EXPECT_TRUE(duplicate.is_duplicate());
  third.clear();
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_FALSE(duplicate.is_duplicate());
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

TEST_F(DuplicatesTest, ACandidateTakesThePlaceOfAnInactivePrimary) {
  Manager manager = manager_of(4, registry_);
  Immutable first = store_one(manager, tokens());
  const BlockId old = first.block_id();
  const WeakBlock<G1> weak = first.downgrade();
  first = Immutable();
  const Immutable second = store_one(manager, tokens());
  EXPECT_FALSE(second.is_duplicate());
  EXPECT_NE(second.block_id(), old);
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_EQ(manager.counters().duplicates, 1u);
  EXPECT_EQ(manager.counters().revivals, 0u);
  EXPECT_EQ(found(manager), second.block_id());
  EXPECT_EQ(weak.upgrade()->block_id(), second.block_id());
  EXPECT_EQ(registry_.registered_count(), 1u);
  manager.check_invariants();
}

TEST_F(DuplicatesTest, APinKeepsThePrimaryUntilItEnds) {
  ManualClock clock;
  Manager manager = value_of(builder_of(4, registry_).clock(clock).build());
  Immutable primary = store_one(manager, tokens());
  const BlockId id = primary.block_id();
  const Pin pin = value_of(primary.pin(1s));
  primary = Immutable();
  const Immutable duplicate = store_one(manager, tokens());
  EXPECT_TRUE(duplicate.is_duplicate()) << "a pin is a promise about one block";
  EXPECT_EQ(places(manager), (Places{.reset = 2, .pinned = 1, .active = 1}));
  EXPECT_EQ(found(manager), id);
  clock.advance(2s);
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
  EXPECT_FALSE(duplicate.is_duplicate());
  EXPECT_EQ(found(manager), duplicate.block_id());
  manager.check_invariants();
}

TEST_F(DuplicatesTest, AHoldKeepsThePrimaryUntilItEnds) {
  for (const bool aside : {false, true}) {
    Manager manager = manager_of(4);
    Immutable primary = store_one(manager, tokens());
    const BlockId id = primary.block_id();
    Hold hold = value_of(manager.hold(tokens().sequence_hash()));
    primary = Immutable();
    if (aside) {
      EXPECT_EQ(manager.reset_inactive_pool(), 0u) << "its turn came while it was held";
    }
    const Immutable duplicate = store_one(manager, tokens());
    EXPECT_TRUE(duplicate.is_duplicate());
    EXPECT_EQ(found(manager), id);
    manager.check_invariants();
    hold = Hold();
    EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
    EXPECT_FALSE(duplicate.is_duplicate());
    EXPECT_EQ(found(manager), duplicate.block_id());
    manager.check_invariants();
  }
}

TEST_F(DuplicatesTest, ADuplicateOfAHeldPrimaryMayGoFirst) {
  Manager manager = manager_of(4, registry_);
  std::ignore = store_one(manager, tokens(0));
  std::ignore = store_one(manager, tokens(1));
  Hold hold = value_of(manager.hold(tokens().sequence_hash()));
  std::ignore = store_one(manager, tokens(0));
  EXPECT_EQ(places(manager), (Places{.reset = 2, .inactive = 1, .held = 1}));
  hold = Hold();
  EXPECT_EQ(manager.eviction_candidates(2),
            (std::vector{tokens(1).sequence_hash(), tokens(0).sequence_hash()}))
      << "the hash was used last";
  manager.check_invariants();
}

TEST_F(DuplicatesTest, TheWorthOfAPrimaryPassesToTheBlockThatTakesItsPlace) {
  for (const bool inactive : {false, true}) {
    Manager manager = value_of(builder_of(8).with_retention_backend().build());
    Immutable first = store_one(manager, tokens());
    EXPECT_TRUE(first.set_retention({.priority = 90}));
    if (inactive) first = Immutable();
    Immutable second = store_one(manager, tokens());
    first = Immutable();
    second = Immutable();
    std::ignore = store_one(manager, tokens(1));
    EXPECT_EQ(manager.eviction_candidates(1), std::vector{tokens(1).sequence_hash()});
  }
}

TEST_F(DuplicatesTest, RetentionOfADuplicateIsThatOfItsHash) {
  Manager manager = value_of(builder_of(8).with_retention_backend().build());
  Immutable duplicate = store_one(manager, tokens());
  Immutable primary = store_one(manager, tokens());
  EXPECT_TRUE(duplicate.set_retention({.priority = 90}));
  duplicate = Immutable();
  primary = Immutable();
  std::ignore = store_one(manager, tokens(1));
  EXPECT_EQ(manager.eviction_candidates(1), std::vector{tokens(1).sequence_hash()});
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
    EXPECT_EQ(active.is_duplicate(), allow);
    EXPECT_EQ(blocks[1].block_id() == active.block_id(), !allow);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_FALSE(blocks[i].is_duplicate());
    EXPECT_EQ(places(manager).active, allow ? 5u : 4u);
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
    EXPECT_FALSE(blocks[4].is_duplicate());
    EXPECT_FALSE(blocks[3].is_duplicate());
    for (const std::size_t i : {0u, 1u, 2u}) {
      EXPECT_EQ(blocks[i].is_duplicate(), allow);
      EXPECT_EQ(blocks[i].block_id() == blocks[i + 2].block_id(), !allow);
    }
    EXPECT_EQ(blocks[0].use_count(), allow ? 1u : 3u);
    EXPECT_EQ(places(manager).active, allow ? 5u : 2u);
  }
}

TEST_F(DuplicatesTest, AHashTwiceInALargeBatchIsFoundAcrossChunks) {
  Manager manager = manager_of(200);
  auto names = names_from(1, 70);
  names.push_back(names.front());
  const Blocks blocks = store_names(manager, names);
  EXPECT_TRUE(blocks[0].is_duplicate());
  EXPECT_FALSE(blocks[70].is_duplicate());
  EXPECT_EQ(manager.counters().duplicates, 1u);
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
