// Workers and ranks: they are separate, come, are cleared, go and return.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexWorkersTest : public IndexTest {};

TEST_P(IndexWorkersTest, RanksOfAWorkerAreSeparate) {
  const Chain chain = chain_of(1, 8);
  store(worker_of(1, 0), chain);
  store(worker_of(1, 1), chain, 0, 3);
  store(worker_of(1, 7), chain, 0, 5);
  EXPECT_EQ(sizes().workers, 3u);
  EXPECT_EQ(depths(chain), (Depths{{worker_of(1, 0), 8}, {worker_of(1, 1), 3}, {worker_of(1, 7), 5}}));
  EXPECT_EQ(store(worker_of(1, 1), chain, 5, 3), kUnknownParent);
  EXPECT_EQ(remove(worker_of(1, 0), chain, 2, 6), 6u);
  EXPECT_EQ(depths(chain), (Depths{{worker_of(1, 0), 2}, {worker_of(1, 1), 3}, {worker_of(1, 7), 5}}));
}

TEST_P(IndexWorkersTest, AClearTakesOneRank) {
  const Chain chain = chain_of(1, 6);
  for (const Worker& worker : {worker_of(1, 0), worker_of(1, 1), worker_of(2, 0)}) store(worker, chain);
  clear(worker_of(1, 0));
  EXPECT_EQ(depths(chain), (Depths{{worker_of(1, 1), 6}, {worker_of(2, 0), 6}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{2, 12, 6, 0, 0, 0}));
  EXPECT_EQ(counters().clears, 1u);
  EXPECT_EQ(counters().removed, 0u);
}

TEST_P(IndexWorkersTest, RemovingAWorkerTakesAllItsRanks) {
  const Chain chain = chain_of(1, 6);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    store(worker_of(1, rank), chain);
    store(worker_of(2, rank), chain, 0, 2);
  }
  remove_worker(1);
  EXPECT_EQ(sizes().workers, 4u);
  EXPECT_EQ(sizes().contents, 2u);
  EXPECT_EQ(depths(chain),
            (Depths{{worker_of(2, 0), 2}, {worker_of(2, 1), 2}, {worker_of(2, 2), 2}, {worker_of(2, 3), 2}}));
  remove_worker(2);
  EXPECT_EQ(counters().clears, 2u);
  expect_empty();
}

TEST_P(IndexWorkersTest, ClearingNobodyChangesNothing) {
  clear(kA);
  remove_worker(9);
  expect_empty();
  store(kA, chain_of(1, 5));
  expect_unchanged([&] {
    clear(kB);
    clear(worker_of(1, 1));
    remove_worker(2);
  });
  EXPECT_EQ(counters().clears, 5u);
}

TEST_P(IndexWorkersTest, AClearedWorkerStartsAnew) {
  const Chain chain = chain_of(1, 12);
  const Chain other = branch_of(chain, 5, 2, 12);
  store(kA, chain);
  store(kB, chain);
  clear(kA);
  EXPECT_EQ(store(kA, chain, 6, 6), kUnknownParent);
  EXPECT_EQ(remove(kA, chain), 0u);
  EXPECT_EQ(depths(chain), (Depths{{kB, 12}}));
  EXPECT_EQ(store(kA, other), kApplied);
  EXPECT_EQ(counters().repeated, 0u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 5}, {kB, 12}}));
  EXPECT_EQ(depths(other), (Depths{{kA, 12}, {kB, 5}}));
  clear(kA);
  clear(kA);
  clear(kB);
  expect_empty();
}

TEST_P(IndexWorkersTest, AClearReachesEveryBranch) {
  const Chain stem = chain_of(1, 60);
  std::vector<Chain> chains = {stem};
  for (std::uint64_t i = 1; i < 20; ++i) chains.push_back(branch_of(chains[i / 3], 3 * i, 10 + i, 70));
  for (const Chain& chain : chains) {
    store(kA, chain);
    store(kB, chain);
  }
  clear(kA);
  for (const Chain& chain : chains)
    EXPECT_EQ(depths(chain), (Depths{{kB, static_cast<std::uint32_t>(chain.size())}}));
  clear(kB);
  expect_empty();
}

// What is cut later must not remember who was there before.
TEST_P(IndexWorkersTest, ABranchMadeAfterAClearDoesNotBringTheWorkerBack) {
  const Chain stem = chain_of(1, 50);
  store(kA, stem);
  store(kB, stem);
  clear(kA);
  for (const std::size_t kept : {25u, 10u, 40u, 11u}) {
    const Chain branch = branch_of(stem, kept, kept, 55);
    store(kC, branch);
    EXPECT_EQ(depths(branch), (Depths{{kB, static_cast<std::uint32_t>(kept)}, {kC, 55}}));
  }
  EXPECT_EQ(depths(stem), (Depths{{kB, 50}, {kC, 40}}));
  EXPECT_EQ(store(kA, stem, 0, 3), kApplied);
  EXPECT_EQ(depths(stem), (Depths{{kA, 3}, {kB, 50}, {kC, 40}}));
}

