#include "ashlar/index/approximate_index.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/index/make_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/manual_clock.h"
#include "ashlar/testing/time_box.h"
#include "index/chain.h"
#include "index/index_printers.h"
#include "index/test_worker.h"

namespace ashlar::index {
namespace {

using conformance::branch_of;
using conformance::Chain;
using conformance::chain_of;
using conformance::renamed;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::IndexOracle;
using testing::ManualClock;
using Approximate = ApproximateIndex<IndexOracle>;

static_assert(Indexer<Approximate>);

class ApproximateIndexTest : public ::testing::Test {
 protected:
  Approximate make(Clock::Duration ttl = seconds(120)) {
    return Approximate::create({.ttl = ttl, .clock = &clock_, .salt = 1}).value();
  }

  static StoreVerdict store(Approximate& index, const Worker& who, const Chain& chain, std::size_t from,
                            std::size_t count, StorageTier tier = StorageTier::kDevice) {
    const std::vector<StoredBlock> blocks = chain.blocks(from, count);
    const auto parent = from == 0 ? std::nullopt : std::optional(chain.names[from - 1]);
    return index.store({who, tier, parent, std::nullopt, blocks});
  }
  static std::size_t remove(Approximate& index, const Worker& who, const Chain& chain, std::size_t from,
                            std::size_t count, StorageTier tier = StorageTier::kDevice) {
    return index.remove(who, tier, chain.names_from_the_end(from, count));
  }
  static Score score(const Approximate& index, const Worker& who, const Chain& chain) {
    MatchScores scores;
    index.find_matches(chain.locals, scores);
    return scores.of(who).value_or(Score{});
  }
  static std::uint32_t depth(const Approximate& index, const Worker& who, const Chain& chain) {
    return score(index, who, chain).depth;
  }
  // What a dump rebuilds.
  static IndexOracle rebuilt(const Approximate& index) {
    testing::RecordedCalls calls;
    index.dump(calls);
    IndexOracle copy;
    for (const testing::CallAnswer& answer : calls.replay(copy)) {
      if (answer.verdict) {
        EXPECT_EQ(*answer.verdict, StoreVerdict::kApplied);
      }
    }
    return copy;
  }

  ManualClock clock_;
};

TEST_F(ApproximateIndexTest, PredictionsOfAnotherIndexEndWhenTheyWouldHave) {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    Approximate first = make(seconds(10));
    std::vector<Chain> chains;
    for (int i = 0; i < 30; ++i) {
      const std::size_t from = random.below(chains.size() + 1);
      chains.push_back(from == 0 ? chain_of(100 + static_cast<std::uint64_t>(round * 100 + i), 6)
                                 : branch_of(chains[from - 1], 1 + random.below(4),
                                             100 + static_cast<std::uint64_t>(round * 100 + i), 8));
      first.predict(worker(1 + random.below(3)), chains.back().locals);
      clock_.advance(milliseconds(random.below(900)));
    }
    Approximate second = make(seconds(10));
    second.restore(first.predictions());
    for (int step = 0; step < 12; ++step) {
      first.expire();
      second.expire();
      ASSERT_EQ(second.predicted(), first.predicted());
      for (const Chain& chain : chains)
        for (std::uint64_t id = 1; id <= 3; ++id)
          ASSERT_EQ(depth(second, worker(id), chain), depth(first, worker(id), chain)) << "step " << step;
      clock_.advance(seconds(1));
    }
    EXPECT_EQ(first.predicted(), 0u);
  }
}

TEST_F(ApproximateIndexTest, APredictionMatchesInTheDeviceTier) {
  Approximate index = make();
  const Chain chain = chain_of(1, 5);
  EXPECT_EQ(index.predict(worker(1), chain.first(3)), StoreVerdict::kApplied);
  EXPECT_EQ(score(index, worker(1), chain), (Score{3, 3, {3, 0, 0, 0}}));
  EXPECT_EQ(depth(index, worker(2), chain), 0u);
  EXPECT_EQ(depth(index, worker(1, 1), chain), 0u);
  EXPECT_EQ(index.predicted(), 3u);
  EXPECT_EQ(index.sizes().blocks, 3u);
}

TEST_F(ApproximateIndexTest, APredictionEndsWithItsTime) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 5);
  index.predict(worker(1), chain.locals);
  clock_.advance(seconds(10) - milliseconds(1));
  EXPECT_EQ(index.expire(), 0u);
  EXPECT_EQ(depth(index, worker(1), chain), 5u);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(index.expire(), 5u);
  EXPECT_EQ(depth(index, worker(1), chain), 0u);
  EXPECT_EQ(index.predicted(), 0u);
  EXPECT_EQ(index.prediction_counters(), (PredictionCounters{.predicted = 5, .expired = 5}));
  EXPECT_EQ(index.sizes(), make().sizes());
}

