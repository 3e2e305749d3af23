// A FlashIndex whose allocations fail: a store refuses, a removal removes, everything else lets
// std::bad_alloc pass; and what the index holds is what an oracle holds that had only the calls that were
// applied.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../chain.h"
#include "../index_printers.h"
#include "../test_worker.h"
#include "ashlar/base/random.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/testing/index_call_generator.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/interleaving.h"
#include "base/tag_table.h"
#include "support/failing_new.h"

namespace ashlar::index {
namespace {

using ashlar::support::FailingAllocation;
using ashlar::support::for_every_allocation;
using ashlar::support::Shortage;
using conformance::branch_of;
using conformance::Chain;
using conformance::chain_of;
using conformance::renamed;
using testing::CallAnswer;
using testing::ClearCall;
using testing::IndexCall;
using testing::IndexCallGenerator;
using testing::IndexOracle;
using testing::RecordedCalls;
using testing::RemoveCall;
using testing::RemoveWorkerCall;
using testing::StoreCall;

constexpr StorageTier kDevice = StorageTier::kDevice;
constexpr StorageTier kHost = StorageTier::kHost;

// An index beside an oracle that is told what the index has applied.
class World {
 public:
  explicit World(MidChainRemoval mid_chain = MidChainRemoval::kRetain)
      : mid_chain_(mid_chain), index_({.mid_chain = mid_chain, .seed = 1}), oracle_(mid_chain) {
    empty_ = index_.sizes();
  }

  FlashIndex& index() { return index_; }
  const IndexOracle& oracle() const { return oracle_; }

  // Nothing when both answer alike; else the difference.
  std::string apply(const IndexCall& call) {
    note(call);
    const CallAnswer answer = testing::apply(call, index_);
    const CallAnswer expected = testing::apply(call, oracle_);
    if (answer == expected) return {};
    return "the index answers " + to_string(answer) + ", the oracle " + to_string(expected);
  }

  // The same with an allocation failing. `applied` says whether the index took the call.
  std::string apply(const IndexCall& call, FailingAllocation& failing, Shortage shortage, bool& applied) {
    note(call);
    CallAnswer answer;
    const auto run = [&] {
      answer = testing::apply(call, index_);
      return true;
    };
    const bool returned = failing.during(shortage, run);
    applied = returned && answer.verdict != StoreVerdict::kFull;
    if (!applied && !failing.happened()) return "refused with all the memory";
    if (!returned && std::holds_alternative<StoreCall>(call)) return "a store throws";
    if (!returned && std::holds_alternative<RemoveCall>(call)) return "a removal throws";
    if (!applied) {
      refused_ += returned ? 1 : 0;
      return {};
    }
    const CallAnswer expected = testing::apply(call, oracle_);
    if (answer == expected) return {};
    return "the index answers " + to_string(answer) + ", the oracle " + to_string(expected);
  }

  std::string compare_answers(std::span<const LocalHash> query) {
    index_.find_matches(query, found_);
    oracle_.find_matches(query, expected_);
    std::map<Worker, Score> found;
    std::map<Worker, Score> expected;
    found_.for_each([&](const Worker& worker, const Score& score) { found.emplace(worker, score); });
    expected_.for_each([&](const Worker& worker, const Score& score) { expected.emplace(worker, score); });
    if (found == expected) return {};
    return "scores: the index says " + ::testing::PrintToString(found) + ", the oracle " +
           ::testing::PrintToString(expected);
  }

  // Answers, counters, sizes and the dump.
  std::string compare() {
    for (const std::vector<LocalHash>& query : queries_)
      if (std::string problem = compare_answers(query); !problem.empty()) return problem;
    IndexCounters expected = oracle_.counters();
    expected.full = refused_;
    if (index_.counters() != expected)
      return "counters: the index says " + ::testing::PrintToString(index_.counters()) + ", the oracle " +
             ::testing::PrintToString(expected);
    IndexSizes sizes = index_.sizes();
    sizes.nodes = sizes.bytes = sizes.waiting_bytes = 0;
    if (sizes != oracle_.sizes())
      return "sizes: the index says " + ::testing::PrintToString(sizes) + ", the oracle " +
             ::testing::PrintToString(oracle_.sizes());
    IndexOracle dumped(mid_chain_);
    index_.dump(dumped);
    if (std::string problem = difference(dumped, oracle_); !problem.empty())
      return "the dump is on the left, the oracle on the right: " + problem;
    return {};
  }

