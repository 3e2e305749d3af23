// early_exit: the walk stops after the first depth at which at most one worker is left.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexEarlyExitTest : public IndexTest {};

constexpr bool kEarly = true;

TEST_P(IndexEarlyExitTest, OneWorkerStopsTheWalkAtOnce) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain);
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 1}}));
  EXPECT_FALSE(exact());
  EXPECT_EQ(depths(chain.first(1), kEarly), (Depths{{kA, 1}}));
  EXPECT_TRUE(exact());
  EXPECT_EQ(depths(chain), (Depths{{kA, 10}}));
  EXPECT_TRUE(exact());
}

TEST_P(IndexEarlyExitTest, TheLastWorkerHasTheDepthOfTheStop) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain);
  store(kB, chain, 0, 4);
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 5}, {kB, 4}}));
  EXPECT_FALSE(exact());
  EXPECT_EQ(depths(chain.first(5), kEarly), (Depths{{kA, 5}, {kB, 4}}));
  EXPECT_TRUE(exact());
  EXPECT_EQ(depths(chain.first(4), kEarly), (Depths{{kA, 4}, {kB, 4}}));
  EXPECT_TRUE(exact());
}

// The request goes on, so the answer is marked although the worker reaches no deeper.
TEST_P(IndexEarlyExitTest, ALastWorkerThatEndsAtTheStopIsMarkedToo) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain, 0, 5);
  store(kB, chain, 0, 4);
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 5}, {kB, 4}}));
  EXPECT_FALSE(exact());
}

TEST_P(IndexEarlyExitTest, WorkersThatLeaveTogetherAreExact) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain, 0, 6);
  store(kB, chain, 0, 6);
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 6}, {kB, 6}}));
  EXPECT_TRUE(exact());
}

TEST_P(IndexEarlyExitTest, WorkersThatReachTheEndOfTheRequestAreExact) {
  const Chain chain = chain_of(1, 100);
  for (const Worker& worker : {kA, kB, kC}) store(worker, chain);
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 100}, {kB, 100}, {kC, 100}}));
  EXPECT_TRUE(exact());
}

TEST_P(IndexEarlyExitTest, NoMatchIsExact) {
  EXPECT_EQ(depths(chain_of(1, 5), kEarly), Depths());
  EXPECT_TRUE(exact());
  store(kA, chain_of(1, 5));
  EXPECT_EQ(depths(chain_of(2, 5), kEarly), Depths());
  EXPECT_TRUE(exact());
  EXPECT_EQ(depths(Chain(), kEarly), Depths());
  EXPECT_TRUE(exact());
}

// Workers that never held the first block do not keep the walk going.
TEST_P(IndexEarlyExitTest, OnlyWorkersInThePrefixCount) {
  const Chain chain = chain_of(1, 8);
  store(kA, chain);
  store(kB, chain_of(2, 8));
  store(kC, chain_of(3, 8));
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 1}}));
  EXPECT_FALSE(exact());
}

TEST_P(IndexEarlyExitTest, WorkersThatFellOutBeforeAreExact) {
  const Chain chain = chain_of(1, 60);
  const std::vector<std::uint32_t> lengths = {3, 17, 17, 31, 50};
  Depths expected;
  for (std::uint64_t i = 0; i < lengths.size(); ++i) {
    store(worker_of(i), chain, 0, lengths[i]);
    expected[worker_of(i)] = lengths[i];
  }
  expected[worker_of(4)] = 32;
  EXPECT_EQ(depths(chain, kEarly), expected);
  EXPECT_FALSE(exact());
}

TEST_P(IndexEarlyExitTest, TheStopIsExactAtEveryDepth) {
  const Chain chain = chain_of(1, 140);
  store(kA, chain);
  store(kB, chain);
  for (std::uint32_t length = 139; length > 0; --length) {
    ASSERT_EQ(remove_one(kB, chain.names[length]), 1u);
    ASSERT_EQ(depths(chain, kEarly), (Depths{{kA, length + 1}, {kB, length}}));
    ASSERT_EQ(exact(), length + 1 == 140);
    ASSERT_EQ(depths(chain), (Depths{{kA, 140}, {kB, length}}));
  }
  remove_one(kB, chain.names[0]);
  EXPECT_EQ(depths(chain, kEarly), (Depths{{kA, 1}}));
}

TEST_P(IndexEarlyExitTest, ABranchLeavesOneWorker) {
  const Chain stem = chain_of(1, 80);
  const Chain branch = branch_of(stem, 33, 2, 80);
  store(kA, stem);
  store(kB, branch);
  store(kC, stem, 0, 10);
  EXPECT_EQ(depths(stem, kEarly), (Depths{{kA, 34}, {kB, 33}, {kC, 10}}));
  EXPECT_FALSE(exact());
  EXPECT_EQ(depths(branch, kEarly), (Depths{{kA, 33}, {kB, 34}, {kC, 10}}));
  EXPECT_FALSE(exact());
  EXPECT_EQ(depths(branch_of(stem, 33, 3, 80), kEarly), (Depths{{kA, 33}, {kB, 33}, {kC, 10}}));
  EXPECT_TRUE(exact());
}

TEST_P(IndexEarlyExitTest, TiersAreCountedUpToTheStop) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain, 0, 2);
  store(kA, chain, 2, 2, kHost);
  store(kA, chain, 4, 6);
  store(kB, chain, 0, 3, kDisk);
  EXPECT_EQ(scores(chain, kEarly), (Scores{{kA, {2, 4, {2, 2, 0, 0}}}, {kB, {0, 3, {0, 0, 3, 0}}}}));
  EXPECT_FALSE(exact());
  clear(kB);
  EXPECT_EQ(scores(chain, kEarly), (Scores{{kA, {1, 1, {1, 0, 0, 0}}}}));
}

// A worker that is left in a lower tier only is left.
TEST_P(IndexEarlyExitTest, LowerTiersKeepAWorkerInTheWalk) {
  const Chain chain = chain_of(1, 12);
  store(kA, chain);
  store(kB, chain, 0, 4);
  store(kB, chain, 4, 4, kExternal);
  EXPECT_EQ(scores(chain, kEarly), (Scores{{kA, {9, 9, {9, 0, 0, 0}}}, {kB, {4, 8, {4, 0, 0, 4}}}}));
  EXPECT_FALSE(exact());
}

ASHLAR_INDEX_SUITE(IndexEarlyExitTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
