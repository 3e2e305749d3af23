// Indexes without memory: the n-th allocation of a call fails, alone or with all after it, for every n. A
// store is applied or refused as full; what takes blocks away does so. An oracle gets the calls that were
// applied, and the index must agree with it then and later.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/index/approximate_index.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/make_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/index/thread_pool_indexer.h"
#include "ashlar/testing/index_call_generator.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/manual_clock.h"
#include "index/adapters/use_counts.h"
#include "index/chain.h"
#include "index/index_case.h"
#include "index/index_printers.h"
#include "index/test_worker.h"
#include "support/failing_new.h"

namespace ashlar::index::conformance {
namespace {

using support::FailingAllocation;
using support::for_every_allocation;
using support::Shortage;
using testing::CallAnswer;
using testing::ClearCall;
using testing::IndexCall;
using testing::IndexOracle;
using testing::RecordedCalls;
using testing::RemoveCall;
using testing::RemoveWorkerCall;
using testing::StoreCall;

constexpr StorageTier kDevice = StorageTier::kDevice;
constexpr StorageTier kHost = StorageTier::kHost;

using Queries = std::vector<std::vector<LocalHash>>;

IndexSizes without_structure(IndexSizes sizes) {
  sizes.nodes = sizes.bytes = sizes.waiting_bytes = 0;
  return sizes;
}

std::map<Worker, Score> collected(const MatchScores& scores) {
  std::map<Worker, Score> found;
  scores.for_each([&](const Worker& one, const Score& score) { found.emplace(one, score); });
  return found;
}

// An index and the oracle that got the same calls, less those that were refused for lack of memory.
class World {
 public:
  explicit World(const IndexCase& tested)
      : tested_(tested), index_(tested.make()), empty_sizes_(index_->sizes()) {}

  AnyIndex& index() { return *index_; }

  void apply(const IndexCall& call) {
    const CallAnswer answer = testing::apply(call, *index_);
    const CallAnswer expected = testing::apply(call, oracle_);
    if (tested_.answers_at_once) {
      EXPECT_EQ(answer, expected) << to_string(call);
    }
  }

  void apply_without_memory(const IndexCall& call, FailingAllocation& failing, Shortage shortage) {
    CallAnswer answer;
    const bool returned = failing.during(shortage, [&] {
      answer = testing::apply(call, *index_);
      return true;
    });
    const bool is_store = std::holds_alternative<StoreCall>(call);
    if (!returned) {
      // Queues have no room to say no for a removal.
      EXPECT_TRUE(!tested_.answers_at_once && !is_store) << "std::bad_alloc came out of " << to_string(call);
      return;
    }
    if (is_store && failing.happened() && answer.verdict == StoreVerdict::kFull) {
      ++full_;
      return;
    }
    const CallAnswer expected = testing::apply(call, oracle_);
    if (tested_.answers_at_once) {
      EXPECT_EQ(answer, expected) << to_string(call);
    }
  }

  void compare(const Queries& queries) {
    compare_all_but_dumps(queries);
    IndexOracle dumped;
    RecordedCalls calls;
    index_->dump(calls);
    for (const IndexCall& call : calls.calls()) testing::apply(call, dumped);
    EXPECT_EQ(difference(dumped, oracle_), "");
  }

  void compare_all_but_dumps(const Queries& queries) {
    index_->settle();
    EXPECT_EQ(without_structure(index_->sizes()), oracle_.sizes());
    IndexCounters expected = oracle_.counters();
    expected.full += full_;
    EXPECT_EQ(index_->counters(), expected);
    for (const auto& query : queries) compare_answers(query);
  }

  void compare_answers(std::span<const LocalHash> query) {
    for (const bool early_exit : {false, true}) {
      index_->find_matches(query, found_, {.early_exit = early_exit});
      oracle_.find_matches(query, expected_, {.early_exit = early_exit});
      EXPECT_EQ(collected(found_), collected(expected_)) << query.size() << " blocks";
    }
  }