  // Clears all workers; nothing may be left.
  std::string compare_empty() {
    RecordedCalls held;
    oracle_.dump(held);
    for (const IndexCall& call : held.calls())
      if (const auto* store = std::get_if<StoreCall>(&call))
        if (std::string problem = apply(ClearCall{store->worker}); !problem.empty()) return problem;
    if (std::string problem = compare(); !problem.empty()) return problem;
    if (index_.sizes() == empty_) return {};
    return "with nothing held the sizes are " + ::testing::PrintToString(index_.sizes()) + ", at first " +
           ::testing::PrintToString(empty_);
  }

 private:
  void note(const IndexCall& call) {
    const auto* store = std::get_if<StoreCall>(&call);
    if (store == nullptr || store->parent || queries_.size() >= 200) return;
    std::vector<LocalHash>& query = queries_.emplace_back();
    for (const StoredBlock& block : store->blocks) query.push_back(block.local);
  }

  const MidChainRemoval mid_chain_;
  FlashIndex index_;
  IndexOracle oracle_;
  IndexSizes empty_;
  std::uint64_t refused_ = 0;
  std::vector<std::vector<LocalHash>> queries_;
  MatchScores found_;  // kept from query to query, as callers do
  MatchScores expected_;
};

// --- Every allocation of one call. ---

struct Scenario {
  std::vector<IndexCall> before;
  IndexCall call;
  MidChainRemoval mid_chain = MidChainRemoval::kRetain;
};

StoreCall store_of(const Worker& who, const Chain& chain, std::size_t from, std::size_t count,
                   StorageTier tier = kDevice) {
  StoreCall call{who, tier, {}, {}, chain.blocks(from, count)};
  if (from != 0) call.parent = chain.names[from - 1];
  return call;
}
StoreCall store_of(const Worker& who, const Chain& chain, StorageTier tier = kDevice) {
  return store_of(who, chain, 0, chain.size(), tier);
}
RemoveCall remove_of(const Worker& who, const Chain& chain, std::size_t from, std::size_t count) {
  return {who, kDevice, chain.names_from_the_end(from, count)};
}

// Holds a query of its own inside the index until it goes: what is retired meanwhile is kept back.
class StalledReader {
 public:
  explicit StalledReader(World& world) {
    EXPECT_EQ(world.apply(store_of(worker(1'001), left_)), "");
    EXPECT_EQ(world.apply(store_of(worker(1'002), right_)), "");
    order_.pause_at(kPoint);
    reader_ = std::jthread([this, &world] { world.index().find_matches(left_.locals, scores_); });
    order_.wait_until_paused(kPoint);
  }
  StalledReader(const StalledReader&) = delete;
  StalledReader& operator=(const StalledReader&) = delete;
  ~StalledReader() { order_.resume(kPoint); }

 private:
  static constexpr const char* kPoint = "find.at_branch";
  const Chain left_ = branch_of(chain_of(1'001, 64), 64, 1'002, 70);
  const Chain right_ = branch_of(chain_of(1'001, 64), 64, 1'003, 70);
  MatchScores scores_;
  testing::Interleaving order_;
  std::jthread reader_;
};

// Returns how many allocations there were to fail.
std::size_t run(const Scenario& scenario, Shortage shortage, bool stalled) {
  return for_every_allocation([&](FailingAllocation& failing) {
    SCOPED_TRACE("allocation " + std::to_string(failing.number()) +
                 (shortage == Shortage::kOnce ? " fails" : " and all after it fail") +
                 (stalled ? ", with a reader inside" : ""));
    World world(scenario.mid_chain);
    std::optional<StalledReader> reader;
    if (stalled) reader.emplace(world);
    for (const IndexCall& call : scenario.before) ASSERT_EQ(world.apply(call), "") << to_string(call);
    bool applied = false;
    ASSERT_EQ(world.apply(scenario.call, failing, shortage, applied), "");
    // First without a look at the sizes, which would finish what was left for later.
    if (failing.number() % 2 == 0) {
      ASSERT_EQ(world.compare(), "");
    }
    if (!applied) {
      ASSERT_EQ(world.apply(scenario.call), "");
    }
    IndexCallGenerator generator(failing.number());
    for (int i = 0; i < 30; ++i) ASSERT_EQ(world.apply(generator.next()), "") << "call " << i;
    ASSERT_EQ(world.compare(), "");
    reader.reset();
    ASSERT_EQ(world.compare_empty(), "");
  });
}

std::size_t run(const Scenario& scenario) {
  std::size_t failures = 0;
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn})
    for (const bool stalled : {false, true}) {
      failures += run(scenario, shortage, stalled);
      if (::testing::Test::HasFailure()) return failures;
    }
  return failures;
}

std::vector<IndexCall> stores(std::size_t workers, const Chain& chain) {
  std::vector<IndexCall> calls;
  for (std::size_t w = 1; w <= workers; ++w) calls.emplace_back(store_of(worker(w), chain));
  return calls;
}

const Chain kLong = chain_of(1, 200);
const Chain kShort = chain_of(2, 7);

TEST(FlashMemoryTest, TheFirstStoreOfAll) {
  EXPECT_GT(run({{}, store_of(worker(1), kLong)}), 0u);
}

TEST(FlashMemoryTest, TheFirstStoreOfAWorker) {
  EXPECT_GT(run({{store_of(worker(1), kLong)}, store_of(worker(2), kShort)}), 0u);
}

TEST(FlashMemoryTest, TheWorkerBehindAPageOfWorkers) {
  EXPECT_GT(run({stores(64, kShort), store_of(worker(65), kShort)}), 0u);
}

TEST(FlashMemoryTest, AStoreThatGrowsALeaf) {
  EXPECT_GT(run({{store_of(worker(1), kLong, 0, 5)}, store_of(worker(1), kLong, 5, 20)}), 0u);
}

TEST(FlashMemoryTest, AStoreThatGrowsASharedLeafAndGoesOn) {
  std::vector<IndexCall> before = stores(3, kShort);
  Chain longer = kShort;
  conformance::grow(longer, 5, 300);
  EXPECT_GT(run({before, store_of(worker(2), longer, 7, 293)}), 0u);
}

TEST(FlashMemoryTest, AStoreThatCutsATailWhichNobodyHolds) {
  const Chain other = branch_of(kLong, 10, 3, 40);
  EXPECT_GT(run({{store_of(worker(1), kLong, 0, 30), remove_of(worker(1), kLong, 12, 18)},
                 store_of(worker(1), other)}),
            0u);
}

TEST(FlashMemoryTest, AStoreThatSplitsANode) {
  EXPECT_GT(run({{store_of(worker(1), kLong)}, store_of(worker(2), branch_of(kLong, 30, 3, 40))}), 0u);
}

TEST(FlashMemoryTest, AStoreThatSplitsANodeOfManyHolders) {
  EXPECT_GT(run({stores(20, chain_of(1, 60)), store_of(worker(21), branch_of(kLong, 30, 3, 40), kHost)}), 0u);
}

TEST(FlashMemoryTest, AStoreThatSplitsBelowItsParent) {
  const Chain other = branch_of(kLong, 30, 3, 40);
  EXPECT_GT(run({{store_of(worker(1), kLong)}, store_of(worker(1), other, 30, 10)}), 0u);
}

TEST(FlashMemoryTest, FurtherHolders) {
  for (const std::size_t holders : {1u, 2u, 16u, 64u})
    EXPECT_GT(run({stores(holders, kShort), store_of(worker(holders + 1), kShort)}), 0u);
}

TEST(FlashMemoryTest, AHolderOfManyNodes) {
  EXPECT_GT(run({stores(2, chain_of(1, 400)), store_of(worker(3), chain_of(1, 400))}), 0u);
}

TEST(FlashMemoryTest, LowerTiers) {
  EXPECT_GT(run({stores(1, kShort), store_of(worker(1), kShort, kHost)}), 0u);
  EXPECT_GT(run({stores(16, kShort), store_of(worker(3), kShort, kHost)}), 0u);
  EXPECT_GT(run({{}, store_of(worker(1), kLong, kHost)}), 0u);
}

TEST(FlashMemoryTest, TheFirstAlias) {
  EXPECT_GT(run({stores(1, kShort), store_of(worker(2), renamed(kShort, 7))}), 0u);
}

TEST(FlashMemoryTest, AliasesOfNamesThatMeanOtherContent) {
  Chain other = chain_of(3, 40);
  for (std::size_t i = 0; i < 40; ++i) other.names[i] = kLong.names[i * 3];
  EXPECT_GT(run({stores(1, kLong), store_of(worker(2), other)}), 0u);
}

TEST(FlashMemoryTest, AnAliasOfABlockThatLostItsName) {
  const Chain other = renamed(kLong, 7);
  EXPECT_GT(
      run({{store_of(worker(1), kLong), store_of(worker(2), other), remove_of(worker(1), kLong, 100, 100)},
           store_of(worker(3), kLong)}),
      0u);
}

TEST(FlashMemoryTest, ASplitOfANodeWithAliases) {
  std::vector<IndexCall> before = stores(1, chain_of(1, 60));
  for (std::uint64_t w = 2; w < 6; ++w) before.emplace_back(store_of(worker(w), renamed(chain_of(1, 60), w)));
  EXPECT_GT(run({before, store_of(worker(6), renamed(branch_of(kLong, 30, 3, 40), 9))}), 0u);
}

// The aliases of a node that is split move between pages of the table until one of them is full, and the page
// that it needs is the first of a slab: some aliases of three workers have moved by then.
TEST(FlashMemoryTest, ASplitThatMovesSomeAliases) {
  std::vector<IndexCall> before = stores(1, chain_of(1, 60));
  for (std::uint64_t w = 2; w < 6; ++w) before.emplace_back(store_of(worker(w), renamed(chain_of(1, 60), w)));
  const StoreCall call = store_of(worker(6), branch_of(kLong, 30, 3, 40));
  for (const std::size_t others : {5'525u, 5'540u}) {
    const Chain chain = chain_of(4, others);
    std::vector<IndexCall> more = before;
    more.emplace_back(store_of(worker(7), chain));
    more.emplace_back(store_of(worker(8), renamed(chain, 9)));
    EXPECT_GT(run({more, call}, Shortage::kOnce, false), 0u);
  }
}

// What a store replaces is retired into a chunk that is full, whatever was retired before.
TEST(FlashMemoryTest, AHolderAfterAnyNumberOfRetirements) {
  const Chain chain = chain_of(1, 1);
  std::vector<IndexCall> before = stores(2, chain);
  for (std::uint64_t i = 0; i < 66; ++i) {
    EXPECT_GT(run({before, store_of(worker(3), chain)}, Shortage::kOnce, false), 0u);
    for (const IndexCall& call : stores(3, chain_of(100 + i, 1))) before.push_back(call);
  }
}

TEST(FlashMemoryTest, ANameInUse) {
  Chain other = branch_of(kLong, 30, 3, 200);
  other.names[190] = kLong.names[100];
  Scenario scenario{{store_of(worker(1), kLong)}, store_of(worker(1), other)};
  EXPECT_GT(run(scenario), 0u);
}

TEST(FlashMemoryTest, ChildrenInManyBuckets) {
  std::size_t failures = 0;
  for (const std::uint64_t children : {1u, 4u, 5u, 40u, 319u, 321u}) {
    std::vector<IndexCall> before;
    for (std::uint64_t i = 0; i < children; ++i)
      before.emplace_back(store_of(worker(1), branch_of(kLong, 10, 10 + i, 12)));
    failures += run({before, store_of(worker(1), branch_of(kLong, 10, 9, 12))});
  }
  EXPECT_GT(failures, 0u);
}

TEST(FlashMemoryTest, PagesOfNamesThatGrowAndSplit) {
  // One name after the other, so that some store meets each size.
  std::vector<IndexCall> before = stores(1, chain_of(1, 400));
  for (std::size_t more = 0; more < 12; ++more) run({before, store_of(worker(2), chain_of(3, 1 + more))});
}

TEST(FlashMemoryTest, Removals) {
  // Of a leaf, of a chain, of the last block; and one that makes a leaf smaller.
  run({stores(1, kShort), remove_of(worker(1), kShort, 0, 7)});
  run({stores(1, kLong), remove_of(worker(1), kLong, 0, 200)});
  run({stores(1, chain_of(1, 60)), remove_of(worker(1), kLong, 5, 55)});
  std::vector<IndexCall> before = stores(20, chain_of(1, 60));
  for (std::uint64_t w = 1; w <= 19; ++w) before.emplace_back(remove_of(worker(w), kLong, 5, 55));
  run({before, remove_of(worker(20), kLong, 5, 55)});
}

TEST(FlashMemoryTest, ARemovalOfALongBarrenChain) {
  const Chain chain = chain_of(1, 64 * 400);
  std::vector<BlockName> all(chain.names.begin(), chain.names.end());
  std::vector<BlockName> last = {all.back()};
  all.pop_back();
  for (const bool stalled : {false, true})
    run({{store_of(worker(1), chain), RemoveCall{worker(1), kDevice, all}},
         RemoveCall{worker(1), kDevice, last}},
        Shortage::kFromThenOn, stalled);
}

TEST(FlashMemoryTest, OrphansGo) {
  std::vector<IndexCall> before = stores(2, chain_of(1, 100));
  for (std::uint64_t i = 0; i < 5; ++i) {
    before.emplace_back(store_of(worker(1), branch_of(kLong, 100 - 20 * i, 10 + i, 150)));
    before.emplace_back(store_of(worker(2), renamed(branch_of(kLong, 80, 20 + i, 150), 3)));
  }
  run({before, remove_of(worker(1), kLong, 15, 1), MidChainRemoval::kOrphan});
}

TEST(FlashMemoryTest, Clears) {
  EXPECT_GT(run({stores(3, kLong), ClearCall{worker(2)}}), 0u);
  EXPECT_GT(run({stores(1, kLong), ClearCall{worker(1)}}), 0u);
  std::vector<IndexCall> ranks = stores(2, kLong);
  for (std::uint32_t rank = 0; rank < 70; ++rank) ranks.emplace_back(store_of(worker(7, rank), kShort));
  EXPECT_GT(run({ranks, RemoveWorkerCall{WorkerId(7)}}), 0u);
}

TEST(FlashMemoryTest, CallsThatSweepAfterAClear) {
  std::vector<IndexCall> before = stores(3, kLong);
  for (std::uint64_t i = 0; i < 30; ++i) before.emplace_back(store_of(worker(1), chain_of(100 + i, 80)));
  before.emplace_back(store_of(worker(1), renamed(kLong, 9)));
  before.emplace_back(ClearCall{worker(1)});
  EXPECT_GT(run({before, store_of(worker(4), kShort)}), 0u);
  run({before, remove_of(worker(2), kLong, 0, 100)});
  EXPECT_GT(run({before, ClearCall{worker(2)}}), 0u);
}

TEST(FlashMemoryTest, ASlotThatHasToBeReleased) {
  const auto fill = [](FlashIndex& index) {
    for (std::uint64_t w = 1; w <= 3; ++w) {
      const StoreCall call = store_of(worker(w), kShort);
      ASSERT_EQ(index.store(call.event()), StoreVerdict::kApplied);
    }
    index.remove(worker(2), kDevice, kShort.names);
    index.clear(worker(3));
    const StoreCall call = store_of(worker(3), kShort);
    ASSERT_EQ(index.store(call.event()), StoreVerdict::kApplied);
  };
  const StoreCall call = store_of(worker(4), kShort);
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    FlashIndex index({.max_workers = 3, .seed = 1});
    fill(index);
    StoreVerdict verdict = StoreVerdict::kEmpty;
    ASSERT_TRUE(failing.during([&] {
      verdict = index.store(call.event());
      return true;
    }));
    if (verdict != StoreVerdict::kApplied) {
      ASSERT_TRUE(failing.happened());
      ASSERT_EQ(verdict, StoreVerdict::kFull);
      ASSERT_EQ(index.store(call.event()), StoreVerdict::kApplied) << failing.number();
    }
    MatchScores scores;
    index.find_matches(kShort.locals, scores);
    ASSERT_EQ(scores.matched(), 3u) << failing.number();
  });
  EXPECT_GT(failures, 3u);
}

TEST(FlashMemoryTest, AnIndexIsMadeOrNot) {
  for (const std::size_t expected : {0u, 100'000u}) {
    const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
      const bool made = failing.during([&] {
        const FlashIndex index({.expected_blocks = expected});
        return true;
      });
      EXPECT_EQ(made, !failing.happened());
    });
    EXPECT_GT(failures, 3u);
  }
}

// --- Calls that change nothing. ---

TEST(FlashMemoryTest, QueriesChangeNothing) {
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    World world;
    for (const IndexCall& call : stores(20, chain_of(1, 100))) ASSERT_EQ(world.apply(call), "");
    for (const IndexCall& call : stores(10, kLong)) ASSERT_EQ(world.apply(call), "");
    ASSERT_EQ(world.apply(store_of(worker(30), kLong, kHost)), "");
    MatchScores scores;
    const bool done = failing.during([&] {
      world.index().find_matches(kLong.locals, scores);
      return true;
    });
    EXPECT_EQ(done, !failing.happened());
    // The same scores serve the next query.
    world.index().find_matches(kLong.locals, scores);
    EXPECT_EQ(scores.matched(), 21u);
    EXPECT_EQ(scores.longest(), 200u);
    ASSERT_EQ(world.compare(), "");
  });
  EXPECT_GT(failures, 5u);
}

TEST(FlashMemoryTest, DumpsAndSizesChangeNothing) {
  using Look = std::function<void(const FlashIndex&, RecordedCalls&)>;
  const std::vector<Look> looks = {
      [](const FlashIndex& index, RecordedCalls& calls) { index.dump(calls); },
      [](const FlashIndex& index, RecordedCalls&) { (void)index.sizes(); },
  };
  for (const Look& look : looks)
    for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn})
      for (const bool stalled : {false, true}) {
        const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
          World world;
          std::optional<StalledReader> reader;
          if (stalled) reader.emplace(world);
          for (const IndexCall& call : stores(70, kLong)) ASSERT_EQ(world.apply(call), "");
          for (std::uint64_t w = 1; w < 68; ++w)
            ASSERT_EQ(world.apply(remove_of(worker(w), kLong, 0, 200)), "");
          ASSERT_EQ(world.apply(store_of(worker(1), renamed(kShort, 3))), "");
          ASSERT_EQ(world.apply(ClearCall{worker(69)}), "");
          ASSERT_EQ(world.apply(ClearCall{worker(70)}), "");
          RecordedCalls calls;
          const auto run = [&] {
            look(world.index(), calls);
            return true;
          };
          // The sink allocates too.
          const bool done = failing.during(shortage, run);
          EXPECT_TRUE(done || failing.happened());
          ASSERT_EQ(world.compare(), "") << failing.number();
          reader.reset();
          ASSERT_EQ(world.compare_empty(), "") << failing.number();
        });
        EXPECT_GT(failures, 0u);
        if (::testing::Test::HasFailure()) return;
      }
}

// --- Streams of calls. ---

testing::CallGeneratorOptions options_of(std::uint64_t seed) {
  testing::CallGeneratorOptions options = testing::CallGeneratorOptions::varied(seed);
  options.long_chains = 0.2;
  return options;
}

MidChainRemoval policy_of(std::uint64_t seed) {
  return seed % 3 == 0 ? MidChainRemoval::kOrphan : MidChainRemoval::kRetain;
}

// Each call with its first allocation failing, with its second, and so on until it is applied.
TEST(FlashMemoryTest, EveryAllocationOfRandomCalls) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    World world(policy_of(seed));
    IndexCallGenerator generator(seed, options_of(seed));
    std::optional<StalledReader> reader;
    std::size_t failures = 0;
    for (int step = 0; step < 300; ++step) {
      if (step % 100 == 50) reader.emplace(world);
      if (step % 100 == 99) reader.reset();
      const IndexCall call = generator.next();
      bool applied = false;
      for (std::size_t number = 1; !applied; ++number) {
        FailingAllocation failing(number);
        const Shortage shortage = (seed + number) % 2 == 0 ? Shortage::kOnce : Shortage::kFromThenOn;
        ASSERT_EQ(world.apply(call, failing, shortage, applied), "") << "step " << step << ", " << number;
        ASSERT_EQ(world.compare_answers(generator.next_query()), "") << "step " << step << ", " << number;
        failures += failing.happened() ? 1 : 0;
      }
      if (step % 10 == 0) {
        ASSERT_EQ(world.compare(), "") << "step " << step;
      }
    }
    EXPECT_GT(failures, 100u);
    ASSERT_EQ(world.compare_empty(), "");
  }
}

