// What the calls of a FlashIndex cost, counted in steps: no call pays for what others hold, held or left.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/testing/index_oracle.h"
#include "index/chain.h"
#include "index/test_worker.h"
#include "support/rounds.h"

namespace ashlar::index::conformance {
namespace {

// That one hold of the writers' lock may take.
constexpr std::uint64_t kMostSteps = 4'096;

class FlashCostTest : public ::testing::Test {
 protected:
  void store(const Worker& worker, const Chain& chain, std::size_t from, std::size_t count) {
    const std::vector<StoredBlock> blocks = chain.blocks(from, count);
    BlocksStored event{worker, StorageTier::kDevice, {}, {}, blocks};
    if (from != 0) event.parent = chain.names[from - 1];
    ASSERT_EQ(index_.store(event), StoreVerdict::kApplied);
  }
  // In events of up to 500 blocks.
  void store(const Worker& worker, const Chain& chain) {
    for (std::size_t from = 0; from < chain.size(); from += 500)
      store(worker, chain, from, std::min<std::size_t>(500, chain.size() - from));
  }
  std::size_t remove(const Worker& worker, BlockName name) {
    return index_.remove(worker, StorageTier::kDevice, std::span(&name, 1));
  }
  // Steps of a call.
  template <class Call>
  std::uint64_t steps_of(Call&& call) {
    const std::uint64_t before = index_.work().steps;
    call();
    return index_.work().steps - before;
  }
  std::uint32_t depth(const Worker& worker, const Chain& chain) {
    MatchScores scores;
    index_.find_matches(chain.locals, scores);
    const std::optional<Score> score = scores.of(worker);
    return score ? score->depth : 0;
  }