  // Takes all away, name by name or worker by worker, and looks for what is left.
  void empty(bool name_by_name) {
    RecordedCalls stores;
    oracle_.dump(stores);
    for (auto call = stores.calls().rbegin(); call != stores.calls().rend(); ++call) {
      const auto* store = std::get_if<StoreCall>(&*call);
      if (store == nullptr) continue;
      if (name_by_name)
        apply(RemoveCall{store->worker, store->tier, {store->blocks.front().name}});
      else
        apply(ClearCall{store->worker});
    }
    index_->settle();
    EXPECT_EQ(index_->sizes(), empty_sizes_);
  }

 private:
  IndexCase tested_;
  std::unique_ptr<AnyIndex> index_;
  IndexOracle oracle_;
  IndexSizes empty_sizes_;
  std::uint64_t full_ = 0;
  MatchScores found_;  // kept from query to query, as callers do
  MatchScores expected_;
};

StoreCall store(const Worker& to, const Chain& chain, std::size_t from, std::size_t count,
                StorageTier tier = kDevice) {
  StoreCall call{to, tier, {}, {}, chain.blocks(from, count)};
  if (from > 0) call.parent = chain.names[from - 1];
  return call;
}
StoreCall store(const Worker& to, const Chain& chain, StorageTier tier = kDevice) {
  return store(to, chain, 0, chain.size(), tier);
}
RemoveCall remove(const Worker& from, const Chain& chain, std::size_t first, std::size_t count,
                  StorageTier tier = kDevice) {
  return {from, tier, chain.names_from_the_end(first, count)};
}

struct Scenario {
  std::string name;
  std::vector<IndexCall> before;
  IndexCall call;
};

// Enough to fill nodes and to grow each table some times.
constexpr std::size_t kLong = 130;

// Chains that part at the first block and have equal local hashes behind it.
std::vector<Chain> twins(std::size_t count) {
  std::vector<Chain> chains;
  for (std::size_t i = 0; i < count; ++i) {
    chains.push_back(renamed(chain_of(1, 12), 100 + i));
    chains.back().locals[0] = LocalHash(1'000 + i);
  }
  return chains;
}

void add_stores(std::vector<Scenario>& scenarios) {
  const Chain chain = chain_of(1, kLong);
  const Worker a = worker(1);
  const Worker b = worker(2);
  scenarios.push_back({"FirstStore", {}, store(a, chain)});
  scenarios.push_back({"FirstStoreInALowerTier", {}, store(a, chain, kHost)});
  scenarios.push_back({"FirstStoreOfASecondRank", {store(a, chain, 0, 10)}, store(worker(1, 7), chain)});
  scenarios.push_back({"Continuing", {store(a, chain, 0, 30)}, store(a, chain, 30, kLong - 30)});
  scenarios.push_back({"ContinuingByOneBlock", {store(a, chain, 0, 64)}, store(a, chain, 64, 1)});
  scenarios.push_back({"ContinuingInALowerTier", {store(a, chain, 0, 30)}, store(a, chain, 30, 40, kHost)});
  scenarios.push_back({"RepeatingAndContinuing", {store(a, chain, 0, 70)}, store(a, chain, 0, kLong)});
  // One allocation per name in some structures.
  const Chain some = chain_of(1, 40);
  scenarios.push_back({"SecondNames", {store(a, chain)}, store(a, renamed(some, 9))});
  scenarios.push_back(
      {"ThirdNames", {store(a, chain), store(a, renamed(some, 9), 0, 20)}, store(a, renamed(some, 10))});
  scenarios.push_back({"AnotherTier", {store(a, chain)}, store(a, chain, kHost)});
  scenarios.push_back({"OtherNamesInAnotherTier", {store(a, chain)}, store(a, renamed(some, 9), kHost)});
  scenarios.push_back({"NamesAndTiersInTurn",
                       {store(a, some), store(a, renamed(some, 9), kHost), store(a, some, 0, 20, kHost)},
                       store(a, some, kHost)});
  scenarios.push_back({"WhatWasRemovedInTheMiddle",
                       {store(a, chain), remove(a, chain, 20, 60)},
                       store(a, renamed(chain, 9), 0, 50)});
  scenarios.push_back({"AnEventThatIsRefused", {store(a, chain)}, store(a, branch_of(chain, 120, 5, 129))});
  std::get<StoreCall>(scenarios.back().call).blocks.push_back({LocalHash(1), chain.names[3]});
  for (const std::size_t branches : {0u, 1u, 2u, 7u}) {
    std::vector<IndexCall> before = {store(a, chain)};
    for (std::size_t i = 0; i < branches; ++i)
      before.push_back(store(a, branch_of(chain, 30 + i / 2, 20 + i, 60)));
    const std::string number = std::to_string(branches);
    scenarios.push_back({"BranchBeside" + number, before, store(a, branch_of(chain, 30, 90, 100))});
    scenarios.push_back(
        {"BranchOfAnotherWorkerBeside" + number, before, store(b, branch_of(chain, 40, 90, 100))});
  }
  for (const std::size_t count : {1u, 3u, 6u}) {
    std::vector<IndexCall> before;
    const std::vector<Chain> chains = twins(count + 1);
    for (std::size_t i = 0; i < count; ++i) before.push_back(store(a, chains[i]));
    scenarios.push_back({"OneMoreTwinOf" + std::to_string(count), before, store(a, chains[count])});
  }
}

void add_many_workers(std::vector<Scenario>& scenarios) {
  const Chain chain = chain_of(1, 5);
  for (const std::uint64_t workers : {1u, 4u, 12u, 64u, 128u}) {
    std::vector<IndexCall> before;
    for (std::uint64_t id = 0; id < workers; ++id)
      before.push_back(store(worker(id), chain, id % 10 == 3 ? kHost : kDevice));
    const std::string number = std::to_string(workers);
    scenarios.push_back({"OneMoreWorkerBeside" + number, before, store(worker(workers), chain)});
    scenarios.push_back({"AWorkerInHostBeside" + number, before, store(worker(workers), chain, kHost)});
    if (workers % 64 == 0)
      scenarios.push_back(
          {"AWorkerElsewhereBeside" + number, before, store(worker(workers), chain_of(2, 3))});
    scenarios.push_back({"AWorkerLeaves" + number, before, ClearCall{worker(0)}});
  }
  // Sets of workers shrink by the last call of many, each of which finds no memory.
  for (const std::uint64_t left : {0u, 1u, 2u, 20u}) {
    std::vector<IndexCall> before;
    for (std::uint64_t id = 0; id < 140; ++id) {
      before.push_back(store(worker(id), chain));
      if (id % 50 == 0) before.push_back(store(worker(id), chain, kHost));
    }
    for (std::uint64_t id = left + 1; id < 140; ++id) before.push_back(ClearCall{worker(id)});
    scenarios.push_back({"DownTo" + std::to_string(left), before, ClearCall{worker(left)}});
  }
}

void add_removals(std::vector<Scenario>& scenarios) {
  const Chain chain = chain_of(1, kLong);
  const Worker a = worker(1);
  const std::vector<IndexCall> stored = {store(a, chain), store(worker(2), chain, 0, 100),
                                         store(a, branch_of(chain, 30, 5, 60), 30, 30)};
  scenarios.push_back({"RemovingTheEnd", stored, remove(a, chain, 100, 30)});
  scenarios.push_back({"RemovingTheMiddle", stored, remove(a, chain, 20, 100)});
  scenarios.push_back({"RemovingAll", stored, remove(a, chain, 0, kLong)});
  scenarios.push_back({"RemovingWhatIsNotThere", stored, remove(worker(3), chain, 0, kLong)});
  std::vector<IndexCall> named = stored;
  named.emplace_back(store(a, renamed(chain, 9)));
  scenarios.push_back({"RemovingSecondNames", named, remove(a, renamed(chain, 9), 0, kLong)});
  std::vector<IndexCall> tiers = stored;
  tiers.emplace_back(store(a, chain, kHost));
  scenarios.push_back({"RemovingATier", tiers, remove(a, chain, 0, kLong, kHost)});
  scenarios.push_back({"RemovingTheFasterTier", tiers, remove(a, chain, 0, kLong)});
  scenarios.push_back({"Clearing", tiers, ClearCall{a}});
  std::vector<IndexCall> ranks = tiers;
  for (std::uint32_t rank = 1; rank < 70; ++rank) ranks.emplace_back(store(worker(1, rank), chain, 0, 5));
  scenarios.push_back({"RemovingAWorker", ranks, RemoveWorkerCall{WorkerId(1)}});
  scenarios.push_back({"ClearingNobody", stored, ClearCall{worker(9)}});
  std::vector<IndexCall> several;
  for (const Chain& twin : twins(8)) several.emplace_back(store(a, twin));
  scenarios.push_back({"ClearingTwins", several, ClearCall{a}});
}

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> scenarios;
  add_stores(scenarios);
  add_many_workers(scenarios);
  add_removals(scenarios);
  return scenarios;
}

// The sequences that the scenario speaks of, each once.
Queries queries_of(const Scenario& scenario) {
  std::set<std::vector<LocalHash>> queries = {chain_of(1, kLong).locals};
  const auto add = [&](const IndexCall& call) {
    const auto* stored = std::get_if<StoreCall>(&call);
    if (stored == nullptr || stored->parent) return;
    std::vector<LocalHash> locals;
    for (const StoredBlock& block : stored->blocks) locals.push_back(block.local);
    queries.insert(locals);
  };
  std::ranges::for_each(scenario.before, add);
  add(scenario.call);
  return {queries.begin(), queries.end()};
}

std::vector<IndexCase> tested_cases() {
  return {
      index_case<RadixTree>("RadixTree"),
      index_case<ConcurrentRadixTree>("ConcurrentRadixTree"),
      index_case<PositionalIndexer>("Positional", PositionalOptions{.jump_size = 8, .shards = 2}),
      index_case<ApproximateIndex<RadixTree>>("ApproximateRadixTree", ApproximateOptions{}),
      answering_later(index_case<ThreadPoolIndexer<LockedIndex<RadixTree>>>("RadixTreeInThreadPool",
                                                                            ThreadPoolOptions{.threads = 2})),
  };
}

class TreeMemoryTest : public ::testing::TestWithParam<IndexCase> {
 protected:
  // Later calls, with memory.
  static void go_on(World& world, std::uint64_t seed, int calls) {
    testing::IndexCallGenerator generator(seed, testing::CallGeneratorOptions::varied(seed));
    Queries queries;
    for (int i = 0; i < calls; ++i) {
      world.apply(generator.next());
      queries.push_back(generator.next_query());
    }
    world.compare_all_but_dumps(queries);
  }