// Memory that comes and goes: for some calls most allocations fail, then none does.
TEST(FlashMemoryTest, RandomAllocationsOfRandomCalls) {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    World world(policy_of(seed));
    IndexCallGenerator generator(seed, options_of(seed));
    Random random(seed);
    std::optional<StalledReader> reader;
    for (int step = 0; step < 600; ++step) {
      if (step % 200 == 50) reader.emplace(world);
      if (step % 200 == 150) reader.reset();
      const IndexCall call = generator.next();
      const bool scarce = step / 20 % 2 == 1;
      bool applied = false;
      FailingAllocation failing(1 + random.below(scarce ? 3 : 40));
      const Shortage shortage = scarce ? Shortage::kFromThenOn : Shortage::kOnce;
      ASSERT_EQ(world.apply(call, failing, shortage, applied), "") << "step " << step;
      ASSERT_EQ(world.compare_answers(generator.next_query()), "") << "step " << step;
      if (step % 50 == 49) {
        ASSERT_EQ(world.compare(), "") << "step " << step;
      }
    }
    ASSERT_EQ(world.compare_empty(), "");
  }
}

// With no memory at all nothing is stored, and everything can be removed.
TEST(FlashMemoryTest, RemovalsWithoutAnyMemory) {
  for (const bool stalled : {false, true}) {
    World world;
    std::optional<StalledReader> reader;
    if (stalled) reader.emplace(world);
    std::vector<Chain> chains;
    for (std::uint64_t c = 0; c < 400; ++c) chains.push_back(branch_of(kLong, c % 200, 10 + c, 210));
    for (std::uint64_t c = 0; c < 400; ++c) ASSERT_EQ(world.apply(store_of(worker(c % 9), chains[c])), "");
    for (std::uint64_t c = 0; c < 400; ++c) {
      FailingAllocation failing(1);
      bool applied = false;
      ASSERT_EQ(
          world.apply(remove_of(worker(c % 9), chains[c], 0, 210), failing, Shortage::kFromThenOn, applied),
          "");
      ASSERT_TRUE(applied);
      ASSERT_EQ(world.compare_answers(chains[c].locals), "");
    }
    ASSERT_EQ(world.compare(), "");
    reader.reset();
    ASSERT_EQ(world.compare_empty(), "");
  }
}