TEST_F(ApproximateIndexTest, TheTimeToLiveIsRoundedUpToABucket) {
  Approximate index = make(milliseconds(250));
  const Chain chain = chain_of(1, 2);
  clock_.advance(milliseconds(30));  // ends at 280 ms, so in the bucket to 300 ms
  index.predict(worker(1), chain.locals);
  clock_.advance(milliseconds(269));
  EXPECT_EQ(index.expire(), 0u);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(index.expire(), 2u);
}

TEST_F(ApproximateIndexTest, PredictingAgainStartsTheTimeAnew) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 5);
  index.predict(worker(1), chain.locals);
  clock_.advance(seconds(6));
  index.predict(worker(1), chain.first(2));
  EXPECT_EQ(index.prediction_counters().renewed, 2u);
  clock_.advance(seconds(6));
  EXPECT_EQ(index.expire(), 3u);
  EXPECT_EQ(depth(index, worker(1), chain), 2u);
  clock_.advance(seconds(4));
  EXPECT_EQ(index.expire(), 2u);
  EXPECT_EQ(depth(index, worker(1), chain), 0u);
}

TEST_F(ApproximateIndexTest, RealBlocksDoNotExpire) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 5);
  EXPECT_EQ(store(index, worker(1), chain, 0, 3), StoreVerdict::kApplied);
  index.predict(worker(1), chain.locals);
  EXPECT_EQ(index.predicted(), 2u);
  EXPECT_EQ(depth(index, worker(1), chain), 5u);
  clock_.advance(seconds(100));
  EXPECT_EQ(index.expire(), 2u);
  EXPECT_EQ(depth(index, worker(1), chain), 3u);
}

TEST_F(ApproximateIndexTest, ARealStoreReplacesThePrediction) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 5);
  index.predict(worker(1), chain.locals);
  store(index, worker(1), chain, 0, 4);
  EXPECT_EQ(index.predicted(), 1u);
  EXPECT_EQ(index.prediction_counters().replaced, 4u);
  EXPECT_EQ(depth(index, worker(1), chain), 5u);
  clock_.advance(seconds(100));
  index.expire();
  EXPECT_EQ(depth(index, worker(1), chain), 4u);
}

TEST_F(ApproximateIndexTest, ARealRemovalAfterARealStoreIsFeltAtOnce) {
  Approximate index = make();
  const Chain chain = chain_of(1, 5);
  index.predict(worker(1), chain.locals);
  store(index, worker(1), chain, 0, 5);
  EXPECT_EQ(remove(index, worker(1), chain, 2, 3), 3u);
  EXPECT_EQ(depth(index, worker(1), chain), 2u);
}