  // Returns how many allocations failed.
  static std::size_t run_scenario(const Scenario& scenario, Shortage shortage) {
    const Queries queries = queries_of(scenario);
    return for_every_allocation([&](FailingAllocation& failing) {
      SCOPED_TRACE(scenario.name + ", allocation " + std::to_string(failing.number()));
      World world(GetParam());
      for (const IndexCall& call : scenario.before) world.apply(call);
      world.apply_without_memory(scenario.call, failing, shortage);
      world.compare(queries);
      world.apply(scenario.call);
      go_on(world, failing.number(), 12);
      world.empty(/*name_by_name=*/failing.number() % 2 == 0);
    });
  }

  static void run_scenarios(void (*add)(std::vector<Scenario>&)) {
    std::vector<Scenario> scenarios;
    add(scenarios);
    std::size_t failures = 0;
    for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
      for (const Scenario& scenario : scenarios) {
        failures += run_scenario(scenario, shortage);
        if (HasFailure()) return;
      }
    }
    EXPECT_GT(failures, 0u);
  }
};

TEST_P(TreeMemoryTest, StoresAreAppliedOrRefused) {
  run_scenarios(&add_stores);
}

TEST_P(TreeMemoryTest, SetsOfWorkersGrowAndShrink) {
  run_scenarios(&add_many_workers);
}

TEST_P(TreeMemoryTest, RemovalsNeedNoMemory) {
  run_scenarios(&add_removals);
}

// Everything is taken away while no allocation succeeds at all.
TEST_P(TreeMemoryTest, AnIndexCanBeEmptiedWithoutMemory) {
  if (!GetParam().answers_at_once) GTEST_SKIP() << "queues need memory for removals";
  for (const bool name_by_name : {false, true}) {
    for (const Scenario& scenario : all_scenarios()) {
      SCOPED_TRACE(scenario.name);
      std::thread([&] {
        World world(GetParam());
        for (const IndexCall& call : scenario.before) world.apply(call);
        world.apply(scenario.call);
        RecordedCalls stores;
        world.index().dump(stores);
        std::vector<IndexCall> removals;
        for (auto call = stores.calls().rbegin(); call != stores.calls().rend(); ++call) {
          const auto* stored = std::get_if<StoreCall>(&*call);
          if (stored == nullptr) continue;
          if (name_by_name)
            for (auto block = stored->blocks.rbegin(); block != stored->blocks.rend(); ++block)
              removals.emplace_back(RemoveCall{stored->worker, stored->tier, {block->name}});
          else
            removals.emplace_back(ClearCall{stored->worker});
        }
        for (const IndexCall& call : removals) {
          FailingAllocation failing(1);
          world.apply_without_memory(call, failing, Shortage::kFromThenOn);
        }
        world.compare(queries_of(scenario));
        world.empty(false);
      }).join();
      if (HasFailure()) return;
    }
  }
}

TEST_P(TreeMemoryTest, AgreesWithTheOracleUnderRandomShortage) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::thread([&] {
      testing::IndexCallGenerator generator(seed, testing::CallGeneratorOptions::varied(seed));
      Random random(seed);
      World world(GetParam());
      for (int step = 1; step <= 300; ++step) {
        FailingAllocation failing(1 + random.below(random.below(3) == 0 ? 40 : 6));
        const auto shortage = random.below(2) == 0 ? Shortage::kOnce : Shortage::kFromThenOn;
        if (random.below(3) == 0)
          world.apply(generator.next());
        else
          world.apply_without_memory(generator.next(), failing, shortage);
        if (step % 8 != 0) continue;
        Queries queries;
        for (int i = 0; i < 4; ++i) queries.push_back(generator.next_query());
        world.compare(queries);
        if (::testing::Test::HasFailure()) return;
      }
      world.empty(seed % 2 == 0);
    }).join();
    if (HasFailure()) return;
  }
}