// --- Parts. ---

// Far enough for several pieces of the directory.
TEST(TagTableMemoryTest, EveryStepOfGrowthIsMadeOrNot) {
  constexpr std::uint32_t kEntries = 600'000;
  SlabPool pool;
  {
    TagTable table(pool, TableSeed::of(1));
    std::size_t failures = 0;
    const auto insert = [&](std::uint32_t value) {
      return table.insert(table.tag_of(value), value, [&](std::uint32_t other) { return other == value; });
    };
    for (std::uint32_t value = 1; value <= kEntries; ++value) {
      for (std::size_t number = 1;; ++number) {
        FailingAllocation failing(number);
        if (failing.during([&] { return insert(value) == TagTable::kNone; })) break;
        ASSERT_TRUE(failing.happened()) << value;
        ASSERT_EQ(table.find(table.tag_of(value), [&](std::uint32_t other) { return other == value; }),
                  TagTable::kNone);
        ++failures;
      }
    }
    EXPECT_GT(failures, 20u);
    EXPECT_EQ(table.size(), kEntries);
    for (std::uint32_t value = 1; value <= kEntries; ++value) {
      ASSERT_EQ(table.find(table.tag_of(value), [&](std::uint32_t other) { return other == value; }), value);
      FailingAllocation failing(1);
      ASSERT_TRUE(failing.from_then_on([&] {
        table.erase(table.tag_of(value), value);
        return true;
      }));
    }
    EXPECT_EQ(table.size(), 0u);
    table.reset();
    EXPECT_EQ(table.bytes(), 0u);
  }
  EXPECT_EQ(pool.bytes(), 0u);
}

}  // namespace
}  // namespace ashlar::index
