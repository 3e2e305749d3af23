// The oracle itself, on cases small enough to be worked out by hand.
#include "ashlar/testing/index_oracle.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "ashlar/testing/index_calls.h"
#include "index/index_printers.h"

namespace ashlar::index {
namespace {

using testing::IndexCall;
using testing::IndexOracle;
using testing::RecordedCalls;

constexpr Worker kA{WorkerId(1), 0};
constexpr Worker kB{WorkerId(2), 0};

class IndexOracleTest : public ::testing::Test {
 protected:
  using Names = std::vector<std::uint64_t>;

  static std::vector<LocalHash> locals(std::initializer_list<std::uint64_t> values) {
    std::vector<LocalHash> locals;
    for (const std::uint64_t value : values) locals.emplace_back(value);
    return locals;
  }
  static std::vector<BlockName> names(std::initializer_list<std::uint64_t> values) {
    std::vector<BlockName> names;
    for (const std::uint64_t value : values) names.emplace_back(value);
    return names;
  }
  // Blocks as {local, name}.
  static StoreVerdict store(IndexOracle& oracle, const Worker& worker, std::optional<std::uint64_t> parent,
                            std::initializer_list<std::pair<std::uint64_t, std::uint64_t>> pairs,
                            StorageTier tier = StorageTier::kDevice,
                            std::optional<std::uint32_t> position = std::nullopt) {
    std::vector<StoredBlock> blocks;
    for (const auto& [local, name] : pairs) blocks.push_back({LocalHash(local), BlockName(name)});
    BlocksStored event{worker, tier, std::nullopt, position, blocks};
    if (parent) event.parent = BlockName(*parent);
    return oracle.store(event);
  }
  Score score(const IndexOracle& oracle, const Worker& worker, const std::vector<LocalHash>& query,
              bool early_exit = false) {
    oracle.find_matches(query, found_, {.early_exit = early_exit});
    return found_.of(worker).value_or(Score{});
  }

  IndexOracle oracle_;
  IndexOracle orphaning_{MidChainRemoval::kOrphan};
  MatchScores found_;
};

TEST_F(IndexOracleTest, DepthIsTheNumberOfLeadingBlocks) {
  EXPECT_EQ(store(oracle_, kA, {}, {{1, 101}, {2, 102}, {3, 103}}), StoreVerdict::kApplied);
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 3})), (Score{3, 3, {3, 0, 0, 0}}));
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 4})), (Score{2, 2, {2, 0, 0, 0}}));
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 3, 4})), (Score{3, 3, {3, 0, 0, 0}}));
  EXPECT_EQ(score(oracle_, kA, locals({2, 3})), Score{});
  EXPECT_EQ(score(oracle_, kB, locals({1})), Score{});
  EXPECT_EQ(score(oracle_, kA, {}), Score{});
}

TEST_F(IndexOracleTest, ScoresSpreadOverTiers) {
  store(oracle_, kA, {}, {{1, 101}, {2, 102}});
  store(oracle_, kA, 102, {{3, 103}, {4, 104}}, StorageTier::kHost);
  store(oracle_, kA, 104, {{5, 105}});
  store(oracle_, kA, 101, {{2, 102}}, StorageTier::kHost);  // also in the host tier
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 3, 4, 5})), (Score{2, 5, {3, 2, 0, 0}}));
  EXPECT_EQ(oracle_.sizes(), (IndexSizes{1, 6, 5, 0, 0, 0}));
}