TEST_F(ApproximateIndexTest, AStoreInALowerTierReplacesThePredictionToo) {
  Approximate index = make();
  const Chain chain = chain_of(1, 2);
  index.predict(worker(1), chain.locals);
  store(index, worker(1), chain, 0, 2, StorageTier::kHost);
  EXPECT_EQ(score(index, worker(1), chain), (Score{0, 2, {0, 2, 0, 0}}));
  index.predict(worker(1), chain.locals);  // what is known for real is not predicted
  EXPECT_EQ(index.predicted(), 0u);
  remove(index, worker(1), chain, 0, 2, StorageTier::kHost);
  EXPECT_EQ(depth(index, worker(1), chain), 0u);
}

TEST_F(ApproximateIndexTest, APredictionOfOneWorkerIsNotTouchedByEventsOfAnother) {
  Approximate index = make();
  const Chain chain = chain_of(1, 3);
  index.predict(worker(1), chain.locals);
  store(index, worker(2), chain, 0, 3);
  remove(index, worker(2), chain, 0, 3);
  EXPECT_EQ(depth(index, worker(1), chain), 3u);
  EXPECT_EQ(depth(index, worker(2), chain), 0u);
}

TEST_F(ApproximateIndexTest, AHoleInTheRealBlocksCanBePredicted) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 5);
  store(index, worker(1), chain, 0, 5);
  remove(index, worker(1), chain, 2, 1);
  EXPECT_EQ(depth(index, worker(1), chain), 2u);
  index.predict(worker(1), chain.locals);
  EXPECT_EQ(index.predicted(), 1u);
  EXPECT_EQ(depth(index, worker(1), chain), 5u);
  clock_.advance(seconds(10));
  index.expire();
  EXPECT_EQ(depth(index, worker(1), chain), 2u);
}

TEST_F(ApproximateIndexTest, AContentOfSeveralNamesIsRealUntilTheLastIsGone) {
  Approximate index = make();
  const Chain chain = chain_of(1, 3);
  const Chain again = renamed(chain, 77);
  store(index, worker(1), chain, 0, 2);
  store(index, worker(1), again, 0, 2);
  remove(index, worker(1), chain, 0, 2);
  index.predict(worker(1), chain.locals);  // behind a block that only the second name is left of
  EXPECT_EQ(index.predicted(), 1u);
  EXPECT_EQ(depth(index, worker(1), chain), 3u);
  remove(index, worker(1), again, 0, 2);
  EXPECT_EQ(depth(index, worker(1), chain), 0u);
}

TEST_F(ApproximateIndexTest, ClearAndRemoveWorkerEndPredictionsAndTheirTimes) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 4);
  for (std::uint32_t rank = 0; rank < 3; ++rank) index.predict(worker(1, rank), chain.locals);
  index.predict(worker(2), chain.locals);
  index.clear(worker(1, 0));
  EXPECT_EQ(depth(index, worker(1, 0), chain), 0u);
  EXPECT_EQ(depth(index, worker(1, 1), chain), 4u);
  EXPECT_EQ(index.predicted(), 12u);
  clock_.advance(seconds(5));
  index.remove_worker(WorkerId(1));
  EXPECT_EQ(index.predicted(), 4u);
  index.predict(worker(1, 1), chain.locals);  // with a time of its own
  clock_.advance(seconds(5));
  EXPECT_EQ(index.expire(), 4u);
  EXPECT_EQ(depth(index, worker(1, 1), chain), 4u);
  EXPECT_EQ(depth(index, worker(2), chain), 0u);
  EXPECT_EQ(index.counters(), (IndexCounters{.clears = 2}));
  EXPECT_EQ(index.prediction_counters().dropped, 12u);
}

TEST_F(ApproximateIndexTest, AnEmptyPredictionIsRefused) {
  Approximate index = make();
  EXPECT_EQ(index.predict(worker(1), {}), StoreVerdict::kEmpty);
  EXPECT_EQ(index.prediction_counters(), (PredictionCounters{.refused = 1}));
  EXPECT_EQ(index.counters(), IndexCounters{});
  EXPECT_EQ(index.sizes(), make().sizes());
}

