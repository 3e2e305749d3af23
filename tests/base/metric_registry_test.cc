#include "ashlar/base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ashlar {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::kInternal : result.error().code();
}

TEST(MetricRegistryTest, EmptyRegistryWritesAnEmptyPage) {
  EXPECT_EQ(MetricRegistry().prometheus_text(), "");
}

TEST(MetricRegistryTest, WritesThePrometheusTextFormat) {
  MetricRegistry registry;
  Counter* g2 = *registry.counter({"ashlar_blocks_total", "Blocks taken", {{"tier", "g2"}}});
  Counter* g1 =
      *registry.counter({"ashlar_blocks_total", "Blocks taken", {{"tier", "g1"}, {"pool", "main"}}});
  Gauge* bytes = *registry.gauge({"ashlar_bytes", "Bytes in use"});
  Histogram* wait = *registry.histogram({"ashlar_wait_seconds", "Time waited", {{"queue", "q"}}},
                                        {1'000, 500'000'000, 2'000'000'000}, 1'000'000'000);
  Histogram* size = *registry.histogram({"ashlar_batch", "Batch sizes"}, {1, 8});
  auto load = registry.add({"ashlar_load", "Load"}, [] { return 0.25; });
  ASSERT_TRUE(load.has_value());
  g1->add(3);
  g2->add(18446744073709551615U);
  bytes->set(-4096);
  wait->observe(1'000);
  wait->observe(250'000'000);
  wait->observe(3'000'000'000);
  size->observe(9);

  EXPECT_EQ(registry.prometheus_text(),
            R"(# HELP ashlar_batch Batch sizes
# TYPE ashlar_batch histogram
ashlar_batch_bucket{le="1"} 0
ashlar_batch_bucket{le="8"} 0
ashlar_batch_bucket{le="+Inf"} 1
ashlar_batch_sum 9
ashlar_batch_count 1
# HELP ashlar_blocks_total Blocks taken
# TYPE ashlar_blocks_total counter
ashlar_blocks_total{pool="main",tier="g1"} 3
ashlar_blocks_total{tier="g2"} 18446744073709551615
# HELP ashlar_bytes Bytes in use
# TYPE ashlar_bytes gauge
ashlar_bytes -4096
# HELP ashlar_load Load
# TYPE ashlar_load gauge
ashlar_load 0.25
# HELP ashlar_wait_seconds Time waited
# TYPE ashlar_wait_seconds histogram
ashlar_wait_seconds_bucket{queue="q",le="1e-06"} 1
ashlar_wait_seconds_bucket{queue="q",le="0.5"} 2
ashlar_wait_seconds_bucket{queue="q",le="2"} 2
ashlar_wait_seconds_bucket{queue="q",le="+Inf"} 3
ashlar_wait_seconds_sum{queue="q"} 3.250001
ashlar_wait_seconds_count{queue="q"} 3
)");
}

TEST(MetricRegistryTest, EscapesHelpAndLabelValues) {
  MetricRegistry registry;
  ASSERT_TRUE(registry.gauge({"g", "a\\b\n\"c\"", {{"path", "x\\y\n\"z\""}}}).has_value());
  EXPECT_EQ(registry.prometheus_text(),
            "# HELP g a\\\\b\\n\"c\"\n# TYPE g gauge\ng{path=\"x\\\\y\\n\\\"z\\\"\"} 0\n");
}

TEST(MetricRegistryTest, WritesNumbersThatAreNotFinite) {
  MetricRegistry registry;
  const auto nan = registry.add({"a", ""}, [] { return std::nan(""); });
  const auto up = registry.add({"b", ""}, [] { return std::numeric_limits<double>::infinity(); });
  const auto down = registry.add({"c", ""}, [] { return -std::numeric_limits<double>::infinity(); });
  const std::string text = registry.prometheus_text();
  EXPECT_THAT(text, HasSubstr("\na NaN\n"));
  EXPECT_THAT(text, HasSubstr("\nb +Inf\n"));
  EXPECT_THAT(text, HasSubstr("\nc -Inf\n"));
}

TEST(MetricRegistryTest, SameNameAndLabelsGiveTheSameMetric) {
  MetricRegistry registry;
  Counter* one = *registry.counter({"c", "", {{"a", "1"}, {"b", "2"}}});
  EXPECT_EQ(*registry.counter({"c", "", {{"b", "2"}, {"a", "1"}}}), one);
  EXPECT_NE(*registry.counter({"c", "", {{"a", "1"}}}), one);
  Histogram* histogram = *registry.histogram({"h", ""}, {1, 2});
  EXPECT_EQ(*registry.histogram({"h", ""}, {1, 2}), histogram);
  EXPECT_EQ(*registry.gauge({"g", ""}), *registry.gauge({"g", ""}));
}

TEST(MetricRegistryTest, HistogramWithOtherBoundsIsRefused) {
  MetricRegistry registry;
  ASSERT_TRUE(registry.histogram({"h", ""}, {1, 2}).has_value());
  EXPECT_EQ(code_of(registry.histogram({"h", ""}, {1, 3})), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code_of(registry.histogram({"h", ""}, {1, 2}, 10)), ErrorCode::kAlreadyExists);
}

TEST(MetricRegistryTest, NameOfAnotherTypeIsRefused) {
  MetricRegistry registry;
  ASSERT_TRUE(registry.counter({"m", ""}).has_value());
  const auto gauge = registry.gauge({"m", "", {{"a", "1"}}});
  ASSERT_FALSE(gauge.has_value());
  EXPECT_EQ(gauge.error().to_string(),
            "already_exists: metric 'm' is a counter already and cannot also be a gauge");
  EXPECT_EQ(code_of(registry.histogram({"m", ""}, {1})), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code_of(registry.add({"m", ""}, [] { return 1.0; })), ErrorCode::kAlreadyExists);
}

TEST(MetricRegistryTest, BadNamesAreRefused) {
  MetricRegistry registry;
  for (const char* name : {"", "1a", "a-b", "a b", "a.b", "\xc3\xa4"}) {
    EXPECT_EQ(code_of(registry.counter({name, ""})), ErrorCode::kInvalidArgument) << name;
  }
  for (const char* label : {"", "1a", "a:b", "__a", "a-b"}) {
    EXPECT_EQ(code_of(registry.counter({"ok", "", {{label, "v"}}})), ErrorCode::kInvalidArgument) << label;
  }
  EXPECT_EQ(code_of(registry.counter({"ok", "", {{"a", "1"}, {"a", "2"}}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(registry.histogram({"ok", "", {{"le", "1"}}}, {1})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(registry.prometheus_text(), "");
  EXPECT_TRUE(registry.counter({":a_Z9", "", {{"_x", ""}, {"le", ""}}}).has_value());
}

TEST(MetricRegistryTest, SeriesOfAHistogramCannotBeNamedAgain) {
  MetricRegistry registry;
  ASSERT_TRUE(registry.histogram({"h", ""}, {1}).has_value());
  EXPECT_EQ(code_of(registry.counter({"h_count", ""})), ErrorCode::kAlreadyExists);
  ASSERT_TRUE(registry.counter({"x_sum", ""}).has_value());
  EXPECT_EQ(code_of(registry.histogram({"x", ""}, {1})), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(registry.counter({"x_count", ""}).has_value());
}

TEST(MetricRegistrationTest, ViewShowsTheOwnersValueUntilItIsDestroyed) {
  MetricRegistry registry;
  Counter counter;
  Gauge gauge;
  Histogram histogram({1});
  {
    const auto one = registry.add({"c", "Help"}, counter);
    const auto two = registry.add({"g", ""}, gauge);
    const auto three = registry.add({"h", ""}, histogram);
    const auto four = registry.add_counter({"k_total", ""}, [&] { return counter.value() << 60; });
    ASSERT_TRUE(one && two && three && four);
    counter.add(2);
    gauge.set(3);
    histogram.observe(1);
    const std::string text = registry.prometheus_text();
    EXPECT_THAT(text, HasSubstr("\nc 2\n"));
    EXPECT_THAT(text, HasSubstr("\ng 3\n"));
    EXPECT_THAT(text, HasSubstr("\nh_count 1\n"));
    EXPECT_THAT(text, HasSubstr("# TYPE k_total counter\nk_total 2305843009213693952\n"));
  }
  EXPECT_EQ(registry.prometheus_text(), "");
}

TEST(MetricRegistrationTest, NameIsFreeForAnotherTypeAfterwards) {
  MetricRegistry registry;
  const Counter counter;
  auto registration = registry.add({"m", ""}, counter);
  ASSERT_TRUE(registration.has_value());
  EXPECT_FALSE(registry.gauge({"m", ""}).has_value());
  registration->unregister();
  registration->unregister();
  EXPECT_TRUE(registry.gauge({"m", ""}).has_value());
}

TEST(MetricRegistrationTest, RefusedViewLeavesTheFirstInPlace) {
  MetricRegistry registry;
  Counter first;
  const Counter second;
  const auto held = registry.add({"c", ""}, first);
  EXPECT_EQ(code_of(registry.add({"c", ""}, second)), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code_of(registry.counter({"c", ""})), ErrorCode::kAlreadyExists);
  first.add(5);
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("\nc 5\n"));
}

TEST(MetricRegistrationTest, ViewOfAnOwnedNameIsRefused) {
  MetricRegistry registry;
  ASSERT_TRUE(registry.counter({"c", ""}).has_value());
  const Counter counter;
  EXPECT_EQ(code_of(registry.add({"c", ""}, counter)), ErrorCode::kAlreadyExists);
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("\nc 0\n"));
}

TEST(MetricRegistrationTest, MovesAndReplaces) {
  MetricRegistry registry;
  const Counter one;
  const Counter two;
  MetricRegistration registration = *registry.add({"one", ""}, one);
  MetricRegistration moved = std::move(registration);
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("one 0"));
  moved = *registry.add({"two", ""}, two);
  EXPECT_THAT(registry.prometheus_text(), Not(HasSubstr("one 0")));
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("two 0"));
}

TEST(MetricRegistrationTest, MayOutliveTheRegistry) {
  std::optional<MetricRegistry> registry(std::in_place);
  const Counter counter;
  auto registration = registry->add({"c", ""}, counter);
  ASSERT_TRUE(registration.has_value());
  registry.reset();
  registration->unregister();
}

TEST(MetricRegistrationTest, CallbackMayUseTheRegistry) {
  MetricRegistry registry;
  const auto registration = registry.add({"a", ""}, [&] {
    (*registry.counter({"inner", ""}))->add();
    return 1.0;
  });
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("\na 1\n"));
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("\ninner 2\n"));
}

TEST(MetricRegistrationTest, UnregisteringWaitsForACallbackThatRuns) {
  MetricRegistry registry;
  std::atomic<bool> entered{false};
  std::atomic<bool> leave{false};
  auto alive = std::make_unique<std::atomic<bool>>(true);
  auto registration = registry.add({"g", ""}, [&, value = alive.get()] {
    entered = true;
    while (!leave) std::this_thread::yield();
    return value->load() ? 1.0 : 0.0;
  });
  ASSERT_TRUE(registration.has_value());
  std::string text;
  std::thread scraper([&] { text = registry.prometheus_text(); });
  while (!entered) std::this_thread::yield();
  std::thread owner([&] {
    registration->unregister();
    alive.reset();
  });
  leave = true;
  owner.join();
  scraper.join();
  EXPECT_THAT(text, HasSubstr("\ng 1\n"));
}

TEST(MetricRegistryTest, ThreadsRegisterCountAndScrapeTogether) {
  MetricRegistry registry;
  std::atomic<int> running{4};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        Counter own;
        own.add();
        const auto view = registry.add({"own", "", {{"thread", std::to_string(i)}}}, own);
        EXPECT_TRUE(view.has_value());
        (*registry.counter({"shared_total", ""}))->add();
      }
      --running;
    });
  }
  while (running > 0) EXPECT_THAT(registry.prometheus_text(), Not(HasSubstr("} 0\n")));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.prometheus_text(),
            "# HELP shared_total \n# TYPE shared_total counter\nshared_total 200\n");
}

