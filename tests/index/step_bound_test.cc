// Calls whose cost must not grow with what a worker holds, pinned by the entries that walks over tables look
// at.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/index/approximate_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/testing/manual_clock.h"
#include "base/walked_steps.h"
#include "index/chain.h"

namespace ashlar::index::step_bound {
namespace {

using conformance::Chain;
using conformance::chain_of;

constexpr Worker kWorker{WorkerId(1), 0};
constexpr std::uint64_t kBound = 64;
constexpr std::size_t kBlocks = 20'000;  // far from the sizes at which tables double

template <class Index>
StoreVerdict store(Index& index, std::uint64_t local, std::uint64_t name,
                   std::optional<BlockName> parent = std::nullopt) {
  const StoredBlock block{LocalHash(local), BlockName(name)};
  return index.store({kWorker, StorageTier::kDevice, parent, std::nullopt, {&block, 1}});
}
template <class Index>
std::size_t remove(Index& index, std::uint64_t name) {
  const BlockName gone(name);
  return index.remove(kWorker, StorageTier::kDevice, {&gone, 1});
}
template <class Index>
std::uint32_t depth(const Index& index, std::vector<LocalHash> locals) {
  MatchScores scores;
  index.find_matches(locals, scores);
  return scores.longest();
}

template <class Index>
void fill(Index& index) {
  for (std::uint64_t family = 1; family <= kBlocks / 100; ++family) {
    const Chain chain = chain_of(family, 100);
    const std::vector<StoredBlock> blocks = chain.blocks(0, chain.size());
    ASSERT_EQ(index.store({kWorker, StorageTier::kDevice, std::nullopt, std::nullopt, blocks}),
              StoreVerdict::kApplied);
  }
}

// What the body's walks look at.
template <class Body>
std::uint64_t steps_of(Body&& body) {
  const std::uint64_t before = walked_steps;
  body();
  return walked_steps - before;
}

template <class Index>
class StepBoundTest : public ::testing::Test {
 protected:
  Index index_;
};
using Structures = ::testing::Types<RadixTree, ConcurrentRadixTree, PositionalIndexer>;
TYPED_TEST_SUITE(StepBoundTest, Structures);

TYPED_TEST(StepBoundTest, ASecondNameComesAndGoesWithoutAWalkOverTheOthers) {
  auto& index = this->index_;
  fill(index);
  ASSERT_EQ(store(index, 7, 8), StoreVerdict::kApplied);
  for (int round = 0; round < 3; ++round) {
    EXPECT_LE(steps_of([&] { ASSERT_EQ(store(index, 7, 9), StoreVerdict::kApplied); }), kBound);
    EXPECT_EQ(depth(index, {LocalHash(7)}), 1u);
    EXPECT_LE(steps_of([&] { ASSERT_EQ(remove(index, round % 2 == 0 ? 9 : 8), 1u); }), kBound);
    EXPECT_EQ(depth(index, {LocalHash(7)}), 1u);
    if (round % 2 == 1) {
      ASSERT_EQ(store(index, 7, 8), StoreVerdict::kApplied);
      ASSERT_EQ(remove(index, 9), 1u);
    }
  }
  EXPECT_EQ(remove(index, 8), 1u);
  EXPECT_EQ(depth(index, {LocalHash(7)}), 0u);
}

TYPED_TEST(StepBoundTest, AHoleOpensAndClosesWithoutAWalkOverTheOthers) {
  auto& index = this->index_;
  fill(index);
  const Chain chain = chain_of(1, 100);
  const std::vector<StoredBlock> middle = chain.blocks(50, 1);
  for (int round = 0; round < 3; ++round) {
    EXPECT_LE(steps_of([&] { ASSERT_EQ(remove(index, middle[0].name.value()), 1u); }), kBound);
    EXPECT_EQ(depth(index, chain.locals), 50u);
    EXPECT_LE(steps_of([&] {
                ASSERT_EQ(store(index, middle[0].local.value(), middle[0].name.value(), chain.names[49]),
                          StoreVerdict::kApplied);
              }),
              kBound);
    EXPECT_EQ(depth(index, chain.locals), 100u);
  }
}

TYPED_TEST(StepBoundTest, ATailAboveManySiblingsComesAndGoesWithoutAWalkOverThem) {
  auto& index = this->index_;
  const Chain stem = chain_of(1, 64);
  const std::vector<StoredBlock> blocks = stem.blocks(0, 64);
  ASSERT_EQ(index.store({kWorker, StorageTier::kDevice, std::nullopt, std::nullopt, blocks}),
            StoreVerdict::kApplied);
  for (std::uint64_t i = 0; i < 10'000; ++i)
    ASSERT_EQ(store(index, 1'000 + i, 1'000 + i, stem.names[19]), StoreVerdict::kApplied);
  std::vector<LocalHash> path = stem.locals;
  path.emplace_back(5);
  for (int round = 0; round < 3; ++round) {
    EXPECT_LE(steps_of([&] { ASSERT_EQ(store(index, 5, 6, stem.names[63]), StoreVerdict::kApplied); }),
              kBound);
    EXPECT_EQ(depth(index, path), 65u);
    EXPECT_LE(steps_of([&] { ASSERT_EQ(remove(index, 6), 1u); }), kBound);
    EXPECT_EQ(depth(index, path), 64u);
  }
}

TYPED_TEST(StepBoundTest, TheRanksOfAWorkerAreFoundWithoutAWalkOverAllWorkers) {
  auto& index = this->index_;
  const StoredBlock block{LocalHash(1), BlockName(1)};
  const auto store_for = [&](const Worker& worker) {
    ASSERT_EQ(index.store({worker, StorageTier::kDevice, std::nullopt, std::nullopt, {&block, 1}}),
              StoreVerdict::kApplied);
  };
  for (std::uint64_t id = 0; id < 5'000; ++id) store_for({WorkerId(id), 0});
  for (std::uint32_t rank = 1; rank <= 600; ++rank) store_for({WorkerId(7), rank});
  // A walk over the tables of each rank, which hold one block.
  EXPECT_LE(steps_of([&] { index.remove_worker(WorkerId(7)); }), 601 * kBound);
  EXPECT_EQ(index.sizes().workers, 4'999u);
  EXPECT_LE(steps_of([&] { index.remove_worker(WorkerId(8)); }), 2 * kBound);
  EXPECT_LE(steps_of([&] { index.clear({WorkerId(9), 0}); }), 2 * kBound);
  EXPECT_EQ(index.sizes().workers, 4'997u);
  MatchScores scores;
  index.find_matches({&block.local, 1}, scores);
  EXPECT_EQ(scores.matched(), 4'997u);
}

TEST(ApproximateStepBoundTest, APredictionBehindARenamedBlockNeedsNoWalkOverTheNames) {
  testing::ManualClock clock;
  auto index = ApproximateIndex<RadixTree>::create({.clock = &clock}).value();
  fill(index);
  ASSERT_EQ(store(index, 7, 8), StoreVerdict::kApplied);
  for (std::uint64_t round = 0; round < 3; ++round) {
    const std::vector<LocalHash> path = {LocalHash(7), LocalHash(100 + round)};
    EXPECT_LE(steps_of([&] {
                ASSERT_EQ(store(index, 7, 9 + round), StoreVerdict::kApplied);
                ASSERT_EQ(remove(index, 8 + round), 1u);
                ASSERT_EQ(index.predict(kWorker, path), StoreVerdict::kApplied);
              }),
              kBound);
    EXPECT_EQ(depth(index, path), 2u);
  }
}

TEST(ApproximateStepBoundTest, AContentMayHaveManyNames) {
  testing::ManualClock clock;
  auto index = ApproximateIndex<RadixTree>::create({.clock = &clock}).value();
  const IndexSizes empty = index.sizes();
  for (std::uint64_t name = 0; name < 1'000; ++name) ASSERT_EQ(store(index, 7, name), StoreVerdict::kApplied);
  // The name that a prediction goes by is always one of those that are left.
  for (std::uint64_t name = 0; name < 1'000; ++name) {
    const std::vector<LocalHash> path = {LocalHash(7), LocalHash(100 + name)};
    ASSERT_EQ(index.predict(kWorker, path), StoreVerdict::kApplied);
    ASSERT_EQ(depth(index, path), 2u);
    ASSERT_EQ(remove(index, name * 7 % 1'000), 1u);
  }
  index.clear(kWorker);
  EXPECT_EQ(index.sizes(), empty);
}

}  // namespace
}  // namespace ashlar::index::step_bound
