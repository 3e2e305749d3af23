// The simulator against a naive one, against real managers, and against what its counts promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ashlar/block/block_manager.h"
#include "ashlar/replay/generate.h"
#include "ashlar/replay/simulate.h"
#include "ashlar/service/journal.h"
#include "replay/simulate/naive_cache.h"
#include "replay/simulate/offline_bound.h"
#include "replay/simulate/pool_cache.h"
#include "replay/simulate/random_trace.h"
#include "replay/simulate/replay_run.h"
#include "support/scratch_folder.h"

namespace ashlar::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using TierHits = std::array<std::uint32_t, kReplayTiers>;

// Hits of every request, and the outcome.
struct Served {
  std::vector<TierHits> hits;
  std::vector<std::uint32_t> workers;
  ReplayOutcome outcome;
};
Served serve_all(const TraceTable& trace, const ReplayConfig& config) {
  ReplayRun run(trace, config);
  for (std::uint32_t worker = 0; worker < config.workers; ++worker)
    run.add_cache(make_pool_cache(trace, config, run.presence(), worker).value());
  Served served;
  served.outcome = run.run({},
                           [&](std::uint32_t worker, const CacheChange& change) {
                             served.hits.push_back(change.hits);
                             served.workers.push_back(worker);
                           })
                       .value();
  return served;
}

TEST(SimulateTest, AgreesWithANaiveSimulator) {
  const std::vector<std::array<std::uint32_t, 3>> shapes = {
      {40, 0, 0}, {30, 60, 0}, {30, 50, 120}, {24, 24, 24}};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const TraceTable trace = random_trace(seed, 300, 24);
    for (const auto& shape : shapes) {
      for (const char* policy : {"lru", "fifo"}) {
        // How fifo orders blocks on their way up and down is the backend's own; in one tier it is the rule.
        if (shape[1] != 0 && std::string(policy) == "fifo") continue;
        for (const std::uint32_t workers : {1u, 3u}) {
          const Served served = serve_all(
              trace,
              {.workers = workers, .tier_blocks = shape, .policy = policy, .routing = Routing::kSticky});
          std::vector<NaiveCache> naive(
              workers, NaiveCache({shape[0], shape[1], shape[2]}, std::string(policy) == "lru"));
          const std::string what = std::string(policy) + ", seed " + std::to_string(seed) + ", tiers " +
                                   std::to_string(shape[0]) + " " + std::to_string(shape[1]) + " " +
                                   std::to_string(shape[2]) + ", workers " + std::to_string(workers);
          std::vector<bool> seen(trace.distinct());
          std::array<std::uint64_t, kMissReasons> misses = {};
          for (std::size_t i = 0; i < trace.requests().size(); ++i) {
            const auto blocks = trace.blocks_of(trace.requests()[i]);
            NaiveCache& cache = naive[served.workers[i]];
            std::vector<std::size_t> reasons;
            for (const std::uint32_t block : blocks)
              reasons.push_back(cache.has_any(block) ? 3
                                : std::ranges::any_of(naive, [&](auto& one) { return one.has_any(block); })
                                    ? 2
                                : seen[block] ? 1
                                              : 0);
            const TierHits hits = cache.serve(blocks);
            ASSERT_EQ(served.hits[i], hits) << "request " << i << ", " << what;
            for (std::size_t k = hits[0] + hits[1] + hits[2]; k < blocks.size(); ++k) ++misses[reasons[k]];
            for (const std::uint32_t block : blocks) seen[block] = seen[block] || cache.has_any(block);
          }
          EXPECT_EQ(served.outcome.total.misses, misses) << what;
          for (std::size_t tier = 0; tier < kReplayTiers; ++tier) {
            std::uint64_t entered = 0;
            std::uint64_t left = 0;
            for (const NaiveCache& one : naive) {
              entered += one.entered()[tier];
              left += one.left()[tier];
            }
            EXPECT_EQ(served.outcome.total.written[tier], entered) << "tier " << tier << ", " << what;
            EXPECT_EQ(served.outcome.total.evictions[tier], left) << "tier " << tier << ", " << what;
          }
        }
      }
    }
  }
}

