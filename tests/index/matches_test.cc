// What a query finds: the longest prefix per worker, by content and position.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexMatchesTest : public IndexTest {};

TEST_P(IndexMatchesTest, AStoredChainIsFoundWhole) {
  const Chain chain = chain_of(1, 5);
  ASSERT_EQ(store(kA, chain), kApplied);
  EXPECT_EQ(scores(chain), (Scores{{kA, {5, 5, {5, 0, 0, 0}}}}));
  EXPECT_TRUE(exact());
}

TEST_P(IndexMatchesTest, AQueryMatchesThePrefixThatItShares) {
  const Chain chain = chain_of(1, 6);
  store(kA, chain);
  for (std::uint32_t shared = 1; shared < 6; ++shared) {
    EXPECT_EQ(depths(branch_of(chain, shared, 2, 9)), (Depths{{kA, shared}}));
    EXPECT_EQ(depths(chain.first(shared)), (Depths{{kA, shared}}));
  }
}

TEST_P(IndexMatchesTest, AnEmptyQueryMatchesNothing) {
  EXPECT_EQ(depths(Chain()), Depths());
  store(kA, chain_of(1, 3));
  EXPECT_EQ(depths(Chain()), Depths());
  EXPECT_TRUE(exact());
}

TEST_P(IndexMatchesTest, AnUnknownFirstBlockMatchesNothing) {
  const Chain chain = chain_of(1, 4);
  EXPECT_EQ(depths(chain), Depths());
  store(kA, chain);
  EXPECT_EQ(depths(chain_of(2, 4)), Depths());
  EXPECT_EQ(depths(chain_of(3, 1)), Depths());
}

TEST_P(IndexMatchesTest, AQueryThatGoesOnStopsAtTheEndOfTheChain) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain);
  EXPECT_EQ(depths(branch_of(chain, 4, 1, 1000)), (Depths{{kA, 4}}));
}

TEST_P(IndexMatchesTest, AnAnswerHoldsNothingOfTheOneBefore) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain, kHost);
  store(kB, chain, 0, 2);
  EXPECT_EQ(depths(chain), (Depths{{kA, 4}, {kB, 2}}));
  EXPECT_EQ(depths(chain_of(2, 4)), Depths());
  EXPECT_EQ(depths(chain.first(1)), (Depths{{kA, 1}, {kB, 1}}));
}

TEST_P(IndexMatchesTest, ABlockMatchesOnlyAtItsPosition) {
  const Chain chain = chain_of(1, 5);
  store(kA, chain);
  EXPECT_EQ(depths(std::span(chain.locals).subspan(1)), Depths());
  std::vector<LocalHash> shifted = {chain.locals[0]};
  shifted.insert(shifted.end(), chain.locals.begin(), chain.locals.end());
  EXPECT_EQ(depths(shifted), (Depths{{kA, 1}}));
}

// Two chains that meet in the same local hash at the same position, behind different prefixes.
TEST_P(IndexMatchesTest, ContentIsThePathAndNotTheBlock) {
  const Chain left = chain_of(1, 6);
  Chain right = chain_of(2, 6);
  for (std::size_t i = 3; i < 6; ++i) right.locals[i] = left.locals[i];
  store(kA, left);
  store(kB, right);
  EXPECT_EQ(sizes().contents, 12u);
  EXPECT_EQ(depths(left), (Depths{{kA, 6}}));
  EXPECT_EQ(depths(right), (Depths{{kB, 6}}));
  Chain mixed = left;
  mixed.locals[1] = right.locals[1];
  EXPECT_EQ(depths(mixed), (Depths{{kA, 1}}));
  mixed = left;
  mixed.locals[2] = right.locals[2];
  EXPECT_EQ(depths(mixed), (Depths{{kA, 2}}));
}

// Only the middle differs, so that probes at the ends cannot tell the two apart.
TEST_P(IndexMatchesTest, ADifferenceInTheMiddleIsSeen) {
  const Chain left = chain_of(1, 200);
  for (const std::size_t different : {1u, 7u, 8u, 9u, 63u, 64u, 65u, 100u, 127u, 128u, 198u}) {
    Chain right = renamed(left, 2);
    right.locals[different] = LocalHash(different);
    store(kA, left);
    store(kB, right);
    const auto common = static_cast<std::uint32_t>(different);
    EXPECT_EQ(depths(left), (Depths{{kA, 200}, {kB, common}}));
    EXPECT_EQ(depths(right), (Depths{{kA, common}, {kB, 200}}));
    clear(kA);
    clear(kB);
  }
}

