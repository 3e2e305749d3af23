// The hits of every cache size from one pass, beside a naive LRU cache of each size.
#include "replay/plan/capacity_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <list>
#include <unordered_map>

#include "ashlar/base/random.h"
#include "ashlar/replay/generate.h"
#include "ashlar/replay/simulate.h"
#include "replay/plan/stack_distance.h"
#include "replay/simulate/random_trace.h"
#include "support/scratch_folder.h"

namespace ashlar::replay {
namespace {

// One list, the most recently used first.
class NaiveLru {
 public:
  explicit NaiveLru(std::size_t capacity) : capacity_(capacity) {}
  bool has(std::uint64_t block) const { return places_.contains(block); }
  // From the last to the first, as one step.
  void use(const std::vector<std::uint64_t>& blocks) {
    for (std::size_t i = blocks.size(); i-- > 0;) {
      if (const auto found = places_.find(blocks[i]); found != places_.end()) order_.erase(found->second);
      order_.push_front(blocks[i]);
      places_[blocks[i]] = order_.begin();
    }
    while (order_.size() > capacity_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
  }

 private:
  const std::size_t capacity_;
  std::list<std::uint64_t> order_;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

struct NaiveHits {
  std::uint64_t accesses = 0;
  std::uint64_t block = 0;
  std::uint64_t prefix = 0;
};

NaiveHits simulate_naive(TraceSource& source, std::size_t capacity) {
  NaiveLru cache(capacity);
  NaiveHits hits;
  TraceRequest request;
  while (source.next(request).value()) {
    bool is_prefix = true;
    for (const std::uint64_t block : request.blocks) {
      const bool is_hit = cache.has(block);
      is_prefix &= is_hit;
      ++hits.accesses;
      hits.block += is_hit;
      hits.prefix += is_prefix;
    }
    cache.use(request.blocks);
  }
  return hits;
}

// Requests of random blocks, without any order among them.
class RandomSource final : public TraceSource {
 public:
  RandomSource(std::uint64_t seed, std::uint64_t requests) : random_(seed), left_(requests) {
    facts_.block_size = 16;
  }
  Result<bool> next(TraceRequest& out) override {
    if (left_-- == 0) return false;
    out = {};
    out.arrival_ms = ++facts_.requests * 100;
    for (std::uint64_t i = random_.below(12); i-- > 0;) out.blocks.push_back(random_.below(60));
    return true;
  }
  const TraceFacts& facts() const noexcept override { return facts_; }

 private:
  Random random_;
  std::uint64_t left_;
  TraceFacts facts_;
};

TEST(StackDistancesTest, AreTheSmallestCacheThatHits) {
  Random random(3);
  StackDistances stack;
  std::list<std::uint64_t> order;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t block = random.below(1 + random.below(700));
    std::uint64_t place = 0;
    auto found = order.begin();
    while (found != order.end() && *found != block) ++found, ++place;
    const std::uint64_t expected = found == order.end() ? StackDistances::kCold : place + 1;
    if (found != order.end()) order.erase(found);
    order.push_front(block);
    ASSERT_EQ(stack.distance_of(block), expected) << "access " << i;
    stack.access(block);
  }
  EXPECT_EQ(stack.distinct(), order.size());
}

TEST(CapacityCurveTest, AgreesBlockForBlockWithALruCacheOfEverySize) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    RandomSource source(seed, 400);
    const CapacityCurve curve = CapacityCurve::build(source).value();
    for (std::size_t size = 1; size <= 70; ++size) {
      RandomSource again(seed, 400);
      const NaiveHits naive = simulate_naive(again, size);
      ASSERT_EQ(curve.accesses(), naive.accesses);
      const auto total = static_cast<double>(naive.accesses);
      ASSERT_EQ(std::llround(curve.block_hits(static_cast<double>(size)) * total), naive.block) << size;
      ASSERT_EQ(std::llround(curve.prefix_hits(static_cast<double>(size)) * total), naive.prefix) << size;
    }
    EXPECT_EQ(curve.block_hits(0), 0);
    EXPECT_EQ(curve.error(10), 0) << "it is exact";
  }
}

TEST(CapacityCurveTest, AgreesOnWorkloadsToo) {
  for (const WorkloadKind kind : {WorkloadKind::kChat, WorkloadKind::kAgents, WorkloadKind::kDocuments}) {
    const GeneratorOptions options{.kind = kind, .requests = 300, .block_size = 64};
    const CapacityCurve curve = CapacityCurve::build(*generate_trace(options)).value();
    for (const std::size_t size : {10, 100, 500, 1000, 5000, 100'000}) {
      const NaiveHits naive = simulate_naive(*generate_trace(options), size);
      const auto total = static_cast<double>(naive.accesses);
      ASSERT_EQ(std::llround(curve.block_hits(static_cast<double>(size)) * total), naive.block);
      ASSERT_EQ(std::llround(curve.prefix_hits(static_cast<double>(size)) * total), naive.prefix);
    }
    EXPECT_EQ(curve.requests(), 300u);
    const double enough = curve.blocks_for(0.9);
    const double most = curve.prefix_hits(1e18);
    EXPECT_GE(curve.prefix_hits(enough), 0.9 * most);
    EXPECT_LT(curve.prefix_hits(enough - 1), 0.9 * most);
  }
}

// What replay finds at one worker with so many blocks.
void expect_same_as_replay(const std::function<std::unique_ptr<TraceSource>()>& open) {
  const auto source = open();
  const CapacityCurve curve = CapacityCurve::build(*source).value();
  const auto again = open();
  const TraceTable trace = TraceTable::load(*again).value();
  std::uint64_t most = 0;
  for (const std::uint32_t size : {1u, 7u, 20u, 60u, 150u, 400u, 1'000u, 3'000u}) {
    const ReplayConfig config{.tier_blocks = {size, 0, 0}, .policy = "lru", .has_bound = false};
    const std::uint64_t found = simulate(trace, config).value().total.hit_blocks();
    const double share = curve.prefix_hits(size);
    EXPECT_EQ(std::llround(share * static_cast<double>(curve.accesses())), found) << size << " blocks";
    most = std::max(most, found);
  }
  EXPECT_GT(most, 0u) << "nothing was compared";
}

TEST(CapacityCurveTest, FindsWhatReplayFinds) {
  expect_same_as_replay(
      [] { return generate_trace({.kind = WorkloadKind::kMix, .requests = 400, .block_size = 64}); });
}

// A file has one session after the other; their requests arrive in turn.
TEST(CapacityCurveTest, FollowsTheTimesOfOverlappingSessions) {
  const ScratchFolder folder;
  std::ofstream file(folder.file("weka.jsonl"));
  for (int session = 0; session < 20; ++session) {
    file << R"({"id":"s)" << session << R"(","block_size":16,"hash_id_scope":"local","requests":[)";
    for (int turn = 0; turn < 10; ++turn) {
      file << (turn == 0 ? "" : ",") << R"({"t":)" << 60 * turn << R"(,"in":)" << 16 * (turn + 4)
           << R"(,"out":1,"hash_ids":[)";
      for (int block = 0; block < turn + 4; ++block) file << (block == 0 ? "" : ",") << block;
      file << "]}";
    }
    file << "]}\n";
  }
  file.close();
  const auto open = [&] { return open_trace(folder.file("weka.jsonl")).value(); };
  expect_same_as_replay(open);
  const auto source = open();
  const CapacityCurve curve = CapacityCurve::build(*source).value();
  EXPECT_EQ(curve.prefix_hits(30), 0) << "in the order of the file one session would fit";
  EXPECT_GT(curve.prefix_hits(260), 0.7);
}

TEST(CapacityCurveTest, StopsWhenAsked) {
  for (const std::uint64_t most : {0, 200, 500}) {
    std::uint64_t calls = 0;
    RandomSource source(1, 300);
    const auto stopped =
        CapacityCurve::build(source, {}, [&](std::uint64_t) { return ++calls * 64 <= most; });
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled) << most;
  }
}

TEST(CapacityCurveTest, ASampleIsWithinItsStatedError) {
  const GeneratorOptions options{.kind = WorkloadKind::kMix, .requests = 3'000, .block_size = 64};
  const CapacityCurve exact = CapacityCurve::build(*generate_trace(options)).value();
  for (const double rate : {0.1, 0.3}) {
    const CapacityCurve sampled = CapacityCurve::build(*generate_trace(options), {.rate = rate}).value();
    EXPECT_FALSE(sampled.is_exact());
    EXPECT_NEAR(sampled.distinct() / exact.distinct(), 1, 0.1);
    for (double size = 64; size < 2 * exact.distinct(); size *= 1.5) {
      const double error = sampled.error(size);
      EXPECT_LT(error, 0.25) << "an error that says nothing, at " << size;
      EXPECT_NEAR(sampled.block_hits(size), exact.block_hits(size), error) << rate << " at " << size;
      EXPECT_NEAR(sampled.prefix_hits(size), exact.prefix_hits(size), error) << rate << " at " << size;
    }
    EXPECT_TRUE(sampled.has_prefix_error());
  }
}

// A block that stands behind another one than before may be there without its prefix.
TEST(CapacityCurveTest, SampledPrefixHitsHaveAnErrorWhereNamesArePrefixes) {
  const auto has_error = [](double rate, bool is_moved) {
    std::vector<TraceRequest> requests;
    for (std::uint64_t i = 0; i < 2'000; ++i)
      requests.push_back(request_of(i, {1, 2 + i, is_moved ? 5'000 + i / 3 : 5'000 + i, 9'000 + i}));
    GivenTrace source(std::move(requests));
    return CapacityCurve::build(source, {.rate = rate}).value().has_prefix_error();
  };
  EXPECT_TRUE(has_error(0.1, false));
  EXPECT_FALSE(has_error(0.1, true));
  EXPECT_TRUE(has_error(1, true)) << "it is exact";
}

TEST(CapacityCurveTest, RefusesWhatItCannotFollow) {
  for (const double rate : {0.0, -1.0, 1.5, std::nan("")}) {
    RandomSource source(1, 10);
    EXPECT_FALSE(CapacityCurve::build(source, {.rate = rate})) << rate;
  }
  RandomSource few(1, 400);  // of 60 blocks
  const auto small = CapacityCurve::build(few, {.rate = 1e-6});
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message().find("blocks; give a larger --sample"), std::string::npos);
  RandomSource none(1, 0);
  const auto empty = CapacityCurve::build(none);
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message().find("has no requests"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::replay
