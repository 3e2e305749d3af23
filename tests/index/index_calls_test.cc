// RecordedCalls, the call generator and the machinery that compares an index with the oracle.
#include "ashlar/testing/index_calls.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ashlar/testing/index_call_generator.h"
#include "ashlar/testing/index_oracle.h"
#include "index/chain.h"
#include "index/lockstep.h"

namespace ashlar::index::conformance {
namespace {

using testing::CallAnswer;
using testing::CallGeneratorOptions;
using testing::ClearCall;
using testing::IndexCall;
using testing::IndexCallGenerator;
using testing::IndexOracle;
using testing::RecordedCalls;
using testing::RemoveCall;
using testing::RemoveWorkerCall;
using testing::StoreCall;

constexpr Worker kOne{WorkerId(1), 0};
constexpr Worker kTwo{WorkerId(2), 3};

TEST(RecordedCallsTest, CallsAreKeptWithTheirData) {
  RecordedCalls recorded;
  {
    std::vector<StoredBlock> blocks = {{LocalHash(1), BlockName(10)}, {LocalHash(2), BlockName(20)}};
    EXPECT_EQ(recorded.store({kOne, StorageTier::kHost, BlockName(5), 7, blocks}), StoreVerdict::kApplied);
    blocks[0] = {};
    std::vector<BlockName> names = {BlockName(20)};
    EXPECT_EQ(recorded.remove(kOne, StorageTier::kHost, names), 1u);
    names[0] = {};
  }
  recorded.clear(kTwo);
  recorded.remove_worker(WorkerId(9));
  const std::vector<IndexCall> expected = {
      StoreCall{kOne,
                StorageTier::kHost,
                BlockName(5),
                7,
                {{LocalHash(1), BlockName(10)}, {LocalHash(2), BlockName(20)}}},
      RemoveCall{kOne, StorageTier::kHost, {BlockName(20)}}, ClearCall{kTwo}, RemoveWorkerCall{WorkerId(9)}};
  EXPECT_EQ(recorded.calls(), expected);
  EXPECT_EQ(to_string(recorded.calls()[0]), "store 1/0 host after 5 at 7 [1=10 2=20] (2)");
  EXPECT_EQ(to_string(recorded.calls()[1]), "remove 1/0 host [20] (1)");
  EXPECT_EQ(to_string(recorded.calls()[2]), "clear 2/3");
  EXPECT_EQ(to_string(recorded.calls()[3]), "remove_worker 9");
}

TEST(RecordedCallsTest, AReplayMakesTheSameCallsAndReturnsTheAnswers) {
  RecordedCalls recorded;
  const std::vector<StoredBlock> blocks = chain_of(1, 3).blocks(0, 3);
  recorded.store({kOne, StorageTier::kDevice, std::nullopt, std::nullopt, blocks});
  recorded.store({kOne, StorageTier::kDevice, BlockName(1), std::nullopt, blocks});
  recorded.remove(kOne, StorageTier::kDevice, chain_of(1, 3).names);
  IndexOracle oracle;
  const std::vector<CallAnswer> answers = recorded.replay(oracle);
  const std::vector<CallAnswer> expected = {
      {StoreVerdict::kApplied, 0}, {StoreVerdict::kUnknownParent, 0}, {std::nullopt, 3}};
  EXPECT_EQ(answers, expected);
  RecordedCalls again;
  recorded.replay(again);
  EXPECT_EQ(again.calls(), recorded.calls());
}

TEST(IndexCallGeneratorTest, OneSeedGivesOneStream) {
  IndexCallGenerator left(7);
  IndexCallGenerator right(7);
  IndexCallGenerator other(8);
  std::size_t different = 0;
  for (int i = 0; i < 300; ++i) {
    const IndexCall call = left.next();
    EXPECT_EQ(call, right.next());
    different += call == other.next() ? 0 : 1;
    EXPECT_EQ(left.next_query(), right.next_query());
  }
  EXPECT_GT(different, 250u);
}

// What a stream must contain to be worth running; the oracle says what became of the calls.
TEST(IndexCallGeneratorTest, StreamsContainEverythingThatCanHappen) {
  IndexCounters sum;
  std::map<std::string, std::size_t> seen;
  std::set<std::size_t> lengths;
  MatchScores found;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    IndexCallGenerator generator(seed, CallGeneratorOptions::varied(seed));
    IndexOracle oracle;
    for (int step = 0; step < 600; ++step) {
      const IndexCall call = generator.next();
      const IndexCounters before = oracle.counters();
      testing::apply(call, oracle);
      if (const auto* store = std::get_if<StoreCall>(&call)) {
        if (oracle.counters().stored != before.stored) {
          lengths.insert(store->blocks.size());
          ++seen["applied stores"];
          seen["applied after a parent"] += store->parent.has_value() ? 1 : 0;
          seen["applied with a position"] += store->start_position.has_value() ? 1 : 0;
          seen["applied in lower tiers"] += store->tier != StorageTier::kDevice ? 1 : 0;
        }
      } else if (std::holds_alternative<RemoveCall>(call)) {
        ++seen["removals"];
      } else if (std::holds_alternative<ClearCall>(call)) {
        ++seen["clears"];
      } else {
        ++seen["removed workers"];
      }
      if (step % 10 == 0) {
        const std::vector<LocalHash> query = generator.next_query();
        oracle.find_matches(query, found, {});
        ++seen["queries"];
        seen["queries that match"] += found.matched() > 0 ? 1 : 0;
        seen["queries that match several"] += found.matched() > 1 ? 1 : 0;
        std::set<std::uint32_t> depths;
        found.for_each([&](const Worker&, const Score& score) {
          depths.insert(score.depth);
          seen["scores with lower tiers"] += score.blocks[0] != score.depth ? 1 : 0;
          seen["scores of 32 and more"] += score.depth >= 32 ? 1 : 0;
        });
        seen["queries that tell workers apart"] += depths.size() > 1 ? 1 : 0;
        oracle.find_matches(query, found, {.early_exit = true});
        seen["queries cut short"] += found.exact() ? 0 : 1;
      }
    }
    const IndexCounters counters = oracle.counters();
    sum.stored += counters.stored;
    sum.repeated += counters.repeated;
    sum.removed += counters.removed;
    sum.unknown_removals += counters.unknown_removals;
    sum.unknown_parents += counters.unknown_parents;
    sum.wrong_positions += counters.wrong_positions;
    sum.names_in_use += counters.names_in_use;
    sum.empty_stores += counters.empty_stores;
    // A hole: the dump needs a stand-in for it.
    RecordedCalls dump;
    oracle.dump(dump);
    for (const IndexCall& call : dump.calls())
      seen["workers with holes"] += std::holds_alternative<RemoveCall>(call) ? 1 : 0;
  }
  for (const auto& [what, count] : seen) RecordProperty(what, static_cast<int>(count));
  EXPECT_GT(seen["applied stores"], 5'000u);
  EXPECT_GT(seen["removals"], 5'000u);
  for (const char* what : {"applied after a parent", "applied with a position", "applied in lower tiers",
                           "queries that match several", "queries that tell workers apart",
                           "scores with lower tiers", "scores of 32 and more", "queries cut short"})
    EXPECT_GT(seen[what], 300u) << what;
  for (const char* what : {"clears", "removed workers", "workers with holes"})
    EXPECT_GT(seen[what], 50u) << what;
  EXPECT_GT(seen["queries that match"] * 2, seen["queries"]);
  EXPECT_GT(sum.removed * 3, sum.stored - sum.repeated);  // most leave by name, the rest by clears
  for (const std::uint64_t count : {sum.repeated, sum.unknown_removals, sum.unknown_parents,
                                    sum.wrong_positions, sum.names_in_use, sum.empty_stores})
    EXPECT_GT(count, 100u) << ::testing::PrintToString(count);
  for (const std::size_t length : {1u, 31u, 32u, 33u, 64u, 128u}) EXPECT_TRUE(lengths.contains(length));
}

// An index with a fault: every seventh removal is forgotten.
class Forgetful {
 public:
  StoreVerdict store(const BlocksStored& event) { return oracle_.store(event); }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
    return ++removals_ % 7 == 0 ? names.size() : oracle_.remove(worker, tier, names);
  }
  void clear(const Worker& worker) { oracle_.clear(worker); }
  void remove_worker(WorkerId worker) { oracle_.remove_worker(worker); }
  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options) const {
    oracle_.find_matches(locals, scores, options);
  }
  void dump(IndexSink& sink) const { oracle_.dump(sink); }
  IndexSizes sizes() const { return oracle_.sizes(); }
  IndexCounters counters() const { return oracle_.counters(); }

