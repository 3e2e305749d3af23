// Removal that leaves no hole, and removal of what is not there. Holes: mid_chain_test.cc and orphan_test.cc.
#include <gtest/gtest.h>

#include "ashlar/base/random.h"
#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexRemovalTest : public IndexTest {};

TEST_P(IndexRemovalTest, RemovingAllBlocksEmptiesTheIndex) {
  const Chain chain = chain_of(1, 9);
  store(kA, chain);
  EXPECT_EQ(remove(kA, chain), 9u);
  EXPECT_EQ(depths(chain), Depths());
  EXPECT_EQ(counters().removed, 9u);
  expect_empty();
}

TEST_P(IndexRemovalTest, RemovingTheTailShortensThePrefix) {
  const Chain chain = chain_of(1, 150);
  store(kA, chain);
  EXPECT_EQ(remove(kA, chain, 100, 50), 50u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 100}}));
  for (std::uint32_t length = 100; length > 0; --length) {
    ASSERT_EQ(depths(chain), (Depths{{kA, length}}));
    ASSERT_EQ(sizes().blocks, length);
    ASSERT_EQ(remove_one(kA, chain.names[length - 1]), 1u);
  }
  expect_empty();
}

TEST_P(IndexRemovalTest, ARemovedTailCanBeStoredAgain) {
  const Chain chain = chain_of(1, 64);
  store(kA, chain);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(remove(kA, chain, 40, 24), 24u);
    EXPECT_EQ(depths(chain), (Depths{{kA, 40}}));
    EXPECT_EQ(store(kA, chain, 40, 24), kApplied);
    EXPECT_EQ(depths(chain), (Depths{{kA, 64}}));
  }
  EXPECT_EQ(counters().repeated, 0u);
  EXPECT_EQ(remove(kA, chain), 64u);
  expect_empty();
}

TEST_P(IndexRemovalTest, ARemovedTailCanGrowInAnotherDirection) {
  const Chain chain = chain_of(1, 50);
  const Chain other = branch_of(chain, 30, 2, 60);
  store(kA, chain);
  remove(kA, chain, 30, 20);
  EXPECT_EQ(store(kA, other, 30, 30), kApplied);
  EXPECT_EQ(depths(other), (Depths{{kA, 60}}));
  EXPECT_EQ(depths(chain), (Depths{{kA, 30}}));
  EXPECT_EQ(sizes().contents, 60u);
}

TEST_P(IndexRemovalTest, RemovalsOfOneWorkerLeaveTheOthers) {
  const Chain chain = chain_of(1, 32);
  for (const Worker& worker : {kA, kB, kC}) store(worker, chain);
  EXPECT_EQ(remove(kB, chain, 10, 22), 22u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 32}, {kB, 10}, {kC, 32}}));
  EXPECT_EQ(remove(kB, chain, 0, 10), 10u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 32}, {kC, 32}}));
  EXPECT_EQ(remove(kA, chain), 32u);
  EXPECT_EQ(depths(chain), (Depths{{kC, 32}}));
  EXPECT_EQ(remove(kC, chain), 32u);
  expect_empty();
}

TEST_P(IndexRemovalTest, WhatLiesBehindStaysForTheWorkerThatHoldsIt) {
  const Chain stem = chain_of(1, 20);
  const Chain branch = branch_of(stem, 12, 2, 40);
  store(kA, stem);
  store(kB, branch);
  EXPECT_EQ(remove(kA, stem), 20u);
  EXPECT_EQ(depths(branch), (Depths{{kB, 40}}));
  EXPECT_EQ(depths(stem), (Depths{{kB, 12}}));
  EXPECT_EQ(store(kB, stem, 12, 8), kApplied);
  EXPECT_EQ(depths(stem), (Depths{{kB, 20}}));
}

// Names stay good while other workers' branches cut the run that they were stored in.
TEST_P(IndexRemovalTest, BlocksAreRemovedWhereverBranchesMovedThem) {
  const Chain stem = chain_of(1, 90);
  store(kA, stem);
  store(kB, stem);
  for (const std::size_t kept : {45u, 12u, 70u, 44u, 46u, 1u, 89u})
    ASSERT_EQ(store(worker_of(100 + kept), branch_of(stem, kept, 100 + kept, 95)), kApplied);
  EXPECT_EQ(remove(kA, stem, 46, 44), 44u);
  EXPECT_EQ(depths(stem)[kA], 46u);
  EXPECT_EQ(depths(stem)[kB], 90u);
  EXPECT_EQ(store(kA, stem, 46, 44), kApplied);
  EXPECT_EQ(depths(stem)[kA], 90u);
  EXPECT_EQ(remove(kA, stem), 90u);
  EXPECT_FALSE(depths(stem).contains(kA));
  EXPECT_EQ(depths(stem)[kB], 90u);
}

