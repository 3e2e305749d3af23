// LineageBackend through a manager, in both orders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "ashlar/base/random.h"
#include "block/eviction/lineage_backend.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using support::builder_of;
using support::sequence_of;
using support::store_all;
using support::store_name;
using support::value_of;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using tokens::SequenceHash;

class LineageManagerTest : public ::testing::TestWithParam<LineageOrder> {
 protected:
  support::Manager manager_of(std::uint32_t blocks) const {
    return value_of(builder_of(blocks).with_lineage_backend(GetParam()).build());
  }
  // Stores the sequence and releases it head first, against the order of its eviction.
  static void store_and_release(support::Manager& manager, const tokens::TokenSequence& sequence) {
    auto blocks = store_all(manager, sequence);
    for (support::Immutable& block : blocks) block = support::Immutable();
  }
};
INSTANTIATE_TEST_SUITE_P(, LineageManagerTest,
                         ::testing::Values(LineageOrder::kOldestChainFirst, LineageOrder::kRoundRobin),
                         [](const auto& order) {
                           return order.param == LineageOrder::kOldestChainFirst ? "OldestChainFirst"
                                                                                 : "RoundRobin";
                         });

TEST_P(LineageManagerTest, TheTailOfASequenceIsEvictedBeforeItsHead) {
  auto manager = manager_of(6);
  const auto sequence = sequence_of(6);
  const auto names = sequence.sequence_hashes();
  store_and_release(manager, sequence);
  EXPECT_THAT(manager.eviction_candidates(6), ElementsAreArray(names.rbegin(), names.rend()));
  const auto taken = value_of(manager.allocate_blocks_with_evictions(4));
  EXPECT_THAT(taken.evicted, ElementsAreArray(names.rbegin(), names.rbegin() + 4));
  EXPECT_EQ(manager.match_blocks(names).size(), 2u);
}

TEST_P(LineageManagerTest, KeyedSequencesAreEvictedFromTheirTailsToo) {
  auto manager = manager_of(6);
  const tokens::SequenceHasher hasher(tokens::HashScheme::keyed128({1, 2, 3}), tokens::Salt{});
  const auto tokens = support::tokens_from(0, 6 * support::kBlockSize);
  const auto sequence = value_of(
      tokens::TokenSequence::create(std::span<const tokens::Token>(tokens), support::kBlockSize, hasher));
  const auto names = sequence.sequence_hashes();
  ASSERT_TRUE(names[0].is_keyed());
  store_and_release(manager, sequence);
  EXPECT_THAT(manager.eviction_candidates(6), ElementsAreArray(names.rbegin(), names.rend()));
}

TEST_P(LineageManagerTest, WhatAWindowReleasedStaysWhileABlockAfterItIsInUse) {
  auto manager = manager_of(7);
  const auto sequence = sequence_of(4);
  const auto names = sequence.sequence_hashes();
  const auto other = sequence_of(2, 1000).sequence_hashes();
  auto window = store_all(manager, sequence);
  auto last = window.take_back();
  window.clear();  // the first three, before anything else
  store_and_release(manager, sequence_of(2, 1000));
  const auto unrelated = support::take_one(manager);  // the seventh block
  {
    const auto taken = value_of(manager.allocate_blocks_with_evictions(2));
    EXPECT_THAT(taken.evicted, ElementsAre(other[1], other[0]));
    EXPECT_EQ(manager.match_blocks(names).size(), 4u);  // revived, and released again
  }
  const auto taken = value_of(manager.allocate_blocks_with_evictions(3));
  EXPECT_EQ(taken.evicted.size(), 1u);  // two were empty; the third is the last resort
  EXPECT_EQ(last.sequence_hash(), names[3]);
  EXPECT_EQ(manager.available_blocks(), 2u);
  manager.check_invariants();
}

TEST_P(LineageManagerTest, ABlockResetOnReleaseFreesItsParent) {
  auto manager = manager_of(4);
  const auto sequence = sequence_of(2);
  auto blocks = store_all(manager, sequence);
  auto tail = blocks.take_back();
  blocks.clear();
  {
    const auto released = store_name(manager, SequenceHash::root(12345));
  }
  const auto head = sequence.sequence_hashes()[0];
  EXPECT_THAT(manager.eviction_candidates(2), ElementsAre(SequenceHash::root(12345), head));
  tail.set_reset_on_release(true);
  {
    const auto released = std::move(tail);
  }
  if (GetParam() == LineageOrder::kOldestChainFirst) {
    EXPECT_THAT(manager.eviction_candidates(2), ElementsAre(head, SequenceHash::root(12345)));
  }
  EXPECT_EQ(manager.reset_inactive_pool(), 2u);
  EXPECT_THAT(manager.eviction_candidates(2), IsEmpty());
}

TEST_P(LineageManagerTest, SequencesComeAndGoUnderPressure) {
  auto manager = manager_of(32);
  Random random(17);
  for (int turn = 0; turn < 400; ++turn) {
    const auto sequence = sequence_of(1 + random.below(8), static_cast<std::uint32_t>(random.below(6)) * 100);
    const auto names = sequence.sequence_hashes();
    auto found = manager.match_blocks(names);
    const auto stored = store_all(manager, sequence);  // what was found comes back as duplicates
    EXPECT_EQ(manager.match_blocks(names).size(), names.size());
    manager.check_invariants();
  }
}

}  // namespace
}  // namespace ashlar::block