TEST_F(ApproximateIndexTest, PredictionsDoNotShowInCountersOrDumps) {
  Approximate index = make(seconds(10));
  const Chain chain = chain_of(1, 6);
  store(index, worker(1), chain, 0, 2);
  index.predict(worker(1), chain.locals);
  index.predict(worker(2), chain.locals);
  store(index, worker(1), chain, 2, 1);
  clock_.advance(seconds(5));
  index.predict(worker(3), chain.locals);
  clock_.advance(seconds(5));
  index.expire();
  EXPECT_EQ(index.counters(), (IndexCounters{.stored = 3}));
  IndexOracle real;
  const auto blocks = chain.blocks(0, 3);
  real.store({worker(1), StorageTier::kDevice, {}, {}, blocks});
  EXPECT_EQ(difference(rebuilt(index), real), "");
  testing::RecordedCalls calls;
  index.dump(calls);
  for (const testing::IndexCall& call : calls.calls())
    EXPECT_TRUE(std::holds_alternative<testing::StoreCall>(call)) << to_string(call);
}

TEST_F(ApproximateIndexTest, ADumpKeepsRealBlocksThatLieBehindPredictedOnes) {
  Approximate index = make();
  const Chain chain = chain_of(1, 6);
  const Chain branch = branch_of(chain, 3, 2, 6);
  store(index, worker(1), chain, 0, 5);
  store(index, worker(1), branch, 3, 3);
  remove(index, worker(1), chain, 1, 2);
  index.predict(worker(1), chain.locals);
  EXPECT_EQ(index.predicted(), 3u);  // two in the hole, one at the end
  const IndexOracle copy = rebuilt(index);
  IndexOracle real;
  for (const Chain* const one : {&chain, &branch}) {
    const auto blocks = one->blocks(0, one == &chain ? 5 : 6);
    real.store({worker(1), StorageTier::kDevice, {}, {}, blocks});
  }
  real.remove(worker(1), StorageTier::kDevice, chain.names_from_the_end(1, 2));
  EXPECT_EQ(difference(copy, real), "");
}

// The names of predictions follow from the salt, so a test can find them: in the dump of the inner index.
TEST_F(ApproximateIndexTest, APredictionGivesWayToAWorkerThatUsesItsName) {
  Approximate index = make();
  const Chain chain = chain_of(1, 3);
  index.predict(worker(1), chain.locals);
  testing::RecordedCalls calls;
  index.get().dump(calls);
  const BlockName ours = std::get<testing::StoreCall>(calls.calls().front()).blocks.front().name;

  // As a parent and in a removal it is unknown, in a store it is the worker's.
  Approximate first = make();
  first.predict(worker(1), chain.locals);
  const std::vector<StoredBlock> block = {{LocalHash(9), BlockName(9)}};
  EXPECT_EQ(first.store({worker(1), StorageTier::kDevice, ours, {}, block}), StoreVerdict::kUnknownParent);
  EXPECT_EQ(first.predicted(), 2u);

  Approximate second = make();
  second.predict(worker(1), chain.locals);
  EXPECT_EQ(second.remove(worker(1), StorageTier::kDevice, std::span(&ours, 1)), 0u);
  EXPECT_EQ(second.counters(), (IndexCounters{.unknown_removals = 1}));

  Approximate third = make();
  third.predict(worker(1), chain.locals);
  const std::vector<StoredBlock> taken = {{LocalHash(9), ours}};
  EXPECT_EQ(third.store({worker(1), StorageTier::kDevice, {}, {}, taken}), StoreVerdict::kApplied);
  EXPECT_EQ(third.prediction_counters().dropped, 1u);
  EXPECT_EQ(third.counters(), (IndexCounters{.stored = 1}));

  // And where the worker used it first, the prediction takes another.
  Approximate fourth = make();
  EXPECT_EQ(fourth.store({worker(1), StorageTier::kDevice, {}, {}, taken}), StoreVerdict::kApplied);
  EXPECT_EQ(fourth.predict(worker(1), chain.locals), StoreVerdict::kApplied);
  EXPECT_EQ(depth(fourth, worker(1), chain), 3u);
  EXPECT_EQ(fourth.counters(), (IndexCounters{.stored = 1}));
}