// More slots than a query has room for without memory.
TEST_P(TreeMemoryTest, AQueryChangesNothingButItsScores) {
  constexpr std::uint64_t kWorkers = 1'100;
  const Chain chain = chain_of(1, 20);
  World world(GetParam());
  for (std::uint64_t id = 0; id < kWorkers; ++id)
    world.apply(store(worker(id), chain, 0, 1 + id % 20, id % 7 == 0 ? kHost : kDevice));
  world.index().settle();
  std::uint64_t next = kWorkers;
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    MatchScores scores;
    const bool done = failing.during([&] {
      world.index().find_matches(chain.locals, scores);
      return true;
    });
    EXPECT_EQ(done, !failing.happened());
    // The first block of a sequence needs every lock that the query took.
    world.apply(store(worker(next), chain_of(next, 2)));
    ++next;
    world.index().settle();
    world.compare_answers(chain.locals);
    MatchScores fresh;
    world.index().find_matches(chain.locals, fresh);
    world.index().find_matches(chain.locals, scores);
    EXPECT_EQ(collected(scores), collected(fresh));
  });
  EXPECT_GT(failures, 0u);
}

TEST_P(TreeMemoryTest, ADumpChangesNothing) {
  const Chain chain = chain_of(1, 70);
  World world(GetParam());
  world.apply(store(worker(1), chain));
  world.apply(store(worker(2), chain, kHost));
  world.apply(store(worker(1), renamed(chain, 3)));
  world.apply(remove(worker(2), chain, 10, 20, kHost));
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    const bool done = failing.during([&] {
      RecordedCalls calls;
      world.index().dump(calls);
      return true;
    });
    EXPECT_EQ(done, !failing.happened());
    world.compare({chain.locals});
  });
  EXPECT_GT(failures, 0u);
  world.empty(false);
}