TEST_F(IndexOracleTest, VerdictsComeInTheirOrder) {
  store(oracle_, kA, {}, {{1, 101}, {2, 102}});
  EXPECT_EQ(store(oracle_, kA, 999, {}, StorageTier::kDevice, 9), StoreVerdict::kEmpty);
  EXPECT_EQ(store(oracle_, kA, 999, {{3, 101}}, StorageTier::kDevice, 9), StoreVerdict::kUnknownParent);
  EXPECT_EQ(store(oracle_, kB, 102, {{3, 103}}), StoreVerdict::kUnknownParent);
  EXPECT_EQ(store(oracle_, kA, 102, {{3, 101}}, StorageTier::kDevice, 1), StoreVerdict::kWrongPosition);
  EXPECT_EQ(store(oracle_, kA, {}, {{3, 103}}, StorageTier::kDevice, 1), StoreVerdict::kWrongPosition);
  EXPECT_EQ(store(oracle_, kA, 102, {{3, 101}}, StorageTier::kDevice, 2), StoreVerdict::kNameInUse);
  EXPECT_EQ(store(oracle_, kA, 102, {{3, 103}, {4, 103}}), StoreVerdict::kNameInUse);
  EXPECT_EQ(store(oracle_, kA, 102, {{3, 102}}), StoreVerdict::kNameInUse);
  EXPECT_EQ(oracle_.sizes(), (IndexSizes{1, 2, 2, 0, 0, 0}));
  IndexCounters expected;
  expected.stored = 2;
  expected.empty_stores = 1;
  expected.unknown_parents = 2;
  expected.wrong_positions = 2;
  expected.names_in_use = 3;
  EXPECT_EQ(oracle_.counters(), expected);
  EXPECT_EQ(store(oracle_, kA, 102, {{3, 103}}, StorageTier::kDevice, 2), StoreVerdict::kApplied);
}

TEST_F(IndexOracleTest, ContentStaysWithItsLastName) {
  store(oracle_, kA, {}, {{1, 101}});
  store(oracle_, kA, {}, {{1, 201}});
  EXPECT_EQ(oracle_.sizes().blocks, 1u);
  EXPECT_EQ(oracle_.remove(kA, StorageTier::kDevice, names({101, 101, 5})), 1u);
  EXPECT_EQ(score(oracle_, kA, locals({1})).depth, 1u);
  EXPECT_EQ(oracle_.remove(kA, StorageTier::kHost, names({201})), 0u);
  EXPECT_EQ(oracle_.remove(kA, StorageTier::kDevice, names({201})), 1u);
  EXPECT_EQ(oracle_.sizes(), IndexSizes());
  EXPECT_EQ(oracle_.counters().removed, 2u);
  EXPECT_EQ(oracle_.counters().unknown_removals, 3u);
}

TEST_F(IndexOracleTest, RetainedBlocksComeBackAndOrphansDoNot) {
  for (IndexOracle* oracle : {&oracle_, &orphaning_}) {
    store(*oracle, kA, {}, {{1, 101}, {2, 102}, {3, 103}, {4, 104}, {5, 105}});
    store(*oracle, kA, 103, {{9, 109}}, StorageTier::kHost);
    EXPECT_EQ(oracle->remove(kA, StorageTier::kDevice, names({103})), 1u);
    EXPECT_EQ(score(*oracle, kA, locals({1, 2, 3, 4, 5})).depth, 2u);
  }
  EXPECT_EQ(oracle_.sizes().blocks, 5u);
  EXPECT_EQ(orphaning_.sizes().blocks, 2u);
  EXPECT_EQ(orphaning_.remove(kA, StorageTier::kHost, names({109})), 0u);
  store(oracle_, kA, 102, {{3, 103}});
  store(orphaning_, kA, 102, {{3, 103}});
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 3, 4, 5})).depth, 5u);
  EXPECT_EQ(score(orphaning_, kA, locals({1, 2, 3, 4, 5})).depth, 3u);
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 3, 9})), (Score{3, 4, {3, 1, 0, 0}}));
}

TEST_F(IndexOracleTest, OrphansGoOnlyWithTheLastTierAndName) {
  store(orphaning_, kA, {}, {{1, 101}, {2, 102}});
  store(orphaning_, kA, {}, {{1, 201}}, StorageTier::kHost);
  EXPECT_EQ(orphaning_.remove(kA, StorageTier::kDevice, names({101})), 1u);
  EXPECT_EQ(score(orphaning_, kA, locals({1, 2})), (Score{0, 2, {1, 1, 0, 0}}));
  EXPECT_EQ(orphaning_.remove(kA, StorageTier::kHost, names({201})), 1u);
  EXPECT_EQ(orphaning_.sizes(), IndexSizes());
}

