// Holes: a removed block ends the prefix, and what lies behind it stays (MidChainRemoval::kRetain).
#include <gtest/gtest.h>

#include <numeric>

#include "ashlar/base/random.h"
#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexMidChainTest : public IndexTest {};

TEST_P(IndexMidChainTest, AHoleEndsThePrefixAndTheBlockRestoresIt) {
  const Chain chain = chain_of(1, 5);
  store(kA, chain);
  EXPECT_EQ(remove_one(kA, chain.names[2]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 2}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 4, 4, 0, 0, 0}));
  EXPECT_EQ(store(kA, chain, 2, 1), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 5}}));
  EXPECT_EQ(counters().repeated, 0u);
  EXPECT_EQ(remove(kA, chain), 5u);
  expect_empty();
}

TEST_P(IndexMidChainTest, AHoleAnywhereEndsThePrefixThere) {
  const Chain chain = chain_of(1, 140);
  store(kA, chain);
  store(kB, chain);
  for (std::uint32_t hole = 0; hole < 140; ++hole) {
    ASSERT_EQ(remove_one(kA, chain.names[hole]), 1u);
    Depths expected = {{kB, 140}};
    if (hole > 0) expected[kA] = hole;
    ASSERT_EQ(depths(chain), expected);
    ASSERT_EQ(sizes().blocks, 279u);
    ASSERT_EQ(store(kA, chain, hole, 1), kApplied);
  }
  EXPECT_EQ(depths(chain), (Depths{{kA, 140}, {kB, 140}}));
}

TEST_P(IndexMidChainTest, TheFirstHoleCounts) {
  const Chain chain = chain_of(1, 200);
  store(kA, chain);
  std::vector<std::uint32_t> holes(100);
  std::iota(holes.begin(), holes.end(), 0u);
  for (std::uint32_t& hole : holes) hole = 2 * hole + 1;
  Random random(3);
  random.shuffle(holes);
  std::uint32_t first = 200;
  for (const std::uint32_t hole : holes) {
    ASSERT_EQ(remove_one(kA, chain.names[hole]), 1u);
    first = std::min(first, hole);
    ASSERT_EQ(depths(chain), (Depths{{kA, first}}));
  }
  EXPECT_EQ(sizes().contents, 100u);
  std::vector<bool> open(200);
  for (const std::uint32_t hole : holes) open[hole] = true;
  random.shuffle(holes);
  for (const std::uint32_t hole : holes) {
    ASSERT_EQ(store(kA, chain, hole, 1), kApplied);
    open[hole] = false;
    first = static_cast<std::uint32_t>(std::find(open.begin(), open.end(), true) - open.begin());
    ASSERT_EQ(depths(chain), (Depths{{kA, first}}));
  }
}

// A query that only counts workers would credit B with what A holds behind its hole.
TEST_P(IndexMidChainTest, AWorkerIsNotCreditedWithWhatAnotherHoldsBehindAHole) {
  const Chain prefix = chain_of(1, 8);
  const Chain longer = branch_of(prefix, 8, 2, 16);
  store(kA, longer);
  store(kB, prefix);
  EXPECT_EQ(remove_one(kA, prefix.names[3]), 1u);
  EXPECT_EQ(depths(longer), (Depths{{kA, 3}, {kB, 8}}));
  EXPECT_EQ(remove_one(kB, prefix.names[7]), 1u);
  EXPECT_EQ(depths(longer), (Depths{{kA, 3}, {kB, 7}}));
  EXPECT_EQ(store(kA, longer, 3, 1), kApplied);
  EXPECT_EQ(depths(longer), (Depths{{kA, 16}, {kB, 7}}));
}

// The sets at positions 10, 100 and 150 have equal sizes and different members.
TEST_P(IndexMidChainTest, EqualNumbersOfWorkersAreNotEqualWorkers) {
  const Chain chain = chain_of(1, 160);
  for (const Worker& worker : {kA, kB, kC}) store(worker, chain);
  remove_one(kA, chain.names[10]);
  remove_one(kB, chain.names[100]);
  remove_one(kC, chain.names[150]);
  EXPECT_EQ(depths(chain), (Depths{{kA, 10}, {kB, 100}, {kC, 150}}));
  store(kB, chain, 100, 1);
  EXPECT_EQ(depths(chain), (Depths{{kA, 10}, {kB, 160}, {kC, 150}}));
}

TEST_P(IndexMidChainTest, AnotherWorkersBlockDoesNotFillTheHole) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain);
  remove_one(kA, chain.names[4]);  // nobody holds this block now
  store(kB, chain, 0, 7);
  EXPECT_EQ(depths(chain), (Depths{{kA, 4}, {kB, 7}}));
  EXPECT_EQ(remove(kB, chain, 0, 7), 7u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 4}}));
  EXPECT_EQ(store(kA, chain, 4, 1), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 10}}));
}

TEST_P(IndexMidChainTest, AChainWithoutItsFirstBlockWaitsForIt) {
  const Chain chain = chain_of(1, 30);
  store(kA, chain);
  EXPECT_EQ(remove(kA, chain, 0, 12), 12u);
  EXPECT_EQ(depths(chain), Depths());
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 18, 18, 0, 0, 0}));
  EXPECT_EQ(store(kA, chain, 0, 5), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 5}}));
  EXPECT_EQ(store(kA, chain, 5, 7), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 30}}));
}

