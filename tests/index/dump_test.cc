// dump(): calls that rebuild an equal index.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"
#include "support/rounds.h"

namespace ashlar::index::conformance {
namespace {

class IndexDumpTest : public IndexTest {
 protected:
  // The dump rebuilds an equal index of this kind, and says the same to an oracle.
  void expect_round_trip(std::span<const std::vector<LocalHash>> queries) {
    const std::unique_ptr<AnyIndex> other = rebuilt();
    EXPECT_EQ(counted(other->sizes()), counted(sizes()));
    EXPECT_EQ(other->sizes().nodes == 0, sizes().nodes == 0);
    expect_same_answers(index(), *other, queries);
    const testing::IndexOracle here = held();
    testing::IndexOracle there;
    other->dump(there);
    EXPECT_EQ(difference(here, there), "");
    EXPECT_EQ(counted(here.sizes()), counted(sizes()));
  }
  // Some branches, tiers, names and ranks; no holes.
  std::vector<std::vector<LocalHash>> fill() {
    const Chain stem = chain_of(1, 40);
    const Chain left = branch_of(stem, 12, 2, 50);
    const Chain right = branch_of(stem, 33, 3, 36);
    const Chain apart = chain_of(4, 7);
    store(kA, stem);
    store(kA, left, 12, 38);
    store(worker_of(1, 3), right);
    store(kB, renamed(stem, 9), 0, 20);
    store(kB, renamed(stem, 9), 20, 20, kHost);
    store(kB, renamed(stem, 9), 5, 3, kDisk);
    store(kB, stem, 0, 8, kExternal);  // second names
    store(kC, apart, kDisk);
    store(kC, left);
    std::vector<std::vector<LocalHash>> queries;
    for (const Chain& chain : {stem, left, right, apart, branch_of(stem, 20, 8, 30)})
      queries.push_back(chain.locals);
    return queries;
  }
};

TEST_P(IndexDumpTest, AnEmptyIndexDumpsNothing) {
  expect_empty();
  expect_round_trip({});
}

TEST_P(IndexDumpTest, ADumpRebuildsAnEqualIndex) {
  const std::vector<std::vector<LocalHash>> queries = fill();
  expect_round_trip(queries);
}

TEST_P(IndexDumpTest, ADumpLeavesTheIndexAsItIs) {
  fill();
  expect_unchanged([&] {
    testing::RecordedCalls calls;
    index().dump(calls);
    index().dump(calls);
  });
}

TEST_P(IndexDumpTest, ARebuiltIndexKnowsTheNames) {
  fill();
  const std::unique_ptr<AnyIndex> other = rebuilt();
  const Chain stem = chain_of(1, 40);
  const Chain right = branch_of(stem, 33, 3, 36);
  const std::vector<StoredBlock> blocks = branch_of(right, 36, 5, 40).blocks(36, 4);
  for (AnyIndex* one : {&index(), other.get()}) {
    one->remove(kB, kExternal, stem.names_from_the_end(0, 8));
    one->remove(kB, kHost, renamed(stem, 9).names_from_the_end(30, 10));
    one->store({worker_of(1, 3), kHost, right.names[35], 36, blocks});
    one->settle();
  }
  EXPECT_EQ(counted(index().sizes()), counted(other->sizes()));
  testing::IndexOracle there;
  other->dump(there);
  EXPECT_EQ(difference(held(), there), "");
  EXPECT_EQ(depths(branch_of(right, 36, 5, 40))[worker_of(1, 3)], 40u);
}

TEST_P(IndexDumpTest, ADumpOfADumpIsTheSame) {
  fill();
  const std::unique_ptr<AnyIndex> second = rebuilt();
  const std::unique_ptr<AnyIndex> third = GetParam().make();
  second->dump(*third);
  third->settle();
  testing::IndexOracle first_held = held();
  testing::IndexOracle third_held;
  third->dump(third_held);
  EXPECT_EQ(difference(first_held, third_held), "");
}

TEST_P(IndexDumpTest, EveryNameOfAContentIsInTheDump) {
  const Chain chain = chain_of(1, 6);
  for (std::uint64_t naming = 2; naming < 6; ++naming) store(kA, renamed(chain, naming));
  store(kA, renamed(chain, 3), kHost);
  store(kA, renamed(chain, 6), kDisk);
  const std::vector<std::vector<LocalHash>> queries = {chain.locals};
  expect_round_trip(queries);
  const std::unique_ptr<AnyIndex> other = rebuilt();
  for (std::uint64_t naming = 2; naming < 6; ++naming)
    other->remove(kA, kDevice, renamed(chain, naming).names_from_the_end(0, 6));
  other->remove(kA, kHost, renamed(chain, 3).names_from_the_end(0, 6));
  other->settle();
  EXPECT_EQ(counted(other->sizes()), (IndexSizes{1, 6, 6, 0, 0, 0}));
  EXPECT_EQ(other->counters().removed, 30u);
  EXPECT_EQ(other->counters().unknown_removals, 0u);
}

TEST_P(IndexDumpTest, LongChainsAndWideBranchesAreDumped) {
  std::vector<std::vector<LocalHash>> queries;
  const Chain stem = chain_of(1, 1000);
  store(kA, stem);
  queries.push_back(stem.locals);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Chain branch = branch_of(stem, 1 + (i * 97) % 999, 10 + i % 50, 1000);
    store(worker_of(i % 7), branch, 0, std::min<std::size_t>(1000, (i * 97) % 999 + 20));
    if (i % 20 == 0) queries.push_back(branch.locals);
  }
  expect_round_trip(queries);
}

TEST_P(IndexDumpTest, ADeepChainIsDumped) {
  const std::size_t depth = testing::all_rounds() ? 20'000 : 5'000;
  const Chain chain = chain_of(1, depth);
  store(kA, chain);
  store(kB, chain, 0, depth / 4 * 3, kHost);
  const std::vector<std::vector<LocalHash>> queries = {chain.locals};
  expect_round_trip(queries);
}

TEST_P(IndexDumpTest, ManyWorkersAreDumped) {
  const Chain chain = chain_of(1, 12);
  for (std::uint64_t id = 0; id < 300; ++id)
    store(worker_of(id, static_cast<std::uint32_t>(id % 2)), id % 3 == 0 ? renamed(chain, id) : chain, 0,
          1 + id % 12);
  const std::vector<std::vector<LocalHash>> queries = {chain.locals};
  expect_round_trip(queries);
}

ASHLAR_INDEX_SUITE(IndexDumpTest, all_index_cases);

// What lies behind a hole is in the dump, the hole is not.
class IndexRetainedDumpTest : public IndexDumpTest {};

TEST_P(IndexRetainedDumpTest, BlocksBehindAHoleAreDumped) {
  const Chain chain = chain_of(1, 30);
  store(kA, chain);
  store(kB, chain, 0, 12);
  remove(kA, chain, 10, 5);
  remove_one(kA, chain.names[20]);
  const std::vector<std::vector<LocalHash>> queries = {chain.locals};
  expect_round_trip(queries);
  const std::unique_ptr<AnyIndex> other = rebuilt();
  const std::vector<StoredBlock> middle = chain.blocks(10, 5);
  const std::vector<StoredBlock> late = chain.blocks(20, 1);
  EXPECT_EQ(counted(other->sizes()).blocks, 24u + 12);
  other->store({kA, kDevice, chain.names[9], 10, middle});
  other->store({kA, kDevice, chain.names[19], 20, late});
  other->settle();
  MatchScores found;
  other->find_matches(chain.locals, found, {});
  EXPECT_EQ(scores_of(found)[kA].depth, 30u);
}

TEST_P(IndexRetainedDumpTest, AChainWithoutItsFrontIsDumped) {
  const Chain chain = chain_of(1, 25);
  store(kA, chain);
  store(kA, chain, 20, 3, kHost);
  remove(kA, chain, 0, 20);
  const std::vector<std::vector<LocalHash>> queries = {chain.locals};
  expect_round_trip(queries);
}

// Whatever stands in for a missing block must not collide with a name of the worker.
TEST_P(IndexRetainedDumpTest, SmallNamesAreNotDisturbed) {
  Chain chain = chain_of(1, 60);
  for (std::size_t i = 0; i < 60; ++i) chain.names[i] = BlockName(i < 30 ? i : UINT64_MAX - i);
  store(kA, chain);
  for (std::size_t i = 0; i < 59; i += 3) remove_one(kA, chain.names[i]);
  const std::vector<std::vector<LocalHash>> queries = {chain.locals};
  expect_round_trip(queries);
}

TEST_P(IndexRetainedDumpTest, HolesOfOneWorkerAreNotFilledByAnother) {
  const Chain stem = chain_of(1, 40);
  std::vector<std::vector<LocalHash>> queries = {stem.locals};
  for (std::uint64_t id = 1; id <= 8; ++id) {
    const Chain branch = branch_of(stem, 4 * id, 10 + id, 45);
    store(worker_of(id), stem);
    store(worker_of(id), branch);
    for (std::size_t i = id; i < 40; i += id + 1) remove_one(worker_of(id), stem.names[i]);
    queries.push_back(branch.locals);
  }
  expect_round_trip(queries);
}

ASHLAR_INDEX_SUITE(IndexRetainedDumpTest, index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