  FlashIndex index_{{.seed = 1}};
};

TEST_F(FlashCostTest, ANameOfAContentWithManyNamesComesAndGoesInAFewSteps) {
  const Chain chain = chain_of(1, 1);
  constexpr std::uint64_t kNames = 5'000;
  const auto named = [&](std::uint64_t i) {
    Chain other = chain;
    other.names[0] = BlockName(1'000 + i);
    return other;
  };
  std::uint64_t most = 0;
  for (std::uint64_t i = 0; i < kNames; ++i)
    most = std::max(most, steps_of([&] { store(worker(1), named(i)); }));
  // The oldest first, then the youngest first.
  for (std::uint64_t i = 0; i < kNames / 2; ++i)
    most = std::max(most, steps_of([&] { ASSERT_EQ(remove(worker(1), BlockName(1'000 + i)), 1u); }));
  EXPECT_EQ(depth(worker(1), chain), 1u);
  for (std::uint64_t i = kNames; i-- > kNames / 2;)
    most = std::max(most, steps_of([&] { ASSERT_EQ(remove(worker(1), BlockName(1'000 + i)), 1u); }));
  EXPECT_LE(most, 64u);
  EXPECT_EQ(depth(worker(1), chain), 0u);
  EXPECT_EQ(index_.sizes().blocks, 0u);
}

TEST_F(FlashCostTest, AContentWithManyNamesMovesInAFewSteps) {
  const Chain chain = chain_of(1, 8);
  store(worker(1), chain);
  constexpr std::uint64_t kNames = 5'000;
  for (std::uint64_t i = 0; i < kNames; ++i) {
    Chain other = chain;
    other.names[0] = BlockName(1'000 + i);
    store(worker(1), other, 0, 1);
  }
  // The node is split behind the block.
  const Chain branch = branch_of(chain, 1, 2, 3);
  EXPECT_LE(steps_of([&] { store(worker(1), branch); }), 256u);
  EXPECT_EQ(remove(worker(1), BlockName(1'000)), 1u);
  EXPECT_EQ(depth(worker(1), chain), 8u);
}

TEST_F(FlashCostTest, NamesOfAClearedWorkerAreSweptInSteps) {
  const Chain chain = chain_of(1, 1);
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    Chain other = chain;
    other.names[0] = BlockName(1'000 + i);
    store(worker(1), other);
  }
  index_.clear(worker(1));
  const Chain passing = chain_of(2, 1);
  for (int i = 0; i < 40; ++i) {
    store(worker(2), passing);
    ASSERT_EQ(remove(worker(2), passing.names[0]), 1u);
  }
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  store(worker(1), chain);
  EXPECT_EQ(index_.sizes().blocks, 1u);
}

TEST_F(FlashCostTest, WorkersThatShareEverythingAreClearedInTurn) {
  constexpr std::uint64_t kWorkers = 1'000;
  std::vector<Chain> chains;
  for (std::uint64_t c = 0; c < 48; ++c) chains.push_back(chain_of(c + 1, 8));
  for (std::uint64_t w = 0; w < kWorkers; ++w)
    for (const Chain& chain : chains) store(worker(w), chain);
  for (std::uint64_t w = 0; w < kWorkers; ++w) {
    index_.clear(worker(w));
    ASSERT_EQ(depth(worker(w), chains[0]), 0u);
  }
  // What is left is swept by the stores of one that goes on.
  for (std::uint64_t i = 0; i < 200; ++i) store(worker(0), chain_of(1'000 + i, 1));
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  const IndexSizes sizes = index_.sizes();
  EXPECT_EQ(sizes.workers, 1u);
  EXPECT_EQ(sizes.contents, 200u);
}

// The sweep of a node with more holders than a call may look at goes on where it stopped, whatever happens
// there meanwhile.
TEST_F(FlashCostTest, AWorkerOfManyRanksIsRemovedInSlices) {
  constexpr std::uint32_t kRanks = 8'000;
  testing::IndexOracle oracle;
  const std::vector<Chain> chains = {chain_of(1, 20), chain_of(2, 20), chain_of(3, 70)};
  const auto both = [&](const BlocksStored& event) { ASSERT_EQ(index_.store(event), oracle.store(event)); };
  const auto store_all = [&](const Worker& worker) {
    for (const Chain& chain : chains)
      both({worker, StorageTier::kDevice, {}, {}, chain.blocks(0, chain.size())});
  };
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    for (const Chain& chain : chains) store(worker(1, rank), chain);
  for (std::uint64_t w = 2; w < 8; ++w) store_all(worker(w));
  index_.remove_worker(WorkerId(1));
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    const Worker who = worker(2 + random.below(7));
    const Chain& chain = chains[random.below(3)];
    if (random.below(4) == 0) {
      index_.clear(who);
      oracle.clear(who);
    } else if (random.below(2) == 0) {
      const std::vector<BlockName> names = chain.names_from_the_end(random.below(10), 10);
      ASSERT_EQ(index_.remove(who, StorageTier::kDevice, names),
                oracle.remove(who, StorageTier::kDevice, names));
    } else {
      const Chain branch = branch_of(chain, 1 + random.below(19), 100 + random.below(5), 20);
      both({who, StorageTier::kDevice, {}, {}, branch.blocks(0, branch.size())});
    }
    for (const Chain& asked : chains) {
      MatchScores ours;
      MatchScores expected;
      index_.find_matches(asked.locals, ours);
      oracle.find_matches(asked.locals, expected);
      ASSERT_EQ(ours.matched(), expected.matched());
      expected.for_each([&](const Worker& worker, const Score& score) { ASSERT_EQ(ours.of(worker), score); });
    }
  }
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  EXPECT_EQ(index_.sizes().blocks, oracle.sizes().blocks);
  EXPECT_EQ(index_.sizes().contents, oracle.sizes().contents);
}

// With so many nodes and so many clears there are always dead slots in the way, and the sweep is elsewhere.
TEST_F(FlashCostTest, AnswersAreExactWhileDeadSlotsWaitForTheSweep) {
  testing::IndexOracle oracle;
  for (std::uint64_t i = 0; i < 3'000; ++i) store(worker(99), chain_of(1'000 + i, 1));
  const Chain stem = chain_of(1, 140);
  Random random(11);
  const auto next_chain = [&] {
    const Chain chain = branch_of(stem, random.below(141), 2 + random.below(3), 1 + random.below(140));
    return random.below(4) == 0 ? renamed(chain, 7 + random.below(2)) : chain;
  };
  const int steps = testing::all_rounds() ? 4'000 : 1'000;
  for (int step = 0; step < steps; ++step) {
    const Worker who = worker(1 + random.below(6), static_cast<std::uint32_t>(random.below(3)));
    const StorageTier tier = random.below(5) == 0 ? StorageTier::kHost : StorageTier::kDevice;
    const Chain chain = next_chain();
    const std::uint64_t kind = random.below(20);
    if (kind == 0) {
      index_.clear(who);
      oracle.clear(who);
    } else if (kind == 1) {
      index_.remove_worker(who.id);
      oracle.remove_worker(who.id);
    } else if (kind < 12) {
      const std::vector<StoredBlock> blocks = chain.blocks(0, chain.size());
      const BlocksStored event{who, tier, {}, {}, blocks};
      ASSERT_EQ(index_.store(event), oracle.store(event)) << "step " << step;
    } else {
      std::vector<BlockName> names = chain.names_from_the_end(0, chain.size());
      if (random.below(2) == 0) random.shuffle(names);
      ASSERT_EQ(index_.remove(who, tier, names), oracle.remove(who, tier, names)) << "step " << step;
    }
    MatchScores ours;
    MatchScores expected;
    index_.find_matches(chain.locals, ours);
    oracle.find_matches(chain.locals, expected);
    ASSERT_EQ(ours.matched(), expected.matched()) << "step " << step;
    expected.for_each([&](const Worker& worker, const Score& score) { ASSERT_EQ(ours.of(worker), score); });
  }
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  index_.clear(worker(99));
  EXPECT_EQ(index_.sizes().blocks, oracle.sizes().blocks);
  EXPECT_EQ(index_.sizes().contents, oracle.sizes().contents);
  EXPECT_EQ(index_.counters().removed, oracle.counters().removed);
}

// All slots are dead: a store for one more worker sweeps until there is one, and gives way in between.
TEST_F(FlashCostTest, AStoreThatNeedsASlotSweepsInSlices) {
  constexpr std::uint32_t kRanks = 65'535;
  const Chain chain = chain_of(1, 1);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    Chain own = chain;
    own.locals[0] = LocalHash(rank + 1);
    own.names[0] = BlockName(rank + 1);
    store(worker(1, rank), own);
  }
  index_.remove_worker(WorkerId(1));
  store(worker(2), chain);
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  EXPECT_EQ(depth(worker(2), chain), 1u);
  const IndexSizes sizes = index_.sizes();
  EXPECT_EQ(sizes.workers, 1u);
  EXPECT_EQ(sizes.nodes, 1u);
}

// Nobody holds the front of the chain any more; with its last block all of it goes, in steps.
TEST_F(FlashCostTest, ALongChainThatNobodyNeedsIsFreedInSteps) {
  const std::size_t fresh = index_.sizes().bytes;
  const Chain chain = chain_of(1, std::size_t{64} * 5'000);
  store(worker(1), chain);
  ASSERT_EQ(index_.remove(worker(1), StorageTier::kDevice, chain.names), chain.size());
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  // It may be stored again before it is gone.
  store(worker(2), chain, 0, 100);
  for (int i = 0; i < 40; ++i) store(worker(2), chain, 0, 1);
  EXPECT_EQ(depth(worker(2), chain), 100u);
  EXPECT_EQ(index_.sizes().nodes, 2u);
  index_.clear(worker(2));
  EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
  EXPECT_EQ(index_.sizes().bytes, fresh);
}

// The memory of an index that became empty goes back in steps, too, and nothing of it is left.
TEST_F(FlashCostTest, AnIndexThatBecameEmptyGivesItsMemoryBack) {
  const std::size_t fresh = index_.sizes().bytes;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t c = 0; c < 20'000; ++c) store(worker(c % 7), chain_of(c + 1, 9));
    for (std::uint64_t w = 0; w < 7; ++w) index_.clear(worker(w));
    for (std::uint64_t i = 0; i < 800; ++i) index_.clear(worker(100));
    EXPECT_LE(index_.work().most_in_one_hold, kMostSteps);
    const Chain chain = chain_of(1, 9);
    store(worker(1), chain);
    EXPECT_EQ(depth(worker(1), chain), 9u);
    index_.clear(worker(1));
  }
  EXPECT_EQ(index_.sizes().bytes, fresh);
}

}  // namespace
}  // namespace ashlar::index::conformance
