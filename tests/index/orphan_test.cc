// MidChainRemoval::kOrphan: what lies behind a removed block is forgotten with it.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexOrphanTest : public IndexTest {};

TEST_P(IndexOrphanTest, BlocksBehindARemovedOneAreStoredAgainOneByOne) {
  const Chain chain = chain_of(1, 5);
  store(kA, chain);
  EXPECT_EQ(remove_one(kA, chain.names[2]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 2}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 2, 2, 0, 0, 0}));
  EXPECT_EQ(store(kA, chain, 2, 1), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 3}}));
  EXPECT_EQ(store(kA, chain, 3, 2), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 5}}));
  EXPECT_EQ(counters().repeated, 0u);
}

TEST_P(IndexOrphanTest, ForgottenNamesAreUnknown) {
  const Chain chain = chain_of(1, 6);
  store(kA, chain);
  remove_one(kA, chain.names[2]);
  expect_unchanged([&] {
    EXPECT_EQ(remove(kA, chain, 3, 3), 0u);
    EXPECT_EQ(store(kA, branch_of(chain, 5, 2, 9), 5, 4), kUnknownParent);
  });
  EXPECT_EQ(counters().removed, 1u);
  EXPECT_EQ(counters().unknown_removals, 3u);
  Chain reused = chain_of(3, 2);
  reused.names = {chain.names[4], chain.names[5]};
  EXPECT_EQ(store(kA, reused), kApplied);
  EXPECT_EQ(depths(reused), (Depths{{kA, 2}}));
}

TEST_P(IndexOrphanTest, RemovingTheFirstBlockForgetsEveryBranch) {
  const Chain stem = chain_of(1, 20);
  store(kA, stem);
  for (std::uint64_t kept = 1; kept < 20; kept += 3) store(kA, branch_of(stem, kept, 10 + kept, 30), kDisk);
  store(kB, stem);
  EXPECT_EQ(remove_one(kA, stem.names[0]), 1u);  // the branches keep it on disk
  EXPECT_EQ(depths(stem), (Depths{{kA, 20}, {kB, 20}}));
  EXPECT_EQ(remove_one(kA, stem.names[0], kDisk), 1u);
  EXPECT_EQ(depths(stem), (Depths{{kB, 20}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 20, 20, 0, 0, 0}));
  EXPECT_EQ(remove(kB, kDevice, stem.names), 1u);
  EXPECT_EQ(counters().unknown_removals, 19u);
  expect_empty();
}

TEST_P(IndexOrphanTest, OtherBranchesAndOtherWorkersStay) {
  const Chain stem = chain_of(1, 40);
  const Chain left = branch_of(stem, 10, 2, 40);
  const Chain right = branch_of(stem, 25, 3, 60);
  for (const Worker& worker : {kA, kB}) {
    store(worker, stem);
    store(worker, left, 10, 30);
    store(worker, right, 25, 35);
  }
  EXPECT_EQ(remove_one(kA, stem.names[20]), 1u);
  EXPECT_EQ(depths(stem), (Depths{{kA, 20}, {kB, 40}}));
  EXPECT_EQ(depths(left), (Depths{{kA, 40}, {kB, 40}}));
  EXPECT_EQ(depths(right), (Depths{{kA, 20}, {kB, 60}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 105u + 50, 105, 0, 0, 0}));
}

TEST_P(IndexOrphanTest, ABlockThatIsStillInAnotherTierKeepsWhatLiesBehind) {
  const Chain chain = chain_of(1, 6);
  store(kA, chain);
  store(kA, chain, 2, 1, kHost);
  EXPECT_EQ(remove_one(kA, chain.names[2]), 1u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {2, 6, {5, 1, 0, 0}}}}));
  EXPECT_EQ(remove_one(kA, chain.names[2], kHost), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 2}}));
  EXPECT_EQ(sizes().blocks, 2u);
}

TEST_P(IndexOrphanTest, ABlockThatHasAnotherNameKeepsWhatLiesBehind) {
  const Chain chain = chain_of(1, 6);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  store(kA, other, 0, 3);
  EXPECT_EQ(remove_one(kA, chain.names[1]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 6}}));
  EXPECT_EQ(remove_one(kA, other.names[1]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 1}}));
  EXPECT_EQ(remove_one(kA, other.names[2]), 0u);
}

TEST_P(IndexOrphanTest, BlocksAreForgottenInEveryTierAndUnderEveryName) {
  const Chain chain = chain_of(1, 8);
  store(kA, chain);
  store(kA, renamed(chain, 2));
  for (const StorageTier tier : {kHost, kDisk, kExternal}) store(kA, chain, 4, 4, tier);
  EXPECT_EQ(sizes().blocks, 8u + 3 * 4);
  remove_one(kA, chain.names[3]);
  remove_one(kA, renamed(chain, 2).names[3]);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 3, 3, 0, 0, 0}));
  clear(kA);
  expect_empty();
}

TEST_P(IndexOrphanTest, ARemovalFromTheFrontFindsTheRestForgotten) {
  const Chain chain = chain_of(1, 200);
  store(kA, chain);
  EXPECT_EQ(remove(kA, kDevice, chain.names), 1u);
  EXPECT_EQ(counters().unknown_removals, 199u);
  expect_empty();
}

TEST_P(IndexOrphanTest, AHundredThousandBlocksAreForgottenAtOnce) {
  const Chain chain = chain_of(1, 100'000);
  store(kA, chain);
  store(kB, chain, 0, 50'000);
  EXPECT_EQ(remove_one(kA, chain.names[0]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kB, 50'000}}));
  EXPECT_EQ(remove_one(kB, chain.names[0]), 1u);
  expect_empty();
}

ASHLAR_INDEX_SUITE(IndexOrphanTest, orphan_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