void expect_as_a_manager(const TraceTable& trace, const std::string& policy, std::uint32_t blocks) {
  const Served served = serve_all(trace, {.tier_blocks = {blocks, 0, 0}, .policy = policy});
  auto manager =
      block::BlockManager<block::G1>::builder()
          .block_count(blocks)
          .registry(
              block::BlockRegistry::create({.frequency = block::TinyLfuOptions::for_pool(blocks)}).value())
          .duplicate_policy(block::DuplicatePolicy::kReject)
          .with_backend(policy)
          .build()
          .value();
  for (std::size_t i = 0; i < trace.requests().size(); ++i) {
    std::vector<tokens::SequenceHash> hashes;
    for (const std::uint32_t number : trace.blocks_of(trace.requests()[i]))
      hashes.push_back(trace.hash_of(number));
    auto table = manager.match_blocks(hashes);
    ASSERT_EQ(table.size(), served.hits[i][0]) << policy << ", request " << i;
    auto fresh = manager.allocate_blocks(hashes.size() - table.size()).value();
    block::BlockList<block::CompleteBlock<block::G1>> complete;
    for (std::size_t k = 0; k < fresh.size(); ++k)
      complete.push_back(
          std::move(fresh[k]).stage(hashes[table.size() + k], block::KvReady::asserted_by_caller()));
    auto registered = manager.register_blocks(std::move(complete)).value();
    for (auto& one : registered) table.push_back(std::move(one));
  }
  EXPECT_EQ(manager.counters().evictions, served.outcome.total.evictions[0]) << policy;
}

TEST(SimulateTest, AgreesWithABlockManagerForEveryPolicy) {
  for (const std::string& policy : block::eviction_names())
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      expect_as_a_manager(random_trace(seed, 300, 24), policy, 48);
}

// With a smaller sketch than a pool should have, other blocks count as often used.
TEST(SimulateTest, TheSketchIsLargeEnoughForThePool) {
  const auto source = generate_trace({.kind = WorkloadKind::kMix, .requests = 1'500, .block_size = 256});
  const TraceTable trace = TraceTable::load(*source).value();
  expect_as_a_manager(trace, "multi_lru", static_cast<std::uint32_t>(trace.longest()) + 80);
}

TEST(SimulateTest, NoPolicyBeatsTheBound) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    const TraceTable trace = random_trace(seed, 500, 20);
    for (const std::uint32_t capacity : {20u, 60u, 200u, 5'000u}) {
      for (const std::string& policy : block::eviction_names()) {
        const auto outcome = simulate(trace, {.tier_blocks = {capacity, 0, 0}, .policy = policy}).value();
        EXPECT_GE(outcome.bound_hits, outcome.total.hit_blocks()) << policy << " at " << capacity;
        if (capacity == 5'000) {
          // Everything fits: only new blocks are missed.
          EXPECT_EQ(outcome.bound_hits, trace.named() - trace.distinct());
          EXPECT_EQ(outcome.total.hit_blocks(), outcome.bound_hits) << policy;
        }
      }
    }
  }
}

// What the best choice of victims would find, by trying all of them.
std::uint64_t best_hits(const std::vector<std::vector<std::uint32_t>>& requests, std::size_t at,
                        const std::set<std::uint32_t>& cached, std::size_t capacity) {
  if (at == requests.size()) return 0;
  const auto& blocks = requests[at];
  std::size_t found = 0;
  while (found < blocks.size() && cached.contains(blocks[found])) ++found;
  std::set<std::uint32_t> all = cached;
  all.insert(blocks.begin(), blocks.end());
  std::vector<std::uint32_t> others;
  for (const std::uint32_t block : cached)
    if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) others.push_back(block);
  const std::size_t excess = all.size() > capacity ? all.size() - capacity : 0;
  std::uint64_t best = 0;
  for (std::uint32_t chosen = 0; chosen < 1u << others.size(); ++chosen) {
    if (static_cast<std::size_t>(__builtin_popcount(chosen)) != excess) continue;
    std::set<std::uint32_t> left = all;
    for (std::size_t i = 0; i < others.size(); ++i)
      if ((chosen >> i & 1) != 0) left.erase(others[i]);
    best = std::max(best, best_hits(requests, at + 1, left, capacity));
  }
  return found + best;
}

