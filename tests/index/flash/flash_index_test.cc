// What FlashIndex promises beyond the contract of all indexes: batches and limits.
#include "ashlar/index/flash_index.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/index_oracle.h"
#include "index/chain.h"
#include "index/test_worker.h"

namespace ashlar::index::conformance {
namespace {

template <class Index>
StoreVerdict store(Index& index, const Worker& worker, const Chain& chain,
                   StorageTier tier = StorageTier::kDevice) {
  return index.store({worker, tier, {}, {}, chain.blocks(0, chain.size())});
}

template <class Index>
void remove(Index& index, const Worker& worker, const Chain& chain, StorageTier tier = StorageTier::kDevice) {
  index.remove(worker, tier, chain.names_from_the_end(0, chain.size()));
}

void expect_equal(const MatchScores& left, const MatchScores& right) {
  EXPECT_EQ(left.exact(), right.exact());
  ASSERT_EQ(left.matched(), right.matched());
  left.for_each([&](const Worker& worker, const Score& score) { EXPECT_EQ(right.of(worker), score); });
}

// --- Batches. ---

class FlashBatchTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(FlashBatchTest, AnswersAsSingleQueriesDo) {
  Random random(GetParam() + 1);
  FlashIndex index;
  std::vector<Chain> chains;
  const Chain stem = chain_of(1, 150);
  for (std::uint64_t i = 0; i < 12; ++i) {
    chains.push_back(branch_of(stem, random.below(150), 10 + i, 40 + random.below(260)));
    ASSERT_EQ(store(index, worker(i % 5), chains.back()), StoreVerdict::kApplied);
  }
  std::vector<std::vector<LocalHash>> lists;
  for (std::size_t q = 0; q < GetParam(); ++q) {
    const Chain& chain = chains[random.below(chains.size())];
    std::vector<LocalHash> list(chain.locals.begin(), chain.locals.end());
    list.resize(random.below(3) == 0 ? 0 : random.below(list.size() + 1));
    if (random.below(2) == 0) list.insert(list.end(), 20, LocalHash(random.next()));
    if (random.below(5) == 0) list.clear();
    lists.push_back(std::move(list));
  }
  const std::vector<std::span<const LocalHash>> queries(lists.begin(), lists.end());
  for (const bool early_exit : {false, true}) {
    std::vector<MatchScores> together(GetParam());
    index.find_matches(queries, together, {.early_exit = early_exit});
    for (std::size_t q = 0; q < GetParam(); ++q) {
      MatchScores alone;
      index.find_matches(queries[q], alone, {.early_exit = early_exit});
      expect_equal(together[q], alone);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, FlashBatchTest, ::testing::Values(0, 1, 2, 7, 8, 9, 40));

// --- Misses. ---

// Chains come and go; each query goes to an answer that was used before, and to a new one.
TEST(FlashIndexTest, WhatBeginsNoChainIsAMissAndWhatBeginsOneIsNot) {
  FlashIndex index;
  Random random(3);
  std::vector<Chain> chains;
  for (std::uint64_t i = 0; i < 200; ++i) chains.push_back(chain_of(1 + i, 3));
  std::vector<bool> stored(chains.size());
  MatchScores used;
  for (int step = 0; step < 5'000; ++step) {
    const std::size_t i = random.below(chains.size());
    if (random.below(2) == 0) {
      if (stored[i]) {
        remove(index, worker(i % 7), chains[i]);
      } else {
        ASSERT_EQ(store(index, worker(i % 7), chains[i]), StoreVerdict::kApplied);
      }
      stored[i] = !stored[i];
    }
    const std::size_t asked = random.below(chains.size());
    MatchScores fresh;
    for (MatchScores* const scores : {&used, &fresh}) {
      index.find_matches(chains[asked].locals, *scores, {});
      ASSERT_EQ(scores->matched(), stored[asked] ? 1u : 0u);
      if (stored[asked]) {
        ASSERT_EQ(scores->of(worker(asked % 7))->depth, 3u);
      }
    }
    ASSERT_EQ(used.slots(), fresh.slots());
  }
}

// A miss says which workers there are, also after one came or left.
TEST(FlashIndexTest, AMissHasTheWorkersOfItsTime) {
  FlashIndex index;
  const Chain known = chain_of(1, 5);
  const Chain unknown = chain_of(2, 5);
  MatchScores scores;
  for (std::uint64_t id = 1; id <= 70; ++id) {
    ASSERT_EQ(store(index, worker(id), known), StoreVerdict::kApplied);
    index.find_matches(known.locals, scores, {});
    EXPECT_EQ(scores.matched(), id);
    index.find_matches(unknown.locals, scores, {});
    EXPECT_EQ(scores.matched(), 0u);
    EXPECT_EQ(scores.slots(), id);
    EXPECT_EQ(scores.worker(id - 1), worker(id));
  }
  index.remove_worker(worker(3).id);
  index.find_matches(known.locals, scores, {});
  EXPECT_EQ(scores.matched(), 69u);
  index.find_matches(unknown.locals, scores, {});
  EXPECT_EQ(scores.matched(), 0u);
}

// --- Limits. ---

TEST(FlashIndexTest, OneWorkerTooManyIsRefusedAndNothingOfItIsLeft) {
  FlashIndex index({.max_workers = 3});
  const Chain chain = chain_of(1, 70);
  for (std::uint64_t id = 1; id <= 3; ++id)
    ASSERT_EQ(store(index, worker(id), chain), StoreVerdict::kApplied);
  EXPECT_EQ(store(index, worker(4), chain), StoreVerdict::kFull);
  EXPECT_EQ(index.counters().full, 1u);
  EXPECT_EQ(index.sizes().workers, 3u);
  index.clear(worker(2));
  EXPECT_EQ(store(index, worker(4), chain), StoreVerdict::kApplied);
  EXPECT_EQ(store(index, worker(2), chain), StoreVerdict::kFull);
}

// A refused store into an empty index leaves nothing of its size.
TEST(FlashIndexTest, ARefusedStoreLeavesNoMemory) {
  FlashIndex index;
  const std::size_t fresh = index.sizes().bytes;
  Chain chain = chain_of(1, 100'000);
  chain.names.back() = chain.names.front();
  EXPECT_EQ(store(index, worker(1), chain), StoreVerdict::kNameInUse);
  EXPECT_EQ(index.sizes().bytes, fresh);
}

// What is left of a long chain is its end; then all names are removed once more, those that are gone among
// them.
TEST(FlashIndexTest, NamesThatAreGoneLeadNowhere) {
  for (const std::size_t length : {128u, 1'000u, 64u * 300u}) {
    FlashIndex index;
    const Chain chain = chain_of(1, length);
    ASSERT_EQ(store(index, worker(1), chain), StoreVerdict::kApplied);
    ASSERT_EQ(index.remove(worker(1), StorageTier::kDevice, chain.names_from_the_end(0, length - 64)),
              length - 64);
    EXPECT_EQ(index.remove(worker(1), StorageTier::kDevice, chain.names_from_the_end(0, length)), 64u);
    EXPECT_EQ(index.sizes().nodes, 0u);
    ASSERT_EQ(store(index, worker(1), chain), StoreVerdict::kApplied);
    ASSERT_EQ(index.remove(worker(1), StorageTier::kDevice, std::span(chain.names).last(length - 64)),
              length - 64);
    EXPECT_EQ(index.remove(worker(1), StorageTier::kDevice, chain.names), 64u);
    EXPECT_EQ(index.sizes().nodes, 0u);
  }
}

// The sweep has not come to the blocks of a cleared worker when another one stores them, or some of them.
TEST(FlashIndexTest, WhatOnlyAClearedWorkerHeldIsStoredAndRemovedByItsNames) {
  const Chain chain = chain_of(1, 100);
  for (const std::size_t kept : {1u, 20u, 63u, 64u, 65u, 99u, 100u})
    for (const StorageTier tier : {StorageTier::kDevice, StorageTier::kHost}) {
      FlashIndex index;
      testing::IndexOracle oracle;
      const auto both = [&](const Worker& worker, const Chain& stored, StorageTier where) {
        ASSERT_EQ(store(index, worker, stored, where), store(oracle, worker, stored, where));
      };
      // Nodes that the sweep looks at first.
      for (std::uint64_t i = 0; i < 200; ++i) both(worker(9), chain_of(100 + i, 1), StorageTier::kDevice);
      both(worker(1), chain, StorageTier::kDevice);
      both(worker(2), chain, StorageTier::kDevice);
      for (const std::uint64_t id : {1u, 2u}) {
        index.clear(worker(id));
        oracle.clear(worker(id));
      }
      const Chain branch = branch_of(chain, kept, 2, 100);
      for (const std::uint64_t id : {3u, 4u}) {
        both(worker(id), branch, tier);
        if (id == 4) both(worker(id), renamed(chain_of(1, kept), 3), tier);
        MatchScores ours;
        MatchScores expected;
        index.find_matches(branch.locals, ours);
        oracle.find_matches(branch.locals, expected);
        expect_equal(ours, expected);
        EXPECT_EQ(index.remove(worker(id), tier, branch.names), branch.size()) << kept;
        oracle.remove(worker(id), tier, branch.names);
      }
      EXPECT_EQ(index.counters(), oracle.counters());
      EXPECT_EQ(index.sizes().blocks, oracle.sizes().blocks);
      EXPECT_EQ(index.sizes().contents, oracle.sizes().contents);
    }
}

// Workers that hold nothing any more, or never did, keep no place; nobody has to ask for sizes() for that.
// The end of a chain goes, and with it its front, whose blocks only a cleared worker has had: the sweep is
// still elsewhere, so their names are known yet, and the same call names one of them.
TEST(FlashIndexTest, ARemovalMayNameWhatItJustFreed) {
  constexpr std::size_t kElsewhere = 60'000;
  constexpr std::size_t kChains = 400;  // more than are freed at once
  FlashIndex index;
  for (std::uint64_t i = 0; i < kElsewhere; ++i) store(index, worker(3), chain_of(1'000 + i, 1));
  std::vector<Chain> chains;
  for (std::uint64_t c = 0; c < kChains; ++c) {
    chains.push_back(chain_of(100'000 + c, 128));
    const Chain& chain = chains.back();
    index.store({worker(2), StorageTier::kDevice, {}, {}, chain.blocks(0, 64)});
    store(index, worker(1), chain);
    ASSERT_EQ(index.remove(worker(1), StorageTier::kDevice, std::span(chain.names).first(64)), 64u);
  }
  index.clear(worker(2));
  for (const Chain& chain : chains)
    ASSERT_EQ(index.remove(worker(1), StorageTier::kDevice, chain.names_from_the_end(63, 65)), 64u);
  EXPECT_EQ(index.sizes().blocks, kElsewhere);
  EXPECT_EQ(index.sizes().contents, kElsewhere);
}

TEST(FlashIndexTest, WorkersThatHoldNothingMakeRoom) {
  FlashIndex index({.max_workers = 4});
  const Chain chain = chain_of(1, 70);
  const Chain other = chain_of(2, 3);
  for (std::uint64_t id = 1; id <= 100; ++id) {
    ASSERT_EQ(store(index, worker(id), chain), StoreVerdict::kApplied) << id;
    remove(index, worker(id), chain);
    Chain twice = other;
    twice.names[2] = twice.names[0];
    ASSERT_EQ(store(index, worker(1000 + id), twice), StoreVerdict::kNameInUse) << id;
  }
}

// Each worker has some blocks in a lower tier, so that no bitset decides.
TEST(FlashIndexTest, ManyWorkersWithLowerTiers) {
  FlashIndex index;
  testing::IndexOracle oracle;
  Random random(3);
  const Chain stem = chain_of(1, 200);
  const auto both = [&](const BlocksStored& event) { ASSERT_EQ(index.store(event), oracle.store(event)); };
  for (std::uint64_t id = 1; id <= 150; ++id) {
    const std::size_t length = 1 + random.below(200);
    both({worker(id), StorageTier::kHost, {}, {}, stem.blocks(0, length)});
    both({worker(id), StorageTier::kDevice, {}, {}, stem.blocks(0, random.below(length) + 1)});
    const std::size_t gone = random.below(length);
    const std::array<BlockName, 1> name = {stem.names[gone]};
    const StorageTier tier = random.below(2) == 0 ? StorageTier::kHost : StorageTier::kDevice;
    ASSERT_EQ(index.remove(worker(id), tier, name), oracle.remove(worker(id), tier, name));
  }
  for (const std::size_t depth : {1u, 63u, 64u, 65u, 130u, 200u}) {
    MatchScores ours;
    MatchScores expected;
    index.find_matches(stem.first(depth), ours);
    oracle.find_matches(stem.first(depth), expected);
    expect_equal(ours, expected);
  }
}

}  // namespace
}  // namespace ashlar::index::conformance
