#include "ashlar/index/thread_pool_indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/make_index.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/interleaving.h"
#include "ashlar/testing/time_box.h"
#include "index/chain.h"
#include "index/index_printers.h"
#include "index/test_worker.h"

namespace ashlar::index {
namespace {

using conformance::Chain;
using conformance::chain_of;
using testing::IndexOracle;
using testing::Interleaving;
using Locked = LockedIndex<IndexOracle>;
using Pool = ThreadPoolIndexer<Locked>;

static_assert(Indexer<Locked>);
static_assert(Indexer<Pool>);
static_assert(Pool::kAppliesLater);

constexpr const char* kBeforeApply = "write_queue.before_apply";

Pool make_pool(std::size_t threads, std::size_t queue_capacity = std::size_t{1} << 16) {
  return Pool::create({.threads = threads, .queue_capacity = queue_capacity}).value();
}

// The whole chain from the start, or its blocks from `from` on behind the block before.
template <class Index>
StoreVerdict store(Index& index, const Worker& who, const Chain& chain, std::size_t from, std::size_t count,
                   StorageTier tier = StorageTier::kDevice) {
  const std::vector<StoredBlock> blocks = chain.blocks(from, count);
  const auto parent = from == 0 ? std::nullopt : std::optional(chain.names[from - 1]);
  return index.store({who, tier, parent, std::nullopt, blocks});
}
template <class Index>
StoreVerdict store(Index& index, const Worker& who, const Chain& chain) {
  return store(index, who, chain, 0, chain.size());
}

template <class Index>
std::uint32_t depth(const Index& index, const Worker& who, const Chain& chain) {
  MatchScores scores;
  index.find_matches(chain.locals, scores, {});
  const auto score = scores.of(who);
  return score ? score->depth : 0;
}

// Random calls for one worker, some of them faulty.
std::vector<testing::IndexCall> random_calls(const Worker& who, std::size_t count, Random random) {
  const std::array chains = {chain_of(0, 12), chain_of(1, 12), chain_of(2, 12), chain_of(3, 12)};
  std::vector<testing::IndexCall> calls;
  for (std::size_t i = 0; i < count; ++i) {
    const Chain& chain = chains[random.below(chains.size())];
    const std::size_t from = random.below(chain.size());
    const std::size_t length = random.between(std::size_t{0}, chain.size() - from);
    const StorageTier tier = random.chance(0.8) ? StorageTier::kDevice : StorageTier::kHost;
    const std::uint64_t what = random.below(100);
    if (what < 60) {
      const auto parent = from == 0 ? std::nullopt : std::optional(chain.names[from - 1]);
      const auto position =
          random.chance(0.5) ? std::optional(static_cast<std::uint32_t>(from)) : std::nullopt;
      calls.emplace_back(testing::StoreCall{who, tier, parent, position, chain.blocks(from, length)});
    } else if (what < 97) {
      calls.emplace_back(testing::RemoveCall{who, tier, chain.names_from_the_end(from, length)});
    } else if (what < 99) {
      calls.emplace_back(testing::ClearCall{who});
    } else {
      calls.emplace_back(testing::RemoveWorkerCall{who.id});
    }
  }
  return calls;
}

TEST(ThreadPoolIndexerTest, AppliesEveryEventOnceAndAnswersAsItsIndexDoes) {
  for (const std::size_t threads : {1, 2, 5}) {
    Pool pool = make_pool(threads, 64);
    IndexOracle expected;
    Random random(threads);
    std::vector<std::vector<testing::IndexCall>> calls;
    calls.reserve(8);
    for (std::uint64_t id = 0; id < 8; ++id)
      calls.push_back(random_calls(worker(id / 2, id % 2), 400, random.fork()));
    for (std::size_t i = 0; i < calls.front().size(); ++i) {
      for (const auto& of_worker : calls) {
        (void)testing::apply(of_worker[i], pool);
        (void)testing::apply(of_worker[i], expected);
      }
    }
    pool.settle();
    EXPECT_EQ(difference(expected, pool.get().get()), "");
    EXPECT_EQ(pool.counters(), expected.counters());
    EXPECT_EQ(pool.sizes(), expected.sizes());
  }
}

TEST(ThreadPoolIndexerTest, KeepsTheOrderOfOneWorker) {
  Pool pool = make_pool(3, 8);
  const Chain chain = chain_of(1, 200);
  {
    std::vector<std::jthread> callers;
    callers.reserve(4);
    for (std::uint64_t id = 0; id < 4; ++id) {
      callers.emplace_back([&pool, &chain, id] {
        for (std::size_t i = 0; i < chain.size(); ++i) store(pool, worker(id), chain, i, 1);
      });
    }
  }
  EXPECT_EQ(pool.counters().unknown_parents, 0u);
  for (std::uint64_t id = 0; id < 4; ++id) EXPECT_EQ(depth(pool, worker(id), chain), 200u);
}

TEST(ThreadPoolIndexerTest, GivesLanesRoundRobin) {
  Pool pool = make_pool(4);
  const Chain chain = chain_of(1, 3);
  for (std::uint64_t id = 0; id < 8; ++id) store(pool, worker(id), chain);
  const ThreadPoolCounters counters = pool.pool_counters();
  EXPECT_EQ(counters.queued, 8u);
  EXPECT_EQ(counters.workers, 8u);
  ASSERT_EQ(counters.queues.size(), 4u);
  for (const WriteQueueCounters& queue : counters.queues) {
    EXPECT_EQ(queue.queued, 2u);
    EXPECT_GE(queue.high_water, 3u);
  }
}

TEST(ThreadPoolIndexerTest, SiblingRanksHaveLanesOfTheirOwn) {
  Interleaving order;
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  order.pause_at(kBeforeApply);
  store(pool, worker(1, 0), chain);
  order.wait_until_paused(kBeforeApply);
  store(pool, worker(1, 1), chain);
  while (depth(pool, worker(1, 1), chain) != 3) std::this_thread::yield();
  EXPECT_EQ(depth(pool, worker(1, 0), chain), 0u);
  order.resume(kBeforeApply);
  pool.settle();
  EXPECT_EQ(depth(pool, worker(1, 0), chain), 3u);
}

TEST(ThreadPoolIndexerTest, AStoreAndARemovalAnswerThatTheyAreAccepted) {
  Pool pool = make_pool(1);
  const Chain chain = chain_of(1, 4);
  EXPECT_EQ(store(pool, worker(1), chain, 2, 2), StoreVerdict::kApplied);  // the parent is unknown
  EXPECT_EQ(store(pool, worker(1), chain, 0, 0), StoreVerdict::kApplied);  // empty
  EXPECT_EQ(pool.remove(worker(1), StorageTier::kDevice, chain.names), 4u);
  EXPECT_EQ(pool.counters(), (IndexCounters{.unknown_removals = 4, .unknown_parents = 1, .empty_stores = 1}));
}

TEST(ThreadPoolIndexerTest, AFullQueueMakesTheCallerWait) {
  Interleaving order;
  Pool pool = make_pool(1, 4);
  const Chain chain = chain_of(1, 10);
  order.pause_at(kBeforeApply);
  store(pool, worker(1), chain, 0, 1);  // the queue takes it and is held
  order.wait_until_paused(kBeforeApply);
  store(pool, worker(1), chain, 1, 3);
  store(pool, worker(1), chain, 4, 3);  // reaches the limit, and is taken whole
  std::jthread caller([&] { EXPECT_EQ(store(pool, worker(1), chain, 7, 3), StoreVerdict::kApplied); });
  while (pool.pool_counters().waits == 0) std::this_thread::yield();
  EXPECT_EQ(pool.pool_counters().queued, 3u);
  EXPECT_EQ(pool.pool_counters().queues[0].depth, 6u);
  order.resume(kBeforeApply);
  caller.join();
  pool.settle();
  EXPECT_EQ(depth(pool, worker(1), chain), 10u);
  EXPECT_EQ(pool.pool_counters().waits, 1u);
  EXPECT_EQ(pool.pool_counters().queues[0].high_water, 6u);
  EXPECT_EQ(pool.pool_counters().queues[0].depth, 0u);
}

TEST(ThreadPoolIndexerTest, AFullLaneHoldsNobodyOfAnotherLane) {
  Interleaving order;
  Pool pool = make_pool(2, 1);
  const Chain chain = chain_of(1, 3);
  order.pause_at(kBeforeApply);
  store(pool, worker(1), chain);
  order.wait_until_paused(kBeforeApply);
  store(pool, worker(1), chain);
  const std::jthread caller([&] { store(pool, worker(1), chain); });
  while (pool.pool_counters().waits == 0) std::this_thread::yield();
  store(pool, worker(2), chain);
  while (depth(pool, worker(2), chain) != 3) std::this_thread::yield();
  order.resume(kBeforeApply);
}

TEST(ThreadPoolIndexerTest, RemovingAWorkerFollowsItsEventsInAllLanes) {
  Interleaving order;
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  const Chain later = chain_of(2, 2);
  order.pause_at(kBeforeApply, 1);
  order.pause_at(kBeforeApply, 1);
  store(pool, worker(7, 0), chain);
  store(pool, worker(7, 1), chain);
  std::atomic<bool> removed = false;
  std::jthread remover([&] {
    pool.remove_worker(WorkerId(7));
    removed = true;
  });
  order.wait_until_passed("remove_worker.leaving", 1);
  std::jthread follower([&] { store(pool, worker(7, 0), later); });
  store(pool, worker(8), chain);  // another worker does not wait
  EXPECT_FALSE(removed);
  order.resume(kBeforeApply);
  remover.join();
  follower.join();
  pool.settle();
  EXPECT_EQ(depth(pool, worker(7, 0), chain), 0u);
  EXPECT_EQ(depth(pool, worker(7, 1), chain), 0u);
  EXPECT_EQ(depth(pool, worker(7, 0), later), 2u);
  EXPECT_EQ(depth(pool, worker(8), chain), 3u);
}

TEST(ThreadPoolIndexerTest, RemovingAWorkerWaitsForNoOtherLane) {
  Interleaving order;
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  order.pause_at(kBeforeApply);
  store(pool, worker(1), chain);
  order.wait_until_paused(kBeforeApply);
  store(pool, worker(2), chain);
  pool.remove_worker(WorkerId(2));
  EXPECT_EQ(depth(pool, worker(2), chain), 0u);
  EXPECT_EQ(depth(pool, worker(1), chain), 0u);  // still held
  order.resume(kBeforeApply);
  pool.settle();
  EXPECT_EQ(depth(pool, worker(1), chain), 3u);
}

TEST(ThreadPoolIndexerTest, ARemovedWorkerLeavesNoRouteBehind) {
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  for (std::uint64_t id = 0; id < 100; ++id) {
    store(pool, worker(id, 0), chain);
    store(pool, worker(id, 1), chain);
    pool.remove_worker(WorkerId(id));
  }
  pool.remove_worker(WorkerId(1000));  // never heard of
  EXPECT_EQ(pool.pool_counters().workers, 0u);
  EXPECT_EQ(pool.sizes(), IndexOracle().sizes());
  EXPECT_EQ(pool.counters().clears, 101u);
}

TEST(ThreadPoolIndexerTest, WorkersThatHoldNothingLeaveFewRoutesBehind) {
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  constexpr std::uint64_t kWorkers = 1'500;
  for (std::uint64_t id = 0; id < kWorkers; ++id) {
    pool.clear(worker(id));  // never heard of
    pool.remove(worker(kWorkers + id), StorageTier::kDevice, chain.names);
    store(pool, worker(2 * kWorkers + id), chain);
    pool.clear(worker(2 * kWorkers + id));
    pool.clear(worker(3 * kWorkers + id % 7));
    store(pool, worker(3 * kWorkers + id % 7), chain);
  }
  pool.settle();
  EXPECT_LE(pool.pool_counters().workers, 7 + detail::WriterPool::kMaxIdleRoutes);
  EXPECT_EQ(pool.sizes().workers, 7u);
  for (std::uint64_t id = 0; id < 7; ++id) EXPECT_EQ(depth(pool, worker(3 * kWorkers + id), chain), 3u);
  EXPECT_EQ(pool.counters().unknown_removals, 3 * kWorkers);
}

TEST(ThreadPoolIndexerTest, ARouteStaysWhileAnEventOfItsWorkerWaits) {
  Interleaving order;
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  order.pause_at(kBeforeApply);
  store(pool, worker(1), chain);
  order.wait_until_paused(kBeforeApply);
  pool.clear(worker(1));
  // More clears than routes are kept for; that of the first worker waits, so its route stays.
  for (std::uint64_t id = 100; id < 100 + 2 * detail::WriterPool::kMaxIdleRoutes; ++id)
    pool.clear(worker(id));
  EXPECT_GE(pool.pool_counters().workers, 1u);
  // Behind the clear(), in the same queue: the other one is free and would be faster.
  store(pool, worker(1), chain, 0, 1);
  pool.remove(worker(2), StorageTier::kDevice, chain.names);
  order.resume(kBeforeApply);
  pool.settle();
  EXPECT_EQ(depth(pool, worker(1), chain), 1u);
}

TEST(ThreadPoolIndexerTest, RefusedCallsLeaveNoRouteBehind) {
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  store(pool, worker(0), chain);
  pool.shutdown();
  for (std::uint64_t id = 0; id < 100; ++id) {
    store(pool, worker(id), chain);
    pool.clear(worker(100 + id));
  }
  EXPECT_EQ(pool.pool_counters().workers, 1u);
  EXPECT_EQ(pool.pool_counters().refused, 200u);
}

TEST(ThreadPoolIndexerTest, AWorkerWithManyRanksIsRemovedWhole) {
  Pool pool = make_pool(3);
  const Chain chain = chain_of(1, 1);
  for (std::uint32_t rank = 0; rank < 1'100; ++rank) store(pool, worker(7, rank), chain);
  store(pool, worker(6, 4'000'000'000u), chain);
  store(pool, worker(8), chain);
  pool.remove_worker(WorkerId(7));
  EXPECT_EQ(pool.pool_counters().workers, 2u);
  EXPECT_EQ(pool.sizes().workers, 2u);
}

TEST(ThreadPoolIndexerTest, ClearFollowsTheEventsOfItsRankAndFencesNoSibling) {
  Interleaving order;
  Pool pool = make_pool(2);
  const Chain chain = chain_of(1, 3);
  order.pause_at(kBeforeApply);
  store(pool, worker(1, 0), chain);
  order.wait_until_paused(kBeforeApply);
  store(pool, worker(1, 1), chain);
  pool.clear(worker(1, 1));
  store(pool, worker(1, 1), chain, 0, 1);
  pool.clear(worker(1, 0));
  while (depth(pool, worker(1, 1), chain) != 1) std::this_thread::yield();
  order.resume(kBeforeApply);
  pool.settle();
  EXPECT_EQ(depth(pool, worker(1, 0), chain), 0u);
  EXPECT_EQ(depth(pool, worker(1, 1), chain), 1u);
}

TEST(ThreadPoolIndexerTest, ADumpHasAllThatWasAccepted) {
  Pool pool = make_pool(3);
  std::vector<Chain> chains;
  for (std::uint64_t id = 0; id < 20; ++id) {
    chains.push_back(chain_of(id % 5, 10 + id));
    store(pool, worker(id), chains.back());
  }
  IndexOracle copy;
  pool.dump(copy);
  EXPECT_EQ(difference(copy, pool.get().get()), "");
  for (std::uint64_t id = 0; id < 20; ++id) EXPECT_EQ(depth(copy, worker(id), chains[id]), 10 + id);
}

TEST(ThreadPoolIndexerTest, ShutdownAppliesWhatWasAcceptedAndRefusesTheRest) {
  Pool pool = make_pool(2, std::size_t{1} << 16);
  const Chain chain = chain_of(1, 500);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    store(pool, worker(1), chain, i, 1);
    store(pool, worker(2), chain, i, 1);
  }
  pool.shutdown();
  pool.shutdown();
  EXPECT_EQ(depth(pool, worker(1), chain), 500u);
  EXPECT_EQ(depth(pool, worker(2), chain), 500u);

  EXPECT_EQ(store(pool, worker(3), chain), StoreVerdict::kFull);
  EXPECT_EQ(pool.remove(worker(1), StorageTier::kDevice, chain.names), 0u);
  pool.clear(worker(1));
  pool.remove_worker(WorkerId(2));
  pool.settle();
  EXPECT_EQ(pool.pool_counters().refused, 4u);
  EXPECT_EQ(pool.pool_counters().refused_stores, 1u);
  EXPECT_EQ(pool.counters(), (IndexCounters{.stored = 1000, .full = 1}));
  EXPECT_EQ(depth(pool, worker(1), chain), 500u);
  EXPECT_EQ(pool.sizes().blocks, 1000u);
}

TEST(ThreadPoolIndexerTest, ShutdownRefusesACallerThatWaits) {
  Interleaving order;
  Pool pool = make_pool(1, 1);
  const Chain chain = chain_of(1, 3);
  order.pause_at(kBeforeApply);
  store(pool, worker(1), chain, 0, 1);
  order.wait_until_paused(kBeforeApply);
  store(pool, worker(1), chain, 1, 1);
  std::jthread caller([&] { EXPECT_EQ(store(pool, worker(1), chain, 2, 1), StoreVerdict::kFull); });
  while (pool.pool_counters().waits == 0) std::this_thread::yield();
  std::jthread closer([&] { pool.shutdown(); });
  caller.join();
  order.resume(kBeforeApply);
  closer.join();
  EXPECT_EQ(depth(pool, worker(1), chain), 2u);
  EXPECT_EQ(pool.pool_counters().refused, 1u);
}

TEST(ThreadPoolIndexerTest, WhatWaitsIsAppliedWhenThePoolIsDestroyed) {
  const Chain chain = chain_of(1, 50);
  // Counts in memory that outlives the pool.
  struct Counting {
    std::atomic<std::size_t>* stored;
    StoreVerdict store(const BlocksStored& event) {
      *stored += event.blocks.size();
      return StoreVerdict::kApplied;
    }
    std::size_t remove(const Worker&, StorageTier, std::span<const BlockName>) { return 0; }
    void clear(const Worker&) {}
    void remove_worker(WorkerId) {}
    void find_matches(std::span<const LocalHash>, MatchScores&, const FindOptions&) const {}
    void dump(IndexSink&) const {}
    IndexSizes sizes() const { return {}; }
    IndexCounters counters() const { return {}; }
  };
  std::atomic<std::size_t> stored = 0;
  {
    auto pool = ThreadPoolIndexer<Counting>::create({.threads = 3}, Counting{&stored}).value();
    for (std::uint64_t id = 0; id < 30; ++id) store(pool, worker(id), chain);
  }
  EXPECT_EQ(stored, 1500u);
}

TEST(ThreadPoolIndexerTest, WrongOptionsAreRefusedWithTheValue) {
  const auto message = [](const ThreadPoolOptions& options) {
    auto pool = Pool::create(options);
    return pool ? std::string() : pool.error().to_string();
  };
  EXPECT_EQ(message({.threads = 0}), "invalid_argument: threads is 0; a pool has 1 to 1024");
  EXPECT_EQ(message({.threads = 1025}), "invalid_argument: threads is 1025; a pool has 1 to 1024");
  EXPECT_EQ(message({.queue_capacity = 0}),
            "invalid_argument: queue_capacity is 0 blocks; it must be 1 to 4294967296");
  EXPECT_EQ(message({.threads = 1, .queue_capacity = 1}), "");
}

TEST(ThreadPoolIndexerTest, SettleReachesItThroughAnyIndex) {
  IndexOf<Pool> index("oracle on 2 threads", make_pool(2));
  const Chain chain = chain_of(1, 3);
  AnyIndex& any = index;
  store(any, worker(1), chain);
  any.settle();
  EXPECT_EQ(depth(any, worker(1), chain), 3u);
  EXPECT_EQ(any.name(), "oracle on 2 threads");
  EXPECT_EQ(index.get().pool_counters().queued, 1u);
}

// Callers, readers and barriers at once. Each worker belongs to one caller, as the contract asks; removals of
// workers come from that caller too.
void end_in_the_state_of_the_model(AnyIndex& index, Random& random) {
  constexpr std::size_t kCallers = 3;
  std::array<std::vector<testing::IndexCall>, kCallers> calls;
  for (std::size_t i = 0; i < kCallers; ++i) {
    for (std::uint64_t id = 0; id < 3; ++id) {
      auto more = random_calls(worker(i * 3 + id, id % 2), 150, random.fork());
      calls[i].insert(calls[i].end(), more.begin(), more.end());
    }
  }
  std::atomic<bool> done = false;
  std::jthread reader([&] {
    const Chain chain = chain_of(1, 12);
    MatchScores scores;
    while (!done) {
      index.find_matches(chain.locals, scores);
      EXPECT_LE(scores.longest(), 12u);
    }
  });
  std::jthread barrier([&] {
    while (!done) {
      IndexOracle copy;
      index.dump(copy);
      index.settle();
      EXPECT_EQ(index.counters().full, 0u);
    }
  });
  {
    std::vector<std::jthread> callers;
    callers.reserve(kCallers);
    for (const auto& mine : calls) {
      callers.emplace_back([&index, &mine] {
        for (const testing::IndexCall& call : mine) (void)testing::apply(call, index);
      });
    }
  }
  done = true;
  reader.join();
  barrier.join();
  IndexOracle expected;
  for (const auto& mine : calls)
    for (const testing::IndexCall& call : mine) (void)testing::apply(call, expected);
  IndexOracle copy;
  index.dump(copy);
  ASSERT_EQ(difference(expected, copy), "") << index.name();
  ASSERT_EQ(index.counters(), expected.counters()) << index.name();
  ASSERT_EQ(index.sizes().blocks, expected.sizes().blocks) << index.name();
}

TEST(ThreadPoolIndexerStressTest, EndsInTheStateOfTheModel) {
  const testing::TimeBox box(0.5);
  Random random(11);
  do {
    IndexOf<Pool> index("oracle", make_pool(2, 32));
    ASSERT_NO_FATAL_FAILURE(end_in_the_state_of_the_model(index, random));
  } while (!box.over());
}

TEST(ThreadPoolIndexerStressTest, EveryStructureEndsInTheStateOfTheModel) {
  const testing::TimeBox box(1.0);
  Random random(12);
  do {
    for (const std::string_view kind : kIndexKinds) {
      IndexOptions options;
      options.kind = kind;
      options.threads = 2;
      options.queue_capacity = 32;
      auto index = make_index(options).value();
      ASSERT_NO_FATAL_FAILURE(end_in_the_state_of_the_model(*index, random));
    }
  } while (!box.over());
}

// A worker is removed by one thread while another still delivers its events: every store comes before a
// removal or after it, and none is lost.
TEST(ThreadPoolIndexerStressTest, ARemovalBesideEventsOfTheSameWorkerKeepsTheirOrder) {
  const testing::TimeBox box(0.5);
  const Chain chain = chain_of(3, 40);
  do {
    Pool pool = make_pool(3, 16);
    std::jthread remover([&] {
      for (int i = 0; i < 20; ++i) pool.remove_worker(WorkerId(1));
    });
    for (std::size_t i = 0; i < chain.size(); ++i) {
      store(pool, worker(1), chain, 0, i + 1);  // from the start: never refused
    }
    remover.join();
    store(pool, worker(1), chain);
    pool.settle();
    ASSERT_EQ(depth(pool, worker(1), chain), 40u);
    const IndexCounters counters = pool.counters();
    ASSERT_EQ(counters.unknown_parents, 0u);
    ASSERT_EQ(counters.stored, 40u * 41 / 2 + 40);
    ASSERT_EQ(counters.clears, 20u);
  } while (!box.over());
}

}  // namespace
}  // namespace ashlar::index