TEST(SimulateTest, TheBoundIsWhatTheBestChoicesFind) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const TraceTable trace = random_trace(seed, 7, 4);
    std::vector<std::vector<std::uint32_t>> requests;
    std::vector<std::uint32_t> order;
    for (const auto& request : trace.requests()) {
      const auto blocks = trace.blocks_of(request);
      order.push_back(static_cast<std::uint32_t>(requests.size()));
      requests.emplace_back(blocks.begin(), blocks.end());
    }
    for (const std::size_t capacity : {4u, 6u})
      EXPECT_EQ(offline_hits(trace, order, capacity), best_hits(requests, 0, {}, capacity))
          << "seed " << seed << " at " << capacity;
  }
}

TEST(SimulateTest, MissesHaveTheirReasons) {
  // Two workers in turn; G1 of three blocks each.
  const TraceTable trace = table_of({
      request_of(0, {1, 2, 3}),       // worker 0: never seen
      request_of(10'000, {1, 2, 3}),  // worker 1: elsewhere
      request_of(20'000, {4, 5}),     // worker 0: never seen; evicts 3 and 2
      request_of(30'000, {1, 2, 3}),  // worker 1: hits
      request_of(40'000, {1, 2}),     // worker 0: a hit, then elsewhere
      request_of(50'000, {6, 7, 8}),  // worker 1: never seen; evicts all
      request_of(60'000, {1, 2, 3}),  // worker 0: two hits, then evicted
  });
  const auto outcome =
      simulate(trace, {.workers = 2, .tier_blocks = {3, 0, 0}, .routing = Routing::kRoundRobin, .windows = 7})
          .value();
  EXPECT_THAT(outcome.total.misses, ElementsAre(8u, 1u, 4u, 0u));
  EXPECT_THAT(outcome.total.hits, ElementsAre(6u, 0u, 0u));
  EXPECT_THAT(outcome.windows[1].misses, ElementsAre(0u, 0u, 3u, 0u));
  EXPECT_EQ(outcome.windows[3].hits[0], 3u);
  EXPECT_EQ(outcome.total.hit_tokens, 6u * 16);
  EXPECT_EQ(outcome.workers[0].requests, 4u);
  EXPECT_EQ(outcome.workers[1].requests, 3u);
  EXPECT_EQ(outcome.total.written[0], 13u);
  EXPECT_EQ(outcome.total.evictions[0], 7u);

  // fifo evicts heads: what stays is behind a gap.
  const auto broken =
      simulate(table_of({request_of(0, {1, 2, 3}), request_of(1, {4}), request_of(2, {1, 2})}),
               {.tier_blocks = {3, 0, 0}, .policy = "fifo"})
          .value();
  EXPECT_THAT(broken.total.misses, ElementsAre(4u, 1u, 0u, 1u));
}

TEST(SimulateTest, TiersCatchWhatG1Evicts) {
  std::vector<TraceRequest> requests;
  for (std::uint64_t round = 0; round < 3; ++round)
    for (std::uint64_t text = 0; text < 10; ++text)
      requests.push_back(request_of(round * 100 + text, {10 * text + 1, 10 * text + 2}));
  const TraceTable trace = table_of(std::move(requests));
  const auto g1 = simulate(trace, {.tier_blocks = {4, 0, 0}}).value();
  EXPECT_EQ(g1.total.hit_blocks(), 0u);  // a round is longer than the pool
  const auto g2 = simulate(trace, {.tier_blocks = {4, 30, 0}}).value();
  EXPECT_THAT(g2.total.hits, ElementsAre(0u, 40u, 0u));
  const auto g3 = simulate(trace, {.tier_blocks = {4, 4, 30}}).value();
  EXPECT_THAT(g3.total.hits, ElementsAre(0u, 0u, 40u));
  EXPECT_EQ(g3.total.written[2], 20u);
  EXPECT_DOUBLE_EQ(g3.written_per_hit(), 0.5);
  EXPECT_GT(g3.latency.mean, g2.latency.mean);
  EXPECT_GT(g1.latency.mean, g3.latency.mean);
}

TEST(SimulateTest, ThePrefixRouterFindsMoreThanChance) {
  const TraceTable trace = random_trace(5, 2'000, 24);
  const auto rate = [&](Routing routing) {
    const Served served = serve_all(trace, {.workers = 4, .tier_blocks = {300, 0, 0}, .routing = routing});
    EXPECT_EQ(std::accumulate(served.outcome.workers.begin(), served.outcome.workers.end(), std::uint64_t{0},
                              [](std::uint64_t sum, const WorkerTotals& one) { return sum + one.requests; }),
              2'000u);
    for (const WorkerTotals& one : served.outcome.workers) EXPECT_GT(one.requests, 0u);
    EXPECT_GE(served.outcome.bound_hits, served.outcome.total.hit_blocks());
    return served.outcome.total.hit_rate();
  };
  const double prefix = rate(Routing::kPrefix);
  EXPECT_GT(prefix, rate(Routing::kRandom));
  EXPECT_GT(prefix, rate(Routing::kRoundRobin));
  EXPECT_GT(prefix, rate(Routing::kLeastLoaded));
  EXPECT_GT(rate(Routing::kSticky), rate(Routing::kRandom));
}

TEST(SimulateTest, ALogMakesAJournalThatReplaysAndChangesNothing) {
  const TraceTable trace = random_trace(7, 400, 24);
  const ScratchFolder folder;
  const auto key = service::load_journal_key(folder.file("key"), true).value();
  int files = 0;
  for (const Routing routing :
       {Routing::kRoundRobin, Routing::kRandom, Routing::kPrefix, Routing::kLeastLoaded, Routing::kSticky})
    for (const std::uint32_t workers : {1u, 3u}) {
      const ReplayConfig config{
          .workers = workers, .tier_blocks = {60, 90, 0}, .routing = routing, .seed = 4, .has_bound = false};
      const ReplayOutcome plain = simulate(trace, config).value();
      const std::string path = folder.file(std::to_string(++files) + ".journal");
      auto journal =
          service::JournalWriter::create({.path = path, .key = key, .router = {.seed = config.seed}}).value();
      const ReplayOutcome logged = simulate(trace, config, {}, journal.get()).value();
      ASSERT_TRUE(journal->flush());
      const std::string what = std::string(to_string(routing)) + " " + std::to_string(workers);
      EXPECT_EQ(logged.total.hits, plain.total.hits) << what;
      EXPECT_EQ(logged.total.latency_ms, plain.total.latency_ms) << what;
      std::vector<service::WorkerLoad> last;
      const auto report = service::replay_journal(
          std::span(&path, 1), key, {}, [&](Clock::TimePoint, const auto& loads) { last = loads(); });
      ASSERT_TRUE(report) << report.error();
      EXPECT_EQ(report->decisions, 400u) << what;
      EXPECT_EQ(report->differences, 0u) << what;
      ASSERT_EQ(last.size(), workers);
      for (std::uint32_t i = 0; i < workers; ++i) {
        EXPECT_EQ(last[i].chosen, logged.workers[i].requests) << what;
        EXPECT_LE(last[i].tiers[0].held, 60u) << what;
        EXPECT_GT(last[i].tiers[1].stored, 0u) << what;
      }
    }
}

TEST(SimulateTest, TheRouterSeesWhatWorkersHold) {
  // All tiers, and pools so small that blocks come, go and come again within a request.
  const TraceTable trace = random_trace(9, 1'500, 20);
  const ReplayConfig config{.workers = 3, .tier_blocks = {24, 30, 60}, .routing = Routing::kPrefix};
  const Served once = serve_all(trace, config);
  const Served again = serve_all(trace, config);
  EXPECT_EQ(once.hits, again.hits);
  EXPECT_EQ(once.workers, again.workers);
  EXPECT_GT(once.outcome.total.hits[2], 0u);
}

TEST(SimulateTest, KeepsTheHeadOfARequestThatIsTooLong) {
  const TraceTable trace = table_of({request_of(0, {1, 2, 3, 4, 5}), request_of(1, {1, 2, 3, 4, 5})});
  const auto outcome = simulate(trace, {.tier_blocks = {3, 0, 0}}).value();
  EXPECT_EQ(outcome.refused, 2u);
  EXPECT_EQ(outcome.total.hits[0], 3u);
  EXPECT_THAT(outcome.total.misses, ElementsAre(7u, 0u, 0u, 0u)) << "the rest was never cached";
  EXPECT_EQ(outcome.bound_hits, 3u);
}

TEST(SimulateTest, ARequestMayNameABlockTwice) {
  // No prompt does; a trace may.
  Random random(1);
  std::vector<TraceRequest> requests;
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t k = 1 + random.below(6); k > 0; --k) blocks.push_back(random.below(60));
    requests.push_back(request_of(i, std::move(blocks)));
  }
  const TraceTable trace = table_of(std::move(requests));
  for (const std::string& policy : block::eviction_names()) {
    const auto outcome =
        simulate(trace, {.workers = 2, .tier_blocks = {8, 12, 20}, .policy = policy}).value();
    EXPECT_EQ(outcome.total.blocks, trace.named());
    EXPECT_GT(outcome.total.hit_blocks(), 0u) << policy;
  }
}

TEST(SimulateTest, TracesWithoutBlocksAreServed) {
  TraceRequest plain{.arrival_ms = 5, .input_tokens = 100, .output_tokens = 5};
  const TraceTable trace = table_of({plain, plain});
  const auto outcome = simulate(trace, {.workers = 2}).value();
  EXPECT_EQ(outcome.total.blocks, 0u);
  EXPECT_EQ(outcome.total.hit_rate(), 0);
  EXPECT_DOUBLE_EQ(outcome.latency.p50, 5);  // 100 tokens at 20,000 a second, at two workers
}

TEST(SimulateTest, RefusesWhatCannotBe) {
  const TraceTable trace = table_of({request_of(0, {1})});
  const auto refusal = [&](const ReplayConfig& config) { return simulate(trace, config).error().message(); };
  EXPECT_THAT(refusal({.workers = 0}), HasSubstr("workers"));
  EXPECT_THAT(refusal({.tier_blocks = {0, 1, 1}}), HasSubstr("G1"));
  EXPECT_THAT(refusal({.tier_blocks = {1, 0, 1}}), HasSubstr("through G2"));
  EXPECT_THAT(refusal({.policy = "best"}), HasSubstr("lru"));
  EXPECT_THAT(refusal({.tier_policy = {"", "best", ""}}), HasSubstr("lru"));
  EXPECT_THAT(refusal({.prefill_tokens_per_second = 0}), HasSubstr("prefill"));
  EXPECT_THAT(refusal({.windows = 0}), HasSubstr("windows"));
  EXPECT_THAT(parse_routing("best").error().message(), HasSubstr("round_robin"));
  EXPECT_EQ(simulate(random_trace(1, 5'000, 4), {}, [](std::uint64_t, std::uint64_t) { return false; })
                .error()
                .code(),
            ErrorCode::kCancelled);
}

}  // namespace
}  // namespace ashlar::replay