TEST_F(ApproximateIndexTest, ExpiryIsBoundedPerCall) {
  Approximate index = make(seconds(1));
  for (std::uint64_t family = 0; family < 100; ++family)
    index.predict(worker(family % 3), chain_of(family, 10).locals);
  clock_.advance(seconds(2));
  EXPECT_EQ(index.expire(7), 7u);
  EXPECT_EQ(index.predicted(), 993u);
  index.predict(worker(1), chain_of(1000, 1).locals);
  EXPECT_EQ(index.prediction_counters().expired, 7u + 66);
  store(index, worker(5), chain_of(2000, 10), 0, 10);
  EXPECT_EQ(index.prediction_counters().expired, 7u + 66 + 84);
  EXPECT_EQ(index.expire(), 1000u - (7 + 66 + 84));
}

// An index that takes only so many blocks.
struct SmallIndex {
  std::size_t room;
  IndexOracle inner{};
  IndexCounters refused{};

  StoreVerdict store(const BlocksStored& event) {
    if (inner.sizes().blocks + event.blocks.size() > room) {
      ++refused.full;
      return StoreVerdict::kFull;
    }
    return inner.store(event);
  }
  std::size_t remove(const Worker& who, StorageTier tier, std::span<const BlockName> names) {
    return inner.remove(who, tier, names);
  }
  void clear(const Worker& who) { inner.clear(who); }
  void remove_worker(WorkerId id) { inner.remove_worker(id); }
  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options) const {
    inner.find_matches(locals, scores, options);
  }
  void dump(IndexSink& sink) const { inner.dump(sink); }
  IndexSizes sizes() const { return inner.sizes(); }
  IndexCounters counters() const {
    IndexCounters counters = inner.counters();
    counters.full += refused.full;
    return counters;
  }
};

TEST_F(ApproximateIndexTest, APredictionThatDoesNotFitLeavesNothing) {
  auto index = ApproximateIndex<SmallIndex>::create({.clock = &clock_}, SmallIndex{5}).value();
  const Chain chain = chain_of(1, 6);
  const auto real = chain.blocks(0, 3);
  index.store({worker(1), StorageTier::kDevice, {}, {}, real});
  index.remove(worker(1), StorageTier::kDevice, std::span(&chain.names[1], 1));
  const auto without_bytes = [&] {
    IndexSizes sizes = index.sizes();
    sizes.bytes = 0;
    return sizes;
  };
  const IndexSizes before = without_bytes();
  // The hole fits, the three blocks at the end do not.
  EXPECT_EQ(index.predict(worker(1), chain.locals), StoreVerdict::kFull);
  EXPECT_EQ(index.predicted(), 0u);
  EXPECT_EQ(without_bytes(), before);
  EXPECT_EQ(index.counters(), (IndexCounters{.stored = 3, .removed = 1}));
  EXPECT_EQ(index.predict(worker(2), chain.locals), StoreVerdict::kFull);
  EXPECT_EQ(without_bytes(), before);
  EXPECT_EQ(index.prediction_counters().refused, 2u);
  EXPECT_EQ(index.predict(worker(1), chain.first(5)), StoreVerdict::kApplied);
  EXPECT_EQ(index.predicted(), 3u);
}

TEST_F(ApproximateIndexTest, WrongOptionsAreRefusedWithTheValue) {
  const auto message = [](const ApproximateOptions& options) {
    auto index = Approximate::create(options);
    return index ? std::string() : index.error().message();
  };
  EXPECT_EQ(message({.ttl = seconds(0)}), "ttl is 0 ns; it must be above 0 and at most a year");
  EXPECT_EQ(message({.ttl = milliseconds(-1)}), "ttl is -1000000 ns; it must be above 0 and at most a year");
  EXPECT_EQ(message({.clock = nullptr}), "clock is null");
  EXPECT_EQ(message({}), "");
}

