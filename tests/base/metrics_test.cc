#include "ashlar/base/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/mutex.h"

namespace ashlar {
namespace {

template <class Body>
void in_threads(int count, Body body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST(CounterTest, StartsAtZeroAndAdds) {
  Counter counter;
  EXPECT_EQ(counter.value(), 0U);
  counter.add();
  counter.add(41);
  EXPECT_EQ(counter.value(), 42U);
}

TEST(CounterTest, AddsOfManyThreadsAreExact) {
  Counter counter;
  in_threads(8, [&](int thread) {
    for (int i = 0; i < 10000; ++i) counter.add(static_cast<std::uint64_t>(thread));
  });
  EXPECT_EQ(counter.value(), 10000U * (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7));
}

TEST(CounterTest, CountsOfEndedThreadsStay) {
  Counter counter;
  for (int i = 0; i < 200; ++i) std::thread([&] { counter.add(); }).join();
  EXPECT_EQ(counter.value(), 200U);
}

TEST(CounterTest, ValueNeverFallsWhileThreadsAdd) {
  Counter counter;
  std::atomic<bool> done{false};
  std::thread adder([&] {
    for (int i = 0; i < 20000; ++i) counter.add();
    done = true;
  });
  std::uint64_t last = 0;
  while (!done) {
    const std::uint64_t seen = counter.value();
    ASSERT_GE(seen, last);
    last = seen;
  }
  adder.join();
  EXPECT_EQ(counter.value(), 20000U);
}

// Counts when its thread ends, after the stripe was handed on: it was made before the stripe was claimed.
struct CountsAtTheEnd {
  explicit CountsAtTheEnd(Counter& c) : counter(c) {}
  ~CountsAtTheEnd() {
    for (int i = 0; i < 1000; ++i) counter.add();
  }
  CountsAtTheEnd(const CountsAtTheEnd&) = delete;
  CountsAtTheEnd& operator=(const CountsAtTheEnd&) = delete;
  Counter& counter;
};

TEST(CounterTest, CountsOfAThreadsLastDestructorsAreExact) {
  Counter counter;
  for (int round = 0; round < 5; ++round) {
    in_threads(8, [&](int) {
      static thread_local const CountsAtTheEnd at_the_end(counter);
      for (int i = 0; i < 1000; ++i) at_the_end.counter.add();
    });
  }
  EXPECT_EQ(counter.value(), 5U * 8U * 2000U);
}

TEST(CounterTest, MoreLivingThreadsThanStripesAreExact) {
  constexpr std::uint64_t kThreads = detail::kOwnStripes + 20;
  Counter counter;
  Histogram histogram({5});
  Mutex mu;
  CondVar arrived;
  std::uint64_t alive = 0;
  in_threads(static_cast<int>(kThreads), [&](int) {
    {
      const MutexLock lock(mu);
      ++alive;
      counter.add();
      arrived.notify_all();
      while (alive < kThreads) arrived.wait(mu);
    }
    for (int i = 0; i < 500; ++i) counter.add();
    for (int i = 0; i < 500; ++i) histogram.observe(3);
  });
  EXPECT_EQ(counter.value(), kThreads * 501);
  EXPECT_EQ(histogram.snapshot().count, kThreads * 500);
  EXPECT_EQ(histogram.snapshot().sum, kThreads * 1500);
}

TEST(CounterTest, ThreadsAliveTogetherUseDifferentStripes) {
  constexpr int kThreads = 12;
  Mutex mu;
  CondVar arrived;
  std::multiset<std::uint32_t> stripes;
  in_threads(kThreads, [&](int) {
    const MutexLock lock(mu);
    stripes.insert(detail::stripe_of_this_thread());
    arrived.notify_all();
    while (stripes.size() < kThreads) arrived.wait(mu);
  });
  EXPECT_EQ(std::set<std::uint32_t>(stripes.begin(), stripes.end()).size(),
            static_cast<std::size_t>(kThreads));
  EXPECT_LT(*stripes.rbegin(), detail::kOwnStripes);
}

TEST(GaugeTest, IsSetAndMovesBothWays) {
  Gauge gauge;
  EXPECT_EQ(gauge.value(), 0);
  gauge.set(10);
  gauge.add(5);
  gauge.add(-25);
  EXPECT_EQ(gauge.value(), -10);
}

TEST(GaugeTest, AddsOfManyThreadsAreExact) {
  Gauge gauge;
  in_threads(4, [&](int) {
    for (int i = 0; i < 5000; ++i) gauge.add(i % 2 == 0 ? 3 : -1);
  });
  EXPECT_EQ(gauge.value(), 4 * 5000);
}

TEST(HistogramTest, StartsEmpty) {
  const Histogram histogram({1, 2});
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.buckets, (std::vector<std::uint64_t>{0, 0, 0}));
  EXPECT_EQ(snapshot.count, 0U);
  EXPECT_EQ(snapshot.sum, 0U);
}

TEST(HistogramTest, BoundBelongsToItsOwnBucket) {
  Histogram histogram({10, 20});
  for (const std::uint64_t value : {0, 10, 11, 20, 21, 1000}) histogram.observe(value);
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.buckets, (std::vector<std::uint64_t>{2, 2, 2}));
  EXPECT_EQ(snapshot.count, 6U);
  EXPECT_EQ(snapshot.sum, 1062U);
}

TEST(HistogramTest, WithoutBoundsCountsAndSums) {
  Histogram histogram({});
  histogram.observe(4);
  histogram.observe(5);
  EXPECT_EQ(histogram.snapshot().count, 2U);
  EXPECT_EQ(histogram.snapshot().sum, 9U);
}

TEST(HistogramTest, ObservationsOfManyThreadsAreExact) {
  const std::vector<std::uint64_t> bounds = Histogram::exponential_bounds(1, 2, 20);
  Histogram histogram(bounds);
  in_threads(10, [&](int) {
    for (std::uint64_t i = 0; i < 2000; ++i) histogram.observe(i);
  });
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.count, 20000U);
  EXPECT_EQ(snapshot.sum, 10U * (1999U * 2000U / 2));
  EXPECT_EQ(snapshot.buckets[0], 20U);  // 0 and 1
  EXPECT_EQ(snapshot.buckets[1], 10U);  // 2
  EXPECT_EQ(snapshot.buckets[2], 20U);  // 3 and 4
}

TEST(HistogramTest, ExponentialBoundsGrowByTheirFactor) {
  EXPECT_EQ(Histogram::exponential_bounds(5, 10, 4), (std::vector<std::uint64_t>{5, 50, 500, 5000}));
  EXPECT_TRUE(Histogram::exponential_bounds(1, 2, 0).empty());
  EXPECT_EQ(Histogram::exponential_bounds(1, 2, 64).back(), std::uint64_t{1} << 63);
}

TEST(HistogramDeathTest, RefusesBoundsThatDoNotRise) {
  EXPECT_DEATH(Histogram({1, 3, 3}), "must rise, but bound 2 does not");
  EXPECT_DEATH(Histogram({2, 1}), "must rise, but bound 1 does not");
  EXPECT_DEATH(Histogram({1}, 0), "divisor must not be 0");
  EXPECT_DEATH(Histogram::exponential_bounds(1, 2, 65), "does not fit in 64 bits");
}

}  // namespace
}  // namespace ashlar
