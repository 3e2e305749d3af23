// Storage tiers: how deep a prefix reaches in the device, in any tier, and how its blocks are spread.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexTiersTest : public IndexTest {};

TEST_P(IndexTiersTest, DeviceHostDeviceCountsAsThree) {
  const Chain chain = chain_of(1, 3);
  store(kA, chain, 0, 1);
  store(kA, chain, 1, 1, kHost);
  store(kA, chain, 2, 1);
  EXPECT_EQ(scores(chain), (Scores{{kA, {1, 3, {2, 1, 0, 0}}}}));
}

TEST_P(IndexTiersTest, EachTierContinuesTheOneBefore) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain, 0, 4);
  store(kA, chain, 4, 3, kHost);
  store(kA, chain, 7, 2, kDisk);
  store(kA, chain, 9, 1, kExternal);
  EXPECT_EQ(scores(chain), (Scores{{kA, {4, 10, {4, 3, 2, 1}}}}));
  EXPECT_EQ(scores(chain.first(8)), (Scores{{kA, {4, 8, {4, 3, 1, 0}}}}));
  EXPECT_EQ(scores(chain.first(2)), (Scores{{kA, {2, 2, {2, 0, 0, 0}}}}));
}

TEST_P(IndexTiersTest, APrefixMayBeInLowerTiersOnly) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain, kExternal);
  store(kB, chain, 0, 2, kHost);
  EXPECT_EQ(scores(chain), (Scores{{kA, {0, 4, {0, 0, 0, 4}}}, {kB, {0, 2, {0, 2, 0, 0}}}}));
}

TEST_P(IndexTiersTest, ABlockInSeveralTiersCountsUnderTheFastest) {
  constexpr std::uint32_t kBlocks = (1u << kStorageTiers) - 1;
  const Chain chain = chain_of(1, kBlocks);
  // Block i is in the tiers whose bits i + 1 has.
  std::array<std::uint32_t, kStorageTiers> fastest{};
  std::size_t present = 0;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    bool first = true;
    for (const StorageTier tier : kAllStorageTiers) {
      if (((i + 1) >> static_cast<unsigned>(tier) & 1) == 0) continue;
      ASSERT_EQ(store(kA, chain, i, 1, tier), kApplied);
      ++present;
      if (first) ++fastest[static_cast<std::size_t>(tier)];
      first = false;
    }
  }
  EXPECT_EQ(scores(chain), (Scores{{kA, {1, kBlocks, fastest}}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, present, kBlocks, 0, 0, 0}));
}

TEST_P(IndexTiersTest, LeavingATierUncoversTheNext) {
  const Chain chain = chain_of(1, 6);
  for (const StorageTier tier : kAllStorageTiers) store(kA, chain, tier);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 30, 6, 0, 0, 0}));
  EXPECT_EQ(scores(chain), (Scores{{kA, {6, 6, {6, 0, 0, 0}}}}));
  EXPECT_EQ(remove_one(kA, chain.names[3]), 1u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {3, 6, {5, 1, 0, 0}}}}));
  EXPECT_EQ(remove_one(kA, chain.names[3], kHost), 1u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {3, 6, {5, 0, 0, 0, 1}}}})) << "another node's memory before a disk";
  EXPECT_EQ(remove_one(kA, chain.names[3], StorageTier::kRemote), 1u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {3, 6, {5, 0, 1, 0}}}}));
  EXPECT_EQ(remove_one(kA, chain.names[3], kDisk), 1u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {3, 6, {5, 0, 0, 1}}}}));
  EXPECT_EQ(store(kA, chain, 3, 1), kApplied);
  EXPECT_EQ(scores(chain), (Scores{{kA, {6, 6, {6, 0, 0, 0}}}}));
  EXPECT_EQ(sizes().blocks, 27u);
}