TEST_F(ApproximateIndexTest, WorksBehindAnyIndex) {
  IndexOf<Approximate> index("approximate", make());
  const Chain chain = chain_of(1, 3);
  index.get().predict(worker(1), chain.locals);
  MatchScores scores;
  static_cast<const AnyIndex&>(index).find_matches(chain.locals, scores);
  EXPECT_EQ(scores.longest(), 3u);
}

// The same calls in the same order to another structure inside.
template <Indexer Inner>
void answer_as_over_the_oracle(std::uint64_t seed) {
  ManualClock clock;
  const ApproximateOptions options{.ttl = seconds(2), .clock = &clock, .salt = seed};
  auto index = ApproximateIndex<Inner>::create(options).value();
  auto expected = Approximate::create(options).value();
  const IndexSizes empty = index.sizes();
  Random random(seed);
  std::vector<Chain> chains;
  chains.push_back(chain_of(1, 150));
  chains.push_back(branch_of(chains[0], 70, 2, 150));
  chains.push_back(branch_of(chains[0], 128, 3, 150));
  for (int step = 0; step < 300; ++step) {
    const Worker who = worker(random.below(3));
    const Chain& chain = chains[random.below(chains.size())];
    const std::size_t from = random.below(chain.size());
    const std::size_t count = random.between(std::size_t{0}, chain.size() - from);
    const std::uint64_t what = random.below(100);
    if (what < 40) {
      ASSERT_EQ(index.predict(who, chain.first(count)), expected.predict(who, chain.first(count)));
    } else if (what < 70) {
      const auto blocks = chain.blocks(from, count);
      const auto parent = from == 0 ? std::nullopt : std::optional(chain.names[from - 1]);
      const BlocksStored event{who, StorageTier::kDevice, parent, std::nullopt, blocks};
      ASSERT_EQ(index.store(event), expected.store(event));
    } else if (what < 95) {
      const auto names = chain.names_from_the_end(from, std::min<std::size_t>(count, 20));
      ASSERT_EQ(index.remove(who, StorageTier::kDevice, names),
                expected.remove(who, StorageTier::kDevice, names));
    } else if (what < 97) {
      index.clear(who);
      expected.clear(who);
    } else {
      clock.advance(seconds(1));
    }
    ASSERT_EQ(index.expire(), expected.expire());
    ASSERT_EQ(index.predicted(), expected.predicted());
    ASSERT_EQ(index.counters(), expected.counters());
    ASSERT_EQ(index.sizes().blocks, expected.sizes().blocks);
    for (const Chain& query : chains) {
      MatchScores scores;
      MatchScores right;
      index.find_matches(query.locals, scores);
      expected.find_matches(query.locals, right);
      for (std::uint64_t id = 0; id < 3; ++id) ASSERT_EQ(scores.of(worker(id)), right.of(worker(id)));
    }
    if (step % 20 == 0) {
      IndexOracle copy;
      IndexOracle right;
      index.dump(copy);
      expected.dump(right);
      ASSERT_EQ(difference(copy, right), "");
    }
  }
  for (std::uint64_t id = 0; id < 3; ++id) index.remove_worker(WorkerId(id));
  ASSERT_EQ(index.sizes(), empty);
}

TEST_F(ApproximateIndexTest, EveryStructureAnswersAlike) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    ASSERT_NO_FATAL_FAILURE(answer_as_over_the_oracle<RadixTree>(seed));
    ASSERT_NO_FATAL_FAILURE(answer_as_over_the_oracle<ConcurrentRadixTree>(seed));
    ASSERT_NO_FATAL_FAILURE(answer_as_over_the_oracle<PositionalIndexer>(seed));
    ASSERT_NO_FATAL_FAILURE(answer_as_over_the_oracle<FlashIndex>(seed));
  }
}