INSTANTIATE_TEST_SUITE_P(Indexes, TreeMemoryTest, ::testing::ValuesIn(tested_cases()),
                         [](const auto& tested) { return tested.param.name; });

// ---- predictions

template <class Inner>
class PredictionMemoryTest : public ::testing::Test {};
using Inners = ::testing::Types<RadixTree, PositionalIndexer>;
TYPED_TEST_SUITE(PredictionMemoryTest, Inners);

// What can be seen of an index with predictions.
template <class Inner>
std::string seen(const ApproximateIndex<Inner>& index, const Queries& queries) {
  std::string text = std::to_string(index.predicted()) + " predicted";
  const IndexSizes sizes = without_structure(index.sizes());
  text += ", " + ::testing::PrintToString(sizes);
  for (const auto& query : queries) {
    MatchScores scores;
    index.find_matches(query, scores);
    text += "; " + ::testing::PrintToString(collected(scores));
  }
  return text;
}

TYPED_TEST(PredictionMemoryTest, APredictionIsAppliedOrRefused) {
  const Chain chain = chain_of(1, 80);
  const Chain other = branch_of(chain, 30, 4, 120);
  const Queries queries = {chain.locals, other.locals};
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
    for (const bool known : {false, true}) {
      const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
        testing::ManualClock clock;
        auto index = ApproximateIndex<TypeParam>::create({.clock = &clock, .salt = 1}).value();
        const IndexSizes empty = index.sizes();
        if (known) {
          // Two runs are missing: behind what is real, and in front of it.
          index.store(store(worker(1), chain, 0, 40).event());
          index.remove(worker(1), kDevice, chain.names_from_the_end(5, 10));
          index.predict(worker(2), std::span(other.locals).first(50));
        }
        const std::string before = seen(index, queries);
        StoreVerdict verdict = StoreVerdict::kEmpty;
        EXPECT_TRUE(failing.during(shortage, [&] {
          verdict = index.predict(worker(1), other.locals);
          return true;
        }));
        if (verdict == StoreVerdict::kFull) {
          EXPECT_TRUE(failing.happened());
          EXPECT_EQ(seen(index, queries), before) << "allocation " << failing.number();
          EXPECT_EQ(index.prediction_counters().refused, 1u);
        } else {
          EXPECT_EQ(verdict, StoreVerdict::kApplied);
        }
        EXPECT_EQ(index.predict(worker(1), other.locals), StoreVerdict::kApplied);
        MatchScores scores;
        index.find_matches(other.locals, scores);
        EXPECT_EQ(scores.of(worker(1))->depth, other.size());
        clock.advance(std::chrono::hours(1));
        FailingAllocation all(1);
        EXPECT_TRUE(all.from_then_on([&] { return index.expire() != 0; }));
        EXPECT_EQ(index.predicted(), 0u);
        index.clear(worker(1));
        EXPECT_EQ(index.sizes(), empty);
      });
      EXPECT_GT(failures, 0u);
    }
  }
}