// A worker's place may be given to the next one; what the first held must not be.
TEST_P(IndexWorkersTest, ANewWorkerInheritsNothing) {
  const Chain chain = chain_of(1, 30);
  store(worker_of(1000), chain, 0, 5);
  for (std::uint64_t id = 1; id < 200; ++id) {
    const Worker worker = worker_of(id, static_cast<std::uint32_t>(id % 3));
    const Chain own = chain_of(10 + id, 10);
    ASSERT_EQ(store(worker, own), kApplied);
    ASSERT_EQ(depths(chain), (Depths{{worker_of(1000), 5}}));
    ASSERT_EQ(store(worker, chain, 0, 20), kApplied);
    ASSERT_EQ(store(worker, chain, 20, 10, kHost), kApplied);
    ASSERT_EQ(depths(chain), (Depths{{worker, 30}, {worker_of(1000), 5}}));
    ASSERT_EQ(depths(own), (Depths{{worker, 10}}));
    if (id % 2 == 0) {
      clear(worker);
    } else {
      remove_worker(id);
    }
    ASSERT_EQ(sizes().workers, 1u);
  }
  clear(worker_of(1000));
  expect_empty();
}

TEST_P(IndexWorkersTest, AWorkerThatLosesItsLastBlockIsGone) {
  const Chain chain = chain_of(1, 3);
  for (int round = 0; round < 20; ++round) {
    store(kA, chain);
    store(kB, chain);
    EXPECT_EQ(sizes().workers, 2u);
    EXPECT_EQ(remove(kA, chain), 3u);
    EXPECT_EQ(sizes().workers, 1u);
    EXPECT_EQ(depths(chain), (Depths{{kB, 3}}));
    EXPECT_EQ(remove(kB, chain), 3u);
    EXPECT_EQ(sizes().workers, 0u);
  }
  expect_empty();
}

// Calls of one worker apply in order, however an index spreads them; nothing is settled in between.
TEST_P(IndexWorkersTest, AClearFollowsWhatWasAcceptedBefore) {
  std::vector<Chain> chains;
  for (std::uint64_t i = 0; i < 30; ++i) chains.push_back(chain_of(i, 20));
  const auto send = [&](const Worker& worker, const Chain& chain) {
    const std::vector<StoredBlock> blocks = chain.blocks(0, chain.size());
    index().store({worker, kDevice, std::nullopt, 0, blocks});
  };
  for (const Chain& chain : chains)
    for (std::uint32_t rank = 0; rank < 3; ++rank) send(worker_of(1, rank), chain);
  index().clear(worker_of(1, 1));
  send(worker_of(1, 1), chains[7]);
  for (std::size_t i = 0; i < chains.size(); ++i) {
    Depths expected = {{worker_of(1, 0), 20}, {worker_of(1, 2), 20}};
    if (i == 7) expected[worker_of(1, 1)] = 20;
    EXPECT_EQ(depths(chains[i]), expected);
  }
  send(worker_of(2, 0), chains[0]);
  send(worker_of(2, 5), chains[0]);
  index().remove_worker(WorkerId(1));
  send(worker_of(1, 2), chains[3]);
  EXPECT_EQ(depths(chains[0]), (Depths{{worker_of(2, 0), 20}, {worker_of(2, 5), 20}}));
  EXPECT_EQ(depths(chains[3]), (Depths{{worker_of(1, 2), 20}}));
  EXPECT_EQ(counted(sizes()), (IndexSizes{3, 60, 40, 0, 0, 0}));
}

TEST_P(IndexWorkersTest, ThreeThousandWorkersShareAPrefix) {
  const Chain chain = chain_of(1, 40);
  Depths expected;
  for (std::uint64_t id = 0; id < 1000; ++id) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const auto length = static_cast<std::uint32_t>(1 + (id * 7 + rank) % 40);
      ASSERT_EQ(store(worker_of(id, rank), chain, 0, length), kApplied);
      expected[worker_of(id, rank)] = length;
    }
  }
  EXPECT_EQ(sizes().workers, 3000u);
  EXPECT_EQ(sizes().contents, 40u);
  EXPECT_EQ(depths(chain), expected);
  for (std::uint64_t id = 0; id < 1000; id += 2) {
    clear(worker_of(id, 1));
    expected.erase(worker_of(id, 1));
  }
  for (std::uint64_t id = 1; id < 1000; id += 5) {
    remove_worker(id);
    for (std::uint32_t rank = 0; rank < 3; ++rank) expected.erase(worker_of(id, rank));
  }
  EXPECT_EQ(depths(chain), expected);
  for (std::uint64_t id = 2000; id < 2400; ++id) {
    store(worker_of(id), chain, 0, 11);
    expected[worker_of(id)] = 11;
  }
  EXPECT_EQ(depths(chain), expected);
  EXPECT_EQ(sizes().workers, expected.size());
  for (std::uint64_t id = 0; id < 2400; ++id) remove_worker(id);
  expect_empty();
}

// Sets of workers of every size around the words of a bit set.
TEST_P(IndexWorkersTest, WorkersLeaveAPrefixOneByOne) {
  const Chain chain = chain_of(1, 3);
  constexpr std::uint64_t kWorkers = 200;
  Depths expected;
  for (std::uint64_t id = 0; id < kWorkers; ++id) {
    store(worker_of(id), chain);
    expected[worker_of(id)] = 3;
  }
  for (std::uint64_t i = 0; i < kWorkers; ++i) {
    const Worker worker = worker_of((i * 73) % kWorkers);
    ASSERT_EQ(remove_one(worker, chain.names[2]), 1u);
    expected[worker] = 2;
    ASSERT_EQ(depths(chain), expected);
  }
  for (std::uint64_t i = 0; i < kWorkers; ++i) ASSERT_EQ(remove(worker_of(i), chain, 0, 2), 2u);
  expect_empty();
}

ASHLAR_INDEX_SUITE(IndexWorkersTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