TEST_P(IndexTiersTest, TheDepthEndsWhereABlockIsInNoTier) {
  const Chain chain = chain_of(1, 8);
  store(kA, chain, 0, 4);
  store(kA, chain, 2, 6, kHost);
  EXPECT_EQ(scores(chain), (Scores{{kA, {4, 8, {4, 4, 0, 0}}}}));
  EXPECT_EQ(remove(kA, chain, 6, 2, kHost), 2u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {4, 6, {4, 2, 0, 0}}}}));
  EXPECT_EQ(remove(kA, chain, 2, 2), 2u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {2, 6, {2, 4, 0, 0}}}}));
  EXPECT_EQ(remove(kA, chain, 2, 4, kHost), 4u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {2, 2, {2, 0, 0, 0}}}}));
  EXPECT_EQ(remove(kA, chain, 0, 2), 2u);
  expect_empty();
}

TEST_P(IndexTiersTest, AParentMayBeInAnyTier) {
  const Chain chain = chain_of(1, 8);
  std::size_t at = 0;
  for (const StorageTier tier : {kDisk, kDevice, kExternal, kHost, kHost, kDevice, kDisk, kExternal})
    ASSERT_EQ(store(kA, chain, at++, 1, tier), kApplied);
  EXPECT_EQ(scores(chain), (Scores{{kA, {0, 8, {2, 2, 2, 2}}}}));
  EXPECT_EQ(store(kB, chain, 4, 1, kHost), kUnknownParent);
}

TEST_P(IndexTiersTest, ANameIsKnownWhileItIsInAnyTier) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain, 0, 2);
  store(kA, chain, 0, 2, kHost);
  EXPECT_EQ(remove_one(kA, chain.names[1]), 1u);
  EXPECT_EQ(remove_one(kA, chain.names[1]), 0u);
  EXPECT_EQ(store(kA, chain, 2, 1), kApplied);  // its parent is in the host tier
  const StoredBlock other{LocalHash(1), chain.names[1]};
  EXPECT_EQ(store({kA, kDevice, std::nullopt, std::nullopt, {&other, 1}}), kNameInUse);
  EXPECT_EQ(remove_one(kA, chain.names[2]), 1u);
  EXPECT_EQ(remove_one(kA, chain.names[1], kHost), 1u);
  EXPECT_EQ(store({kA, kDevice, std::nullopt, std::nullopt, {&other, 1}}), kApplied);
}

TEST_P(IndexTiersTest, NamesArePerTier) {
  const Chain chain = chain_of(1, 5);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  store(kA, other, kHost);
  EXPECT_EQ(sizes().blocks, 10u);
  EXPECT_EQ(remove(kA, chain, 0, 5, kHost), 0u);
  EXPECT_EQ(remove(kA, other, 0, 5), 0u);
  EXPECT_EQ(remove(kA, chain, 2, 3), 3u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {2, 5, {2, 3, 0, 0}}}}));
  EXPECT_EQ(remove(kA, other, kHost), 5u);
  EXPECT_EQ(scores(chain), (Scores{{kA, {2, 2, {2, 0, 0, 0}}}}));
}

TEST_P(IndexTiersTest, TheSameNameInASecondTierIsNoRepeat) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain);
  EXPECT_EQ(store(kA, chain, kHost), kApplied);
  EXPECT_EQ(counters().repeated, 0u);
  EXPECT_EQ(store(kA, chain, kHost), kApplied);
  EXPECT_EQ(counters().repeated, 4u);
  EXPECT_EQ(counters().stored, 12u);
  EXPECT_EQ(sizes().blocks, 8u);
}

TEST_P(IndexTiersTest, ALowerTierHasOneTwoAndManyHolders) {
  const Chain chain = chain_of(1, 12);
  store(worker_of(1), chain);
  Scores expected = {{worker_of(1), {12, 12, {12, 0, 0, 0}}}};
  for (std::uint64_t id = 2; id <= 6; ++id) {
    store(worker_of(id), chain, 0, 6);
    store(worker_of(id), chain, 6, 6, kHost);
    expected[worker_of(id)] = {6, 12, {6, 6, 0, 0}};
    EXPECT_EQ(scores(chain), expected);
  }
  for (std::uint64_t id = 6; id >= 2; --id) {
    remove(worker_of(id), chain, 6, 6, kHost);
    expected[worker_of(id)] = {6, 6, {6, 0, 0, 0}};
    EXPECT_EQ(scores(chain), expected);
  }
}

