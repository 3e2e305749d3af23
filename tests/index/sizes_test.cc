// sizes() and counters(): exact at every step, and back at the empty state when nothing is held.
#include <gtest/gtest.h>

#include "ashlar/base/random.h"
#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexSizesTest : public IndexTest {
 protected:
  // Chains with branches at many places, two names and two tiers for some of them.
  void fill(const Worker& worker) {
    const Chain stem = chain_of(1, 70);
    store(worker, stem);
    for (std::uint64_t i = 0; i < 12; ++i) store(worker, branch(i), 5 * (i + 1), 75 - 5 * (i + 1));
    store(worker, renamed(stem, 5), 0, 40);
    store(worker, stem, 10, 50, kHost);
    store(worker, branch(3), kExternal);
  }
  static Chain branch(std::uint64_t i) { return branch_of(chain_of(1, 70), 5 * (i + 1), 10 + i, 75); }
};

TEST_P(IndexSizesTest, AFreshIndexHoldsNothing) {
  const IndexSizes fresh = sizes();
  EXPECT_EQ(counted(fresh), IndexSizes());
  EXPECT_EQ(fresh.nodes, 0u);
  EXPECT_EQ(fresh.waiting_bytes, 0u);
  EXPECT_EQ(counters(), IndexCounters());
}

TEST_P(IndexSizesTest, SizesFollowEveryChange) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain, 0, 6);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 6, 6, 0, 0, 0}));
  store(kA, chain, 0, 6);  // again
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 6, 6, 0, 0, 0}));
  store(kA, chain, 6, 4);  // a continuation
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 10, 10, 0, 0, 0}));
  store(kB, chain, 0, 3);
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 13, 10, 0, 0, 0}));
  store(kB, branch_of(chain, 3, 2, 5), 3, 2);
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 15, 12, 0, 0, 0}));
  store(kA, chain, 2, 2, kDisk);
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 17, 12, 0, 0, 0}));
  remove(kA, chain, 8, 2);
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 15, 10, 0, 0, 0}));
  remove(kA, chain, 8, 2);  // again
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 15, 10, 0, 0, 0}));
  clear(kB);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 10, 8, 0, 0, 0}));
  remove(kA, chain, 4, 4);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 6, 4, 0, 0, 0}));
  remove(kA, chain, 0, 4);  // 2 and 3 are on disk
  remove(kA, chain, 2, 2, kDisk);
  EXPECT_EQ(remove(kA, chain), 0u);
  EXPECT_EQ(sizes().blocks, 0u);
  expect_empty();
}

TEST_P(IndexSizesTest, CountersTellEverything) {
  const Chain chain = chain_of(1, 6);
  IndexCounters expected;
  store(kA, chain, 0, 4);
  expected.stored = 4;
  EXPECT_EQ(counters(), expected);
  store(kA, chain);  // four of six are there
  expected.stored = 10;
  expected.repeated = 4;
  EXPECT_EQ(counters(), expected);
  store(kA, renamed(chain, 2), 0, 2);
  expected.stored = 12;
  EXPECT_EQ(counters(), expected);
  store(kB, chain, 4, 2);
  expected.unknown_parents = 1;
  const std::vector<StoredBlock> blocks = chain.blocks(0, 2);
  store({kA, kDevice, chain.names[5], 1, blocks});
  expected.wrong_positions = 1;
  store({kA, kDevice, chain.names[5], 6, blocks});
  expected.names_in_use = 1;
  store({kA, kDevice, chain.names[5], 6, {}});
  expected.empty_stores = 1;
  EXPECT_EQ(counters(), expected);
  remove(kA, chain, 4, 2);
  remove(kA, chain, 3, 3);
  remove(kB, chain, 0, 1);
  expected.removed = 3;
  expected.unknown_removals = 3;
  EXPECT_EQ(counters(), expected);
  clear(kA);
  clear(kA);
  remove_worker(77);
  expected.clears = 3;
  EXPECT_EQ(counters(), expected);
  depths(chain);
  EXPECT_EQ(counters(), expected);
  expect_empty();
}

TEST_P(IndexSizesTest, AContinuationIsNoRepeat) {
  const Chain chain = chain_of(1, 100);
  for (std::size_t from = 0; from < 100; from += 10) store(kA, chain, from, 10);
  store(kB, chain);
  EXPECT_EQ(counters().repeated, 0u);
  EXPECT_EQ(counters().stored, 200u);
}

TEST_P(IndexSizesTest, ClearingEverybodyGivesEverythingBack) {
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t id = 0; id < 20; ++id) fill(worker_of(id, static_cast<std::uint32_t>(round)));
    EXPECT_EQ(sizes().workers, 20u);
    for (std::uint64_t id = 0; id < 20; ++id) {
      if (id % 2 == 0) {
        clear(worker_of(id, static_cast<std::uint32_t>(round)));
      } else {
        remove_worker(id);
      }
    }
    expect_empty();
  }
}

TEST_P(IndexSizesTest, RemovingEveryNameGivesEverythingBack) {
  const Chain stem = chain_of(1, 70);
  Random random(11);
  for (int round = 0; round < 4; ++round) {
    for (const Worker& worker : {kA, kB, kC}) fill(worker);
    std::vector<Worker> order = {kA, kB, kC};
    random.shuffle(order);
    for (const Worker& worker : order) {
      std::vector<std::size_t> branches(12);
      for (std::size_t i = 0; i < 12; ++i) branches[i] = i;
      random.shuffle(branches);
      for (const std::size_t i : branches) {
        const std::size_t from = 5 * (i + 1);
        if (i == 3) {
          EXPECT_EQ(remove(worker, branch(3), kExternal), 75u);
        }
        EXPECT_EQ(remove(worker, branch(i), from, 75 - from), 75 - from);
      }
      EXPECT_EQ(remove(worker, stem, 10, 50, kHost), 50u);
      EXPECT_EQ(remove(worker, renamed(stem, 5), 0, 40), 40u);
      EXPECT_EQ(remove(worker, stem), 70u);
    }
    expect_empty();
  }
}

TEST_P(IndexSizesTest, ChurnLeavesNothingBehind) {
  Random random(5);
  std::vector<Chain> live;
  for (std::uint64_t round = 0; round < 400; ++round) {
    const Chain chain = live.empty() || random.chance(0.4)
                            ? chain_of(round + 10, 1 + random.below(80))
                            : branch_of(live.back(), 1 + random.below(live.back().size()), round + 10,
                                        live.back().size() + random.below(30));
    const Worker worker = worker_of(round % 5);
    ASSERT_EQ(store(worker, chain, kAllStorageTiers[round % kStorageTiers]), kApplied);
    live.push_back(chain);
    if (live.size() > 12) {
      remove_worker(random.below(5));
      live.erase(live.begin());
    }
  }
  for (std::uint64_t id = 0; id < 5; ++id) remove_worker(id);
  expect_empty();
}

TEST_P(IndexSizesTest, WhatIsHeldTakesMemoryThatIsAccountedFor) {
  const IndexSizes fresh = sizes();
  fill(kA);
  const IndexSizes held_sizes = sizes();
  EXPECT_LE(held_sizes.waiting_bytes, held_sizes.bytes);
  EXPECT_GE(held_sizes.bytes, fresh.bytes);
  EXPECT_EQ(held_sizes.nodes > 0, held_sizes.bytes > fresh.bytes);
}

ASHLAR_INDEX_SUITE(IndexSizesTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