TEST_P(IndexMatchesTest, TheSameLocalHashMayFillAChain) {
  Chain chain = chain_of(1, 70);
  for (LocalHash& local : chain.locals) local = LocalHash(5);
  store(kA, chain);
  store(kB, chain, 0, 33);
  EXPECT_EQ(sizes().contents, 70u);
  EXPECT_EQ(depths(std::vector<LocalHash>(100, LocalHash(5))), (Depths{{kA, 70}, {kB, 33}}));
  EXPECT_EQ(depths(chain.first(40)), (Depths{{kA, 40}, {kB, 33}}));
  EXPECT_EQ(remove(kA, chain, 65, 5), 5u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 65}, {kB, 33}}));
}

TEST_P(IndexMatchesTest, EveryWorkerIsScoredWhereItDiverges) {
  const Chain stem = chain_of(1, 12);
  store(kA, stem);
  const Chain at_four = branch_of(stem, 4, 2, 12);
  const Chain at_seven = branch_of(stem, 7, 3, 12);
  store(kB, at_four);
  store(kC, at_seven);
  EXPECT_EQ(depths(stem), (Depths{{kA, 12}, {kB, 4}, {kC, 7}}));
  EXPECT_EQ(depths(at_four), (Depths{{kA, 4}, {kB, 12}, {kC, 4}}));
  EXPECT_EQ(depths(at_seven), (Depths{{kA, 7}, {kB, 4}, {kC, 12}}));
  EXPECT_EQ(depths(branch_of(stem, 2, 4, 9)), (Depths{{kA, 2}, {kB, 2}, {kC, 2}}));
  EXPECT_EQ(sizes().contents, 12u + 8 + 5);
}

TEST_P(IndexMatchesTest, WorkersWithPrefixesOfOneChainAreScoredByLength) {
  const Chain chain = chain_of(1, 70);
  Depths whole;
  for (std::uint32_t length = 1; length <= 70; ++length) {
    store(worker_of(length), chain, 0, length);
    whole[worker_of(length)] = length;
  }
  EXPECT_EQ(depths(chain), whole);
  Depths cut;
  for (const auto& [worker, depth] : whole) cut[worker] = std::min(depth, 33u);
  EXPECT_EQ(depths(chain.first(33)), cut);
}

TEST_P(IndexMatchesTest, AWorkerHoldsSeveralSequences) {
  const Chain first = chain_of(1, 4);
  const Chain second = chain_of(2, 6);
  store(kA, first);
  store(kA, second);
  store(kB, second, 0, 3);
  EXPECT_EQ(depths(first), (Depths{{kA, 4}}));
  EXPECT_EQ(depths(second), (Depths{{kA, 6}, {kB, 3}}));
  Chain mixed = first;
  mixed.locals[2] = second.locals[2];
  EXPECT_EQ(depths(mixed), (Depths{{kA, 2}}));
}

TEST_P(IndexMatchesTest, AStoreGoesOnFromItsParent) {
  const Chain chain = chain_of(1, 20);
  EXPECT_EQ(store(kA, chain, 0, 3), kApplied);
  EXPECT_EQ(store(kA, chain, 3, 4), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 7}}));
  EXPECT_EQ(store(kA, chain, 7, 13), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 20}}));
}

TEST_P(IndexMatchesTest, AChainGrowsBlockByBlock) {
  const Chain chain = chain_of(1, 300);
  for (std::uint32_t i = 0; i < 300; ++i) {
    ASSERT_EQ(store(kA, chain, i, 1), kApplied);
    if (i % 37 == 0) {
      ASSERT_EQ(depths(chain), (Depths{{kA, i + 1}}));
    }
  }
  EXPECT_EQ(depths(chain), (Depths{{kA, 300}}));
  EXPECT_EQ(sizes().contents, 300u);
}

// Engines report decoded blocks one at a time while other sequences share the prefix.
TEST_P(IndexMatchesTest, TwoTailsGrowInTurn) {
  const Chain left = chain_of(1, 60);
  const Chain right = branch_of(left, 20, 2, 60);
  store(kA, left, 0, 20);
  store(kB, right, 0, 20);
  for (std::uint32_t i = 20; i < 60; ++i) {
    ASSERT_EQ(store(kA, left, i, 1), kApplied);
    ASSERT_EQ(store(kB, right, i, 1), kApplied);
  }
  EXPECT_EQ(depths(left), (Depths{{kA, 60}, {kB, 20}}));
  EXPECT_EQ(depths(right), (Depths{{kA, 20}, {kB, 60}}));
}