// The plainest account of what is held: real blocks by name, predictions by path with the time of their end.
class Model {
 public:
  using Path = std::vector<std::uint64_t>;
  struct Held {
    std::map<BlockName, Path> meanings;
    std::map<BlockName, std::set<StorageTier>> tiers;
    std::map<Path, Clock::TimePoint> predicted;

    std::set<StorageTier> tiers_of(const Path& path) const {
      std::set<StorageTier> all;
      for (const auto& [name, meaning] : meanings)
        if (meaning == path) all.insert(tiers.at(name).begin(), tiers.at(name).end());
      if (predicted.contains(path)) all.insert(StorageTier::kDevice);
      return all;
    }
    bool is_real(const Path& path) const {
      return std::ranges::any_of(meanings, [&](const auto& one) { return one.second == path; });
    }
  };

  void store(const BlocksStored& event) {
    Held& held = workers[event.worker];
    Path path = event.parent ? held.meanings.at(*event.parent) : Path();
    for (const StoredBlock& block : event.blocks) {
      path.push_back(block.local.value());
      held.meanings[block.name] = path;
      held.tiers[block.name].insert(event.tier);
      held.predicted.erase(path);
    }
  }
  void remove(const Worker& who, StorageTier tier, std::span<const BlockName> names) {
    Held& held = workers[who];
    for (const BlockName name : names) {
      const auto found = held.tiers.find(name);
      if (found == held.tiers.end() || found->second.erase(tier) == 0 || !found->second.empty()) continue;
      held.tiers.erase(found);
      held.meanings.erase(name);
    }
  }
  void predict(const Worker& who, std::span<const LocalHash> locals, Clock::TimePoint end) {
    Held& held = workers[who];
    Path path;
    for (const LocalHash local : locals) {
      path.push_back(local.value());
      if (!held.is_real(path)) held.predicted[path] = end;
    }
  }
  void expire(Clock::TimePoint now) {
    for (auto& [who, held] : workers)
      std::erase_if(held.predicted, [&](const auto& one) { return one.second <= now; });
  }
  std::size_t predicted() const {
    std::size_t count = 0;
    for (const auto& [who, held] : workers) count += held.predicted.size();
    return count;
  }
  Score score(const Worker& who, std::span<const LocalHash> locals) const {
    Score score;
    const auto held = workers.find(who);
    if (held == workers.end()) return score;
    Path path;
    bool on_device = true;
    for (const LocalHash local : locals) {
      path.push_back(local.value());
      const std::set<StorageTier> tiers = held->second.tiers_of(path);
      if (tiers.empty()) break;
      on_device = on_device && tiers.contains(StorageTier::kDevice);
      score.device_depth += on_device ? 1 : 0;
      ++score.depth;
      ++score.blocks[static_cast<std::size_t>(*tiers.begin())];
    }
    return score;
  }

  std::map<Worker, Held> workers;
};