TEST(MetricRegistryTest, CountersThatComeAndGo) {
  MetricRegistry registry;
  std::map<std::string, std::uint64_t> now;
  const MetricDescription put{"put_total", "Objects", {{"zone", "a"}, {"model", "m"}}};
  {
    const auto added = registry.add_counters(put, "volume", [&] { return now; });
    ASSERT_TRUE(added.has_value());
    EXPECT_EQ(registry.prometheus_text(), "") << "there is none yet";
    now = {{"w", 2}, {"v", 1}};
    EXPECT_EQ(registry.prometheus_text(),
              "# HELP put_total Objects\n# TYPE put_total counter\n"
              "put_total{model=\"m\",volume=\"v\",zone=\"a\"} 1\n"
              "put_total{model=\"m\",volume=\"w\",zone=\"a\"} 2\n");
    now.erase("v");
    EXPECT_THAT(registry.prometheus_text(), Not(HasSubstr("\"v\"")));
    EXPECT_EQ(code_of(registry.add_counters(put, "volume", [&] { return now; })), ErrorCode::kAlreadyExists);
  }
  EXPECT_EQ(registry.prometheus_text(), "");
  EXPECT_EQ(code_of(registry.add_counters(put, "zone", [&] { return now; })), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(registry.add_counters(put, "1", [&] { return now; })), ErrorCode::kInvalidArgument);
  EXPECT_EQ(registry.prometheus_text(), "");
}

TEST(MetricRegistryDeathTest, EmptyCallbackStops) {
  MetricRegistry registry;
  EXPECT_DEATH((void)registry.add({"g", ""}, std::function<double()>()),
               "metric 'g' was added with an empty callback");
}

}  // namespace
}  // namespace ashlar