// Lower tiers are indexed under the content, whichever worker stored it first and in which tier.
TEST_P(IndexTiersTest, WorkersSpreadTheSameContentDifferently) {
  const Chain chain = chain_of(1, 100);
  Scores expected;
  for (std::uint32_t id = 1; id <= 33; ++id) {
    const Worker worker = worker_of(id);
    const StorageTier lower = kAllStorageTiers[1 + id % (kStorageTiers - 1)];
    store(worker, chain, 0, id);
    store(worker, chain, id, 2 * id, lower);
    Score score{id, 3 * id, {id, 0, 0, 0}};
    score.blocks[static_cast<std::size_t>(lower)] = 2 * id;
    expected[worker] = score;
  }
  EXPECT_EQ(scores(chain), expected);
}

TEST_P(IndexTiersTest, AClearTakesAllTiers) {
  const Chain chain = chain_of(1, 7);
  for (const StorageTier tier : kAllStorageTiers) {
    store(kA, chain, tier);
    store(kB, chain, tier);
    store(worker_of(2, 4), chain, tier);
  }
  clear(kA);
  EXPECT_EQ(depths(chain), (Depths{{kB, 7}, {worker_of(2, 4), 7}}));
  EXPECT_EQ(sizes().blocks, 70u);
  remove_worker(2);
  expect_empty();
}

TEST_P(IndexTiersTest, AnAnswerWithLowerTiersLeavesNoTraceInTheNext) {
  const Chain host = chain_of(1, 5);
  const Chain device = chain_of(2, 5);
  store(kA, host, kHost);
  store(kA, device);
  EXPECT_EQ(scores(host), (Scores{{kA, {0, 5, {0, 5, 0, 0}}}}));
  EXPECT_EQ(scores(device), (Scores{{kA, {5, 5, {5, 0, 0, 0}}}}));
  EXPECT_EQ(scores(host.first(2)), (Scores{{kA, {0, 2, {0, 2, 0, 0}}}}));
}

TEST_P(IndexTiersTest, OffloadedTailsComeBack) {
  const Chain chain = chain_of(1, 64);
  store(kA, chain);
  for (std::uint32_t round = 1; round <= 4; ++round) {
    const std::uint32_t kept = 64 - 8 * round;
    EXPECT_EQ(store(kA, chain, kept, 8 * round, kHost), kApplied);
    EXPECT_EQ(remove(kA, chain, kept, 8 * round), 8 * round);
    EXPECT_EQ(scores(chain), (Scores{{kA, {kept, 64, {kept, 8 * round, 0, 0}}}}));
    EXPECT_EQ(store(kA, chain, kept, 8 * round), kApplied);
    EXPECT_EQ(remove(kA, chain, kept, 8 * round, kHost), 8 * round);
    EXPECT_EQ(scores(chain), (Scores{{kA, {64, 64, {64, 0, 0, 0}}}}));
  }
  EXPECT_EQ(remove(kA, chain), 64u);
  expect_empty();
}

// The device prefix has holes that a lower tier fills.
TEST_P(IndexTiersTest, EveryOtherBlockIsOffloaded) {
  const Chain chain = chain_of(1, 130);
  store(kA, chain);
  store(kB, chain);
  for (std::uint32_t i = 1; i < 130; i += 2) {
    store(kA, chain, i, 1, kDisk);
    remove_one(kA, chain.names[i]);
  }
  EXPECT_EQ(scores(chain), (Scores{{kA, {1, 130, {65, 0, 65, 0}}}, {kB, {130, 130, {130, 0, 0, 0}}}}));
  EXPECT_EQ(scores(chain.first(63))[kA], (Score{1, 63, {32, 0, 31, 0}}));
}

ASHLAR_INDEX_SUITE(IndexTiersTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
