// The hits of every cache size from one pass, beside a naive LRU cache of each size.
#include "replay/plan/capacity_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <unordered_map>

#include "ashlar/base/random.h"
#include "ashlar/replay/generate.h"
#include "replay/plan/stack_distance.h"

namespace ashlar::replay {
namespace {

// One list, the most recently used first.
class NaiveLru {
 public:
  explicit NaiveLru(std::size_t capacity) : capacity_(capacity) {}
  bool access(std::uint64_t block) {
    const auto found = places_.find(block);
    const bool is_hit = found != places_.end();
    if (is_hit) order_.erase(found->second);
    order_.push_front(block);
    places_[block] = order_.begin();
    if (order_.size() > capacity_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    return is_hit;
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
      const bool is_hit = cache.access(block);
      is_prefix &= is_hit;
      ++hits.accesses;
      hits.block += is_hit;
      hits.prefix += is_prefix;
    }
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
    ASSERT_EQ(stack.access(block), expected) << "access " << i;
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
    }
  }
}

TEST(CapacityCurveTest, RefusesWhatItCannotFollow) {
  for (const double rate : {0.0, -1.0, 1.5, std::nan("")}) {
    RandomSource source(1, 10);
    EXPECT_FALSE(CapacityCurve::build(source, {.rate = rate})) << rate;
  }
  RandomSource none(1, 0);
  const auto empty = CapacityCurve::build(none);
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message().find("names no blocks"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::replay