TEST_P(IndexMatchesTest, AStoreMayBeginInsideAnEarlierEvent) {
  const Chain stem = chain_of(1, 40);
  store(kA, stem);
  for (const std::size_t kept : {20u, 10u, 30u, 1u, 39u, 20u}) {
    const Chain branch = branch_of(stem, kept, 100 + kept, 45);
    ASSERT_EQ(store(kA, branch, kept, 45 - kept), kApplied);
    EXPECT_EQ(depths(branch), (Depths{{kA, 45}}));
    EXPECT_EQ(depths(stem), (Depths{{kA, 40}}));
  }
  EXPECT_EQ(sizes().contents, 40u + 25 + 35 + 15 + 44 + 6);
}

TEST_P(IndexMatchesTest, AWorkerTakesOverTheSuffixOfAnotherAndGoesOn) {
  const Chain chain = chain_of(1, 40);
  store(kA, chain, 0, 24);
  EXPECT_EQ(store(kB, chain, 0, 10), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 24}, {kB, 10}}));
  EXPECT_EQ(store(kB, chain, 10, 14), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 24}, {kB, 24}}));
  EXPECT_EQ(store(kB, chain, 24, 8), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 24}, {kB, 32}}));
  EXPECT_EQ(store(kA, chain, 24, 16), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 40}, {kB, 32}}));
  EXPECT_EQ(sizes().contents, 40u);
}

// One event runs through blocks that are held, then through blocks of another worker, then off on its own.
TEST_P(IndexMatchesTest, AnEventMayCrossWhatIsThereAlready) {
  const Chain stem = chain_of(1, 30);
  store(kA, stem);
  const Chain crossing = branch_of(stem, 22, 2, 50);
  store(kB, crossing, 0, 8);
  EXPECT_EQ(store(kB, crossing, 0, 50), kApplied);
  EXPECT_EQ(counters().repeated, 8u);
  EXPECT_EQ(depths(crossing), (Depths{{kA, 22}, {kB, 50}}));
  EXPECT_EQ(depths(stem), (Depths{{kA, 30}, {kB, 22}}));
}

TEST_P(IndexMatchesTest, BranchesOfBranchesAreFound) {
  std::vector<Chain> chains = {chain_of(1, 64)};
  for (std::uint64_t i = 1; i < 40; ++i) {
    const Chain& stem = chains[i / 2];
    chains.push_back(branch_of(stem, (i * 13) % 63 + 1, 100 + i, 64));
  }
  for (std::size_t i = 0; i < chains.size(); ++i) ASSERT_EQ(store(worker_of(i), chains[i]), kApplied);
  for (const Chain& query : chains) {
    Depths expected;
    for (std::size_t i = 0; i < chains.size(); ++i) {
      std::uint32_t common = 0;
      while (common < 64 && chains[i].locals[common] == query.locals[common]) ++common;
      if (common > 0) expected[worker_of(i)] = common;
    }
    EXPECT_EQ(depths(query), expected);
  }
}

TEST_P(IndexMatchesTest, ValuesThatLookReservedAreValues) {
  constexpr std::uint64_t kOnes = UINT64_MAX;
  const std::vector<std::uint64_t> values = {0, kOnes, 1, kOnes - 1, std::uint64_t{1} << 63};
  std::vector<Worker> workers;
  for (const std::uint64_t id : {std::uint64_t{0}, kOnes})
    for (const std::uint32_t rank : {0u, UINT32_MAX}) workers.push_back(worker_of(id, rank));
  for (const std::uint64_t first : values) {
    Chain chain;
    for (const std::uint64_t value : values) {
      chain.locals.emplace_back(value ^ first);
      chain.names.emplace_back(value);
    }
    for (const Worker& worker : workers) {
      ASSERT_EQ(store(worker, chain), kApplied);
      ASSERT_EQ(depths(chain), (Depths{{worker, 5}}));
      ASSERT_EQ(remove(worker, chain, 2, 3), 3u);
      ASSERT_EQ(depths(chain), (Depths{{worker, 2}}));
      ASSERT_EQ(remove(worker, chain, 0, 2), 2u);
      ASSERT_EQ(depths(chain), Depths());
    }
  }
  expect_empty();
}

ASHLAR_INDEX_SUITE(IndexMatchesTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