 private:
  IndexOracle oracle_;
  std::size_t removals_ = 0;
};

TEST(LockstepTest, AFaultIsFoundAndShrunk) {
  const IndexCase tested = index_case<Forgetful>("Forgetful");
  std::vector<IndexCall> calls;
  const auto fails = [&](std::span<const IndexCall> some) {
    Lockstep lockstep(tested);
    for (const IndexCall& call : some)
      if (!lockstep.apply(call).empty() || !lockstep.compare_state().empty()) return true;
    return false;
  };
  IndexCallGenerator generator(3);
  while (!fails(calls) && calls.size() < 200) calls.push_back(generator.next());
  ASSERT_TRUE(fails(calls));
  calls = shrink(calls, fails);
  EXPECT_TRUE(fails(calls));
  EXPECT_LE(calls.size(), 8u);  // seven removals, of anything
}

TEST(LockstepTest, IndexesThatAreAlikeAgree) {
  Lockstep lockstep(index_case<IndexOracle>("Oracle"));
  IndexCallGenerator generator(5);
  for (int step = 0; step < 200; ++step) {
    ASSERT_EQ(lockstep.apply(generator.next()), "");
    ASSERT_EQ(lockstep.compare_state(), "");
    ASSERT_EQ(lockstep.compare_answers(generator.next_query()), "");
  }
  const std::vector<std::vector<LocalHash>> queries = {generator.next_query(), generator.next_query()};
  EXPECT_EQ(lockstep.compare_dumps(queries), "");
  EXPECT_EQ(lockstep.remove_everything(true), "");
}

TEST(LockstepTest, APolicyThatDiffersIsNoticed) {
  // Claims to retain and orphans.
  const IndexCase tested = index_case<IndexOracle>("Wrong", MidChainRemoval::kOrphan);
  Lockstep lockstep(tested);
  IndexCallGenerator generator(6);
  std::string problem;
  for (int step = 0; step < 500 && problem.empty(); ++step) {
    problem = lockstep.apply(generator.next());
    if (problem.empty()) problem = lockstep.compare_state();
  }
  EXPECT_NE(problem, "");
}

}  // namespace
}  // namespace ashlar::index::conformance