TYPED_TEST(PredictionMemoryTest, RealStoresReplacePredictionsOrAreRefused) {
  const Chain chain = chain_of(1, 80);
  const Queries queries = {chain.locals};
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
    const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
      testing::ManualClock clock;
      auto index = ApproximateIndex<TypeParam>::create({.clock = &clock, .salt = 1}).value();
      const IndexSizes empty = index.sizes();
      index.predict(worker(1), std::span(chain.locals).first(50));
      index.store(store(worker(1), chain, 0, 20).event());
      const std::string before = seen(index, queries);
      StoreVerdict verdict = StoreVerdict::kEmpty;
      const StoreCall call = store(worker(1), renamed(chain, 5));
      EXPECT_TRUE(failing.during(shortage, [&] {
        verdict = index.store(call.event());
        return true;
      }));
      if (verdict == StoreVerdict::kFull) {
        EXPECT_EQ(seen(index, queries), before) << "allocation " << failing.number();
        EXPECT_EQ(index.counters().full, 1u);
        EXPECT_EQ(index.store(call.event()), StoreVerdict::kApplied);
      }
      EXPECT_EQ(index.predicted(), 0u);
      MatchScores scores;
      index.find_matches(chain.locals, scores);
      EXPECT_EQ(scores.of(worker(1))->depth, chain.size());
      FailingAllocation all(1);
      EXPECT_TRUE(all.from_then_on([&] {
        index.remove_worker(WorkerId(1));
        return true;
      }));
      EXPECT_EQ(index.sizes(), empty);
    });
    EXPECT_GT(failures, 0u);
  }
}