TEST_P(IndexMidChainTest, ABlockBehindAHoleIsStillAParent) {
  const Chain chain = chain_of(1, 20);
  store(kA, chain, 0, 10);
  remove_one(kA, chain.names[3]);
  EXPECT_EQ(store(kA, chain, 10, 10), kApplied);
  const Chain branch = branch_of(chain, 7, 2, 12);
  EXPECT_EQ(store(kA, branch, 7, 5), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 3}}));
  EXPECT_EQ(store(kA, chain, 3, 1), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 20}}));
  EXPECT_EQ(depths(branch), (Depths{{kA, 12}}));
}

TEST_P(IndexMidChainTest, PositionsBehindAHoleAreStillChecked) {
  const Chain chain = chain_of(1, 12);
  store(kA, chain, 0, 10);
  remove(kA, chain, 0, 9);
  const std::vector<StoredBlock> blocks = chain.blocks(10, 2);
  EXPECT_EQ(store({kA, kDevice, chain.names[9], 1, blocks}), kWrongPosition);
  EXPECT_EQ(store({kA, kDevice, chain.names[9], 10, blocks}), kApplied);
  EXPECT_EQ(store(kA, chain, 0, 9), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 12}}));
}

TEST_P(IndexMidChainTest, AHoleMayBeFilledUnderAnotherName) {
  const Chain chain = chain_of(1, 6);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  remove_one(kA, chain.names[3]);
  const StoredBlock block{chain.locals[3], other.names[3]};
  EXPECT_EQ(store({kA, kDevice, chain.names[2], 3, {&block, 1}}), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 6}}));
  EXPECT_EQ(remove_one(kA, chain.names[3]), 0u);
  EXPECT_EQ(remove_one(kA, other.names[3]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 3}}));
}

TEST_P(IndexMidChainTest, TheOrderOfARemovalDoesNotMatter) {
  const Chain chain = chain_of(1, 70);
  const Chain branch = branch_of(chain, 33, 2, 70);
  Random random(5);
  for (int order = 0; order < 4; ++order) {
    store(kA, chain);
    store(kA, branch, 33, 37);
    std::vector<BlockName> names = chain.names;
    names.insert(names.end(), branch.names.begin() + 33, branch.names.end());
    if (order == 1) std::ranges::reverse(names);
    if (order > 1) random.shuffle(names);
    ASSERT_EQ(remove(kA, kDevice, names), 107u);
    expect_empty();
  }
}

TEST_P(IndexMidChainTest, TheFrontMayGoFirst) {
  const Chain chain = chain_of(1, 40);
  store(kA, chain);
  store(kB, chain);
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_EQ(depths(chain)[kB], 40u);
    ASSERT_EQ(remove_one(kA, chain.names[i]), 1u);
    ASSERT_FALSE(depths(chain).contains(kA));
  }
  EXPECT_EQ(remove(kB, kDevice, chain.names), 40u);
  expect_empty();
}

// Nobody holds the middle; both ends have other holders.
TEST_P(IndexMidChainTest, WorkersMayHoldDifferentPartsOfAChain) {
  const Chain chain = chain_of(1, 30);
  store(kA, chain);
  store(kB, chain);
  remove(kA, chain, 10, 20);
  remove(kB, chain, 0, 20);
  EXPECT_EQ(depths(chain), (Depths{{kA, 10}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 20, 20, 0, 0, 0}));
  EXPECT_EQ(store(kA, chain, 10, 10), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 20}}));
  EXPECT_EQ(store(kB, chain, 0, 20), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 20}, {kB, 30}}));
}

// Branches appear and go while the block before them is missing.
TEST_P(IndexMidChainTest, BranchesBehindAHoleComeAndGo) {
  const Chain stem = chain_of(1, 50);
  store(kA, stem);
  remove(kA, stem, 20, 5);
  for (std::uint64_t i = 0; i < 10; ++i) {
    const Chain branch = branch_of(stem, 26 + 2 * i, 10 + i, 60);
    ASSERT_EQ(store(kA, branch, 26 + 2 * i, 34 - 2 * i), kApplied);
    ASSERT_EQ(depths(branch), (Depths{{kA, 20}}));
    if (i % 2 == 0) {
      ASSERT_EQ(remove(kA, branch, 26 + 2 * i, 34 - 2 * i), 34 - 2 * i);
    }
  }
  store(kA, stem, 20, 5);
  for (std::uint64_t i = 0; i < 10; ++i)
    EXPECT_EQ(depths(branch_of(stem, 26 + 2 * i, 10 + i, 60))[kA], i % 2 == 0 ? 26 + 2 * i : 60);
  EXPECT_EQ(depths(stem), (Depths{{kA, 50}}));
}

TEST_P(IndexMidChainTest, AHoleInEveryWorkerIsItsOwn) {
  const Chain chain = chain_of(1, 130);
  Depths expected;
  for (std::uint32_t i = 1; i < 130; ++i) {
    store(worker_of(i), chain);
    remove_one(worker_of(i), chain.names[i]);
    expected[worker_of(i)] = i;
  }
  EXPECT_EQ(depths(chain), expected);
  for (std::uint32_t i = 1; i < 130; i += 2) {
    store(worker_of(i), chain, i, 1);
    expected[worker_of(i)] = 130;
  }
  EXPECT_EQ(depths(chain), expected);
  for (std::uint32_t i = 1; i < 130; ++i) clear(worker_of(i));
  expect_empty();
}

ASHLAR_INDEX_SUITE(IndexMidChainTest, index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
