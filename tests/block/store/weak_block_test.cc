// Weak blocks: found alive, revived, found elsewhere, or gone.
#include <gtest/gtest.h>

#include <optional>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)

class WeakBlockTest : public ::testing::Test {
 protected:
  const TokenBlock& tokens(std::size_t i = 0) const { return sequence_.blocks()[i]; }
  TokenSequence sequence_ = sequence_of(3);
};

TEST_F(WeakBlockTest, UpgradesWhileTheBlockIsInUse) {
  Manager manager = manager_of(2);
  const Immutable block = store_one(manager, tokens());
  const WeakBlock<G1> weak = block.downgrade();
  EXPECT_EQ(weak.sequence_hash(), block.sequence_hash());
  EXPECT_EQ(block.use_count(), 1u) << "a weak block does not count";
  const auto strong = weak.upgrade();
  ASSERT_TRUE(strong);
  EXPECT_EQ(strong->block_id(), block.block_id());
  EXPECT_EQ(block.use_count(), 2u);
}

TEST_F(WeakBlockTest, RevivesAnInactiveBlock) {
  Manager manager = manager_of(2);
  const WeakBlock<G1> weak = store_one(manager, tokens()).downgrade();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
  {
    const auto strong = weak.upgrade();
    ASSERT_TRUE(strong);
    EXPECT_EQ(strong->use_count(), 1u);
    EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 1}));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
  EXPECT_EQ(manager.counters().revivals, 1u);
}

TEST_F(WeakBlockTest, FindsNothingAfterEviction) {
  Manager manager = manager_of(1);
  const WeakBlock<G1> weak = store_one(manager, tokens()).downgrade();
  const Mutable taken = take_one(manager);
  EXPECT_FALSE(weak.upgrade());
}

TEST_F(WeakBlockTest, FindsNothingWhenTheSlotHoldsAnotherHash) {
  Manager manager = manager_of(1);
  const WeakBlock<G1> weak = store_one(manager, tokens(0)).downgrade();
  const Immutable other = store_one(manager, tokens(1));
  EXPECT_FALSE(weak.upgrade()) << "the slot is in use, by somebody else's block";
  EXPECT_EQ(other.use_count(), 1u);
}

TEST_F(WeakBlockTest, FindsTheSameContentRegisteredElsewhere) {
  Manager manager = manager_of(2);
  BlockId old_id;
  const WeakBlock<G1> weak = [&] {
    const Immutable block = store_one(manager, tokens());
    old_id = block.block_id();
    return block.downgrade();
  }();
  ASSERT_EQ(manager.reset_inactive_pool(), 1u);
  EXPECT_FALSE(weak.upgrade());
  const Immutable again = store_one(manager, tokens());
  EXPECT_NE(again.block_id(), old_id);
  const auto strong = weak.upgrade();
  ASSERT_TRUE(strong);
  EXPECT_EQ(strong->block_id(), again.block_id());
}

TEST_F(WeakBlockTest, OfADuplicateUpgradesToItThenToThePrimary) {
  Manager manager = manager_of(3);
  Immutable duplicate = store_one(manager, tokens());
  const Immutable primary = store_one(manager, tokens());
  const WeakBlock<G1> weak = duplicate.downgrade();
  EXPECT_EQ(weak.upgrade()->block_id(), duplicate.block_id());
  duplicate = Immutable();
  const auto strong = weak.upgrade();
  ASSERT_TRUE(strong);
  EXPECT_EQ(strong->block_id(), primary.block_id());
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 1}));
}

TEST_F(WeakBlockTest, IsSafeAfterTheManagerIsGone) {
  std::optional<Manager> manager = manager_of(2);
  const WeakBlock<G1> weak = store_one(*manager, tokens()).downgrade();
  const WeakBlock<G1> copy = weak;
  manager.reset();
  EXPECT_FALSE(weak.upgrade());
  EXPECT_FALSE(copy.upgrade());
  EXPECT_EQ(weak.sequence_hash(), tokens().sequence_hash());
}

TEST_F(WeakBlockTest, IsNotAUse) {
  const BlockRegistry registry = make_counting_registry();
  Manager manager = manager_of(2, registry);
  Immutable block = store_one(manager, tokens());
  int touched = 0;
  block.registration_handle().on_touch([&](const RegistrationHandle&) { ++touched; });
  const WeakBlock<G1> weak = block.downgrade();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(weak.upgrade());
  block = Immutable();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(weak.upgrade());
  EXPECT_EQ(registry.count(tokens().sequence_hash()), 1u) << "the registration alone";
  EXPECT_EQ(touched, 0);
}

TEST_F(WeakBlockTest, SurvivesAMovedManager) {
  Manager manager = manager_of(2);
  const WeakBlock<G1> weak = store_one(manager, tokens()).downgrade();
  Manager moved = std::move(manager);
  EXPECT_TRUE(weak.upgrade());
  EXPECT_EQ(places(moved), (Places{.reset = 1, .inactive = 1}));
}

}  // namespace
}  // namespace ashlar::block