TEST_F(ApproximateIndexTest, RandomCallsAgreeWithTheModel) {
  const testing::TimeBox box(1.0);
  Random random(5);
  do {
    Approximate index =
        Approximate::create({.ttl = milliseconds(1500), .clock = &clock_, .salt = random.next()}).value();
    IndexOracle real;
    Model model;
    std::vector<Chain> chains;
    chains.push_back(chain_of(1, 8));
    chains.push_back(branch_of(chains[0], 3, 2, 8));
    chains.push_back(renamed(chains[0], 3));
    for (int step = 0; step < 400; ++step) {
      const Worker who = worker(random.below(2), static_cast<std::uint32_t>(random.below(2)));
      const Chain& chain = chains[random.below(chains.size())];
      const std::size_t from = random.below(chain.size());
      const std::size_t count = random.between(std::size_t{0}, chain.size() - from);
      const StorageTier tier = random.chance(0.7) ? StorageTier::kDevice : StorageTier::kDisk;
      const std::uint64_t what = random.below(100);
      if (what < 30) {
        const StoreVerdict verdict = index.predict(who, chain.first(count));
        ASSERT_EQ(verdict, count == 0 ? StoreVerdict::kEmpty : StoreVerdict::kApplied);
        const auto bucket = ApproximateOptions::kBucket;
        const Clock::Duration end = clock_.now().time_since_epoch() + milliseconds(1500);
        model.expire(clock_.now());
        model.predict(who, chain.first(count),
                      Clock::TimePoint((end + bucket - milliseconds(1)) / bucket * bucket));
      } else if (what < 60) {
        const auto blocks = chain.blocks(from, count);
        const auto parent = from == 0 ? std::nullopt : std::optional(chain.names[from - 1]);
        const BlocksStored event{who, tier, parent, std::nullopt, blocks};
        const StoreVerdict expected = real.store(event);
        ASSERT_EQ(index.store(event), expected);
        if (expected == StoreVerdict::kApplied) model.store(event);
      } else if (what < 85) {
        const auto names = chain.names_from_the_end(from, count);
        ASSERT_EQ(index.remove(who, tier, names), real.remove(who, tier, names));
        model.remove(who, tier, names);
      } else if (what < 87) {
        index.clear(who);
        real.clear(who);
        model.workers.erase(who);
      } else if (what < 88) {
        index.remove_worker(who.id);
        real.remove_worker(who.id);
        std::erase_if(model.workers, [&](const auto& one) { return one.first.id == who.id; });
      } else {
        clock_.advance(milliseconds(random.below(400)));
      }
      index.expire();
      model.expire(clock_.now());
      ASSERT_EQ(index.predicted(), model.predicted());
      ASSERT_EQ(index.counters(), real.counters());
      for (const Chain& query : chains) {
        MatchScores scores;
        index.find_matches(query.locals, scores);
        for (std::uint64_t id = 0; id < 4; ++id) {
          const Worker asked = worker(id / 2, id % 2);
          ASSERT_EQ(scores.of(asked).value_or(Score{}), model.score(asked, query.locals));
        }
      }
      if (step % 10 == 0) {
        ASSERT_EQ(difference(rebuilt(index), real), "");
      }
    }
    for (std::uint64_t id = 0; id < 2; ++id) index.remove_worker(WorkerId(id));
    ASSERT_EQ(index.sizes(), make().sizes());
  } while (!box.over());
}

TEST_F(ApproximateIndexTest, TheOldestPredictionsMakeRoom) {
  auto index = Approximate::create({.clock = &clock_, .salt = 1, .most = 10}).value();
  const Chain first = chain_of(11, 4);
  const Chain second = chain_of(12, 4);
  const Chain third = chain_of(13, 4);
  EXPECT_EQ(index.predict(worker(1), first.locals), StoreVerdict::kApplied);
  clock_.advance(seconds(1));
  EXPECT_EQ(index.predict(worker(2), second.locals), StoreVerdict::kApplied);
  clock_.advance(seconds(1));
  EXPECT_EQ(index.predict(worker(1), third.locals), StoreVerdict::kApplied);
  EXPECT_EQ(depth(index, worker(1), first), 0u);
  EXPECT_EQ(depth(index, worker(2), second), 4u);
  EXPECT_EQ(depth(index, worker(1), third), 4u);
  EXPECT_EQ(index.predicted(), 8u);
  EXPECT_EQ(index.prediction_counters(), (PredictionCounters{.predicted = 12, .evicted = 4}));
  // Never more than the limit, whatever comes.
  EXPECT_EQ(index.predict(worker(1), chain_of(14, 11).locals), StoreVerdict::kFull);
  EXPECT_EQ(index.predict(worker(1), chain_of(14, 10).locals), StoreVerdict::kApplied);
  EXPECT_EQ(index.predicted(), 10u);
  EXPECT_EQ(index.prediction_counters().evicted, 12u);
}

}  // namespace
}  // namespace ashlar::index