// ---- uses

TEST(UseMemoryTest, BlocksWithoutMemoryAreNotCounted) {
  const Chain chain = chain_of(1, 300);
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    detail::UseCounts counts(4, 1'000);
    const std::size_t empty = counts.bytes();
    counts.advance(1, SIZE_MAX);
    std::size_t uncounted = 0;
    EXPECT_TRUE(failing.during([&] {
      uncounted = counts.use(chain.locals);
      return true;
    }));
    EXPECT_EQ(uncounted != 0, failing.happened());
    EXPECT_EQ(counts.contents(), chain.size() - uncounted);
    EXPECT_EQ(counts.use(chain.locals), 0u);
    std::vector<std::uint32_t> uses(chain.size());
    EXPECT_EQ(counts.read(chain.locals, uses), chain.size());
    EXPECT_EQ(uses.front(), uncounted == chain.size() ? 1u : 2u);
    EXPECT_EQ(uses.back(), uncounted == 0 ? 2u : 1u);
    counts.advance(10, SIZE_MAX);
    EXPECT_EQ(counts.bytes(), empty);
  });
  EXPECT_GT(failures, 0u);
}

// ---- making them

TEST(IndexMemoryTest, CreateRefuses) {
  const std::size_t queues = for_every_allocation([](FailingAllocation& failing) {
    EXPECT_TRUE(failing.during([&] {
      const auto index = ThreadPoolIndexer<ConcurrentRadixTree>::create({.threads = 2});
      EXPECT_EQ(!index.has_value(), ::g_failed);
      return index || index.error().code() == ErrorCode::kCapacity;
    }));
  });
  EXPECT_GT(queues, 0u);
  const std::size_t by_name = for_every_allocation([](FailingAllocation& failing) {
    const IndexOptions options{.kind = "concurrent_radix_tree", .threads = 2};
    EXPECT_TRUE(failing.during([&] {
      const auto index = make_index(options);
      EXPECT_EQ(!index.has_value(), ::g_failed);
      return index || index.error().code() == ErrorCode::kCapacity;
    }));
  });
  EXPECT_GT(by_name, 0u);
  const std::size_t predictions = for_every_allocation([](FailingAllocation& failing) {
    EXPECT_TRUE(failing.during([&] {
      const auto index = ApproximateIndex<RadixTree>::create({});
      EXPECT_EQ(!index.has_value(), ::g_failed);
      return index || index.error().code() == ErrorCode::kCapacity;
    }));
  });
  EXPECT_GT(predictions, 0u);
}

}  // namespace
}  // namespace ashlar::index::conformance