TEST_F(IndexOracleTest, EarlyExitStopsWhenOneIsLeft) {
  store(oracle_, kA, {}, {{1, 101}, {2, 102}, {3, 103}, {4, 104}});
  store(oracle_, kB, {}, {{1, 101}, {2, 102}});
  const std::vector<LocalHash> query = locals({1, 2, 3, 4});
  EXPECT_EQ(score(oracle_, kA, query, true).depth, 3u);
  EXPECT_FALSE(found_.exact());
  EXPECT_EQ(score(oracle_, kB, query, true).depth, 2u);
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 3}), true).depth, 3u);
  EXPECT_TRUE(found_.exact());
  EXPECT_EQ(score(oracle_, kA, locals({1, 2, 7, 8}), true).depth, 2u);
  EXPECT_TRUE(found_.exact());  // both left together
  oracle_.clear(kB);
  EXPECT_EQ(score(oracle_, kA, query, true).depth, 1u);
  EXPECT_FALSE(found_.exact());
  EXPECT_EQ(score(oracle_, kA, query, false).depth, 4u);
  EXPECT_TRUE(found_.exact());
}

TEST_F(IndexOracleTest, ClearTakesARankAndRemoveWorkerAllOfThem) {
  const Worker sibling{WorkerId(1), 1};
  for (const Worker& worker : {kA, sibling, kB}) store(oracle_, worker, {}, {{1, 101}});
  oracle_.clear(kA);
  EXPECT_EQ(oracle_.sizes().workers, 2u);
  EXPECT_EQ(score(oracle_, sibling, locals({1})).depth, 1u);
  oracle_.remove_worker(WorkerId(1));
  EXPECT_EQ(oracle_.sizes(), (IndexSizes{1, 1, 1, 0, 0, 0}));
  oracle_.remove_worker(WorkerId(1));
  EXPECT_EQ(oracle_.counters().clears, 3u);
}

TEST_F(IndexOracleTest, ADumpStandsInForMissingBlocks) {
  store(oracle_, kA, {}, {{1, 0}, {2, 1}, {3, 2}});
  oracle_.remove(kA, StorageTier::kDevice, names({0, 1}));
  RecordedCalls dump;
  oracle_.dump(dump);
  // Names 0 and 1 are free again; 2 is not.
  const std::vector<IndexCall> expected = {
      testing::StoreCall{kA, StorageTier::kDevice, std::nullopt, 0, {{LocalHash(1), BlockName(0)}}},
      testing::StoreCall{kA, StorageTier::kDevice, BlockName(0), 1, {{LocalHash(2), BlockName(1)}}},
      testing::StoreCall{kA, StorageTier::kDevice, BlockName(1), 2, {{LocalHash(3), BlockName(2)}}},
      testing::RemoveCall{kA, StorageTier::kDevice, {BlockName(0), BlockName(1)}},
  };
  EXPECT_EQ(dump.calls(), expected);
  IndexOracle other;
  dump.replay(other);
  EXPECT_EQ(difference(oracle_, other), "");
  EXPECT_EQ(other.sizes(), oracle_.sizes());
}

TEST_F(IndexOracleTest, DifferencesAreSeen) {
  IndexOracle other;
  EXPECT_EQ(difference(oracle_, other), "");
  store(oracle_, kA, {}, {{1, 101}, {2, 102}});
  EXPECT_NE(difference(oracle_, other), "");  // a worker
  EXPECT_NE(difference(other, oracle_), "");
  store(other, kA, {}, {{7, 107}});
  EXPECT_NE(difference(oracle_, other), "");  // a content
  other.clear(kA);
  store(other, kA, {}, {{1, 101}});
  EXPECT_NE(difference(oracle_, other), "");  // a block more
  EXPECT_NE(difference(other, oracle_), "");
  store(other, kA, 101, {{2, 202}});
  EXPECT_NE(difference(oracle_, other), "");  // another name
  store(other, kA, 101, {{2, 102}});
  EXPECT_NE(difference(oracle_, other), "");  // a name more
  other.remove(kA, StorageTier::kDevice, names({202}));
  EXPECT_EQ(difference(oracle_, other), "");
  store(other, kA, 101, {{2, 102}}, StorageTier::kHost);
  EXPECT_NE(difference(oracle_, other), "");  // a tier more
}

}  // namespace
}  // namespace ashlar::index