TEST_P(IndexRemovalTest, ABranchIsRemovedLeafByLeafInAnyOrder) {
  const Chain stem = chain_of(1, 20);
  std::vector<Chain> chains;
  for (std::uint64_t i = 0; i < 12; ++i) chains.push_back(branch_of(stem, 1 + i, 10 + i, 30));
  for (const Chain& chain : chains) store(kA, chain);
  store(kB, stem);
  std::vector<std::uint32_t> lengths(chains.size(), 30);
  Random random(7);
  for (int step = 0; step < 150; ++step) {
    const std::size_t i = random.below(chains.size());
    if (lengths[i] == 1 + i) continue;
    ASSERT_EQ(remove_one(kA, chains[i].names[--lengths[i]]), 1u);
    const Depths found = depths(chains[i]);
    // The stem of chain i is at least as long as what other chains keep of it.
    ASSERT_EQ(found.at(kA), lengths[i]);
    ASSERT_EQ(found.at(kB), 1 + i);
  }
  clear(kA);
  EXPECT_EQ(remove(kB, stem), 20u);
  expect_empty();
}

TEST_P(IndexRemovalTest, AnUnknownNameIsCountedAndTheRestRemoved) {
  const Chain chain = chain_of(1, 5);
  store(kA, chain);
  const std::vector<BlockName> names = {chain.names[4], BlockName(77), chain.names[3], chain.names[3],
                                        chain.names[2]};
  EXPECT_EQ(remove(kA, kDevice, names), 3u);
  EXPECT_EQ(counters().removed, 3u);
  EXPECT_EQ(counters().unknown_removals, 2u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 2}}));
}

TEST_P(IndexRemovalTest, AnUnknownRemovalChangesNothing) {
  const Chain chain = chain_of(1, 6);
  const Chain other = chain_of(2, 6);
  store(kA, chain);
  store(kB, other);
  expect_unchanged([&] {
    EXPECT_EQ(remove_one(kA, BlockName(77)), 0u);
    EXPECT_EQ(remove(kC, chain), 0u);               // a worker that holds nothing
    EXPECT_EQ(remove(kA, other), 0u);               // names of another worker
    EXPECT_EQ(remove(worker_of(1, 1), chain), 0u);  // of another rank
    EXPECT_EQ(remove(kA, chain, 0, 6, kHost), 0u);  // in another tier
    EXPECT_EQ(remove(kA, kDevice, {}), 0u);         // no names
  });
  EXPECT_EQ(counters().unknown_removals, 1u + 6 + 6 + 6 + 6);
  EXPECT_EQ(counters().removed, 0u);
}

TEST_P(IndexRemovalTest, ARemovalIsNotRepeated) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain);
  EXPECT_EQ(remove(kA, chain, 2, 2), 2u);
  expect_unchanged([&] { EXPECT_EQ(remove(kA, chain, 2, 2), 0u); });
  EXPECT_EQ(counters().unknown_removals, 2u);
}

TEST_P(IndexRemovalTest, RepeatingAStoreDoesNotMakeItNeedTwoRemovals) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain);
  store(kA, chain);
  EXPECT_EQ(remove(kA, chain), 4u);
  expect_empty();
}

TEST_P(IndexRemovalTest, ARemovedBlockIsNoParent) {
  const Chain chain = chain_of(1, 5);
  store(kA, chain, 0, 3);
  store(kB, chain);
  EXPECT_EQ(remove_one(kA, chain.names[2]), 1u);
  expect_unchanged([&] { EXPECT_EQ(store(kA, chain, 3, 2), kUnknownParent); });
  EXPECT_EQ(store(kA, chain, 2, 3), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 5}, {kB, 5}}));
}

TEST_P(IndexRemovalTest, CyclesOfStoreAndRemoveReturnToTheSameState) {
  const Chain stem = chain_of(1, 33);
  store(kA, stem);
  store(kB, stem, 0, 20);
  const testing::IndexOracle start = held();
  const IndexSizes start_sizes = counted(sizes());
  for (std::uint64_t round = 0; round < 10; ++round) {
    const Chain left = branch_of(stem, 5 + round, 100 + round, 60);
    const Chain right = branch_of(stem, 20, 200 + round, 50);
    store(kA, left, 5 + round, 55 - round);
    store(kB, right, 20, 30);
    if (round % 2 == 0) {  // one after the other
      EXPECT_EQ(remove(kA, left, 5 + round, 55 - round), 55 - round);
      EXPECT_EQ(remove(kB, right, 20, 30), 30u);
    } else {  // block by block, in turn
      for (std::size_t i = 50; i > 20; --i) {
        ASSERT_EQ(remove_one(kB, right.names[i - 1]), 1u);
        ASSERT_EQ(remove_one(kA, left.names[i + 9]), 1u);
      }
      EXPECT_EQ(remove(kA, left, 5 + round, 25 - round), 25 - round);
    }
    ASSERT_EQ(difference(start, held()), "");
    ASSERT_EQ(counted(sizes()), start_sizes);
  }
}

TEST_P(IndexRemovalTest, NothingRemainsOfABranchThatIsGone) {
  const Chain stem = chain_of(1, 40);
  store(kA, stem);
  const IndexSizes before = counted(sizes());
  for (std::uint64_t round = 0; round < 100; ++round) {
    const Chain branch = branch_of(stem, 10 + round % 20, 100 + round, 50);
    ASSERT_EQ(store(kB, branch), kApplied);
    ASSERT_EQ(remove(kB, branch), 50u);
  }
  EXPECT_EQ(counted(sizes()), before);
  EXPECT_EQ(remove(kA, stem), 40u);
  expect_empty();
}

ASHLAR_INDEX_SUITE(IndexRemovalTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
