#include "ashlar/index/use_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/manual_clock.h"
#include "ashlar/testing/time_box.h"
#include "index/adapters/use_counts.h"
#include "index/chain.h"

namespace ashlar::index {
namespace {

using conformance::branch_of;
using conformance::Chain;
using conformance::chain_of;
using std::chrono::seconds;
using Uses = std::vector<std::uint32_t>;

class UseWindowTest : public ::testing::Test {
 protected:
  static std::unique_ptr<UseWindow> make(const UseWindowOptions& options = {}) {
    return UseWindow::create(options).value();
  }
  static Uses uses_of(const UseWindow& window, const Chain& chain) {
    Uses uses(chain.size(), 99);
    const std::size_t used = window.recent_uses(chain.locals, uses);
    EXPECT_EQ(used, static_cast<std::size_t>(std::ranges::count_if(uses, [](auto n) { return n > 0; })));
    return uses;
  }

  testing::ManualClock clock_;
};

TEST_F(UseWindowTest, AQueryUsesTheBlocksOfItsMatchedPrefix) {
  auto window = make();
  auto recorder = window->recorder();
  const Chain chain = chain_of(1, 4);
  const Chain branch = branch_of(chain, 2, 2, 4);
  EXPECT_TRUE(recorder.record(chain.locals, 3));
  EXPECT_TRUE(recorder.record(branch.locals, 4));
  EXPECT_EQ(uses_of(*window, chain), (Uses{0, 0, 0, 0}));  // not collected yet
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{2, 2, 1, 0}));
  EXPECT_EQ(uses_of(*window, branch), (Uses{2, 2, 1, 1}));
  EXPECT_EQ(uses_of(*window, chain_of(3, 2)), (Uses{0, 0}));
  EXPECT_EQ(window->counters().contents, 5u);
  EXPECT_EQ(window->counters().recorded, 2u);
}

TEST_F(UseWindowTest, OddDepthsHaveADefinedMeaning) {
  auto window = make();
  auto recorder = window->recorder();
  const Chain chain = chain_of(1, 3);
  EXPECT_TRUE(recorder.record(chain.locals, 0));    // nothing matched, nothing used
  EXPECT_TRUE(recorder.record({}, 7));              // the same
  EXPECT_TRUE(recorder.record(chain.locals, 100));  // all
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{1, 1, 1}));
  EXPECT_EQ(window->counters().recorded, 1u);
  Uses two(2, 99);
  EXPECT_EQ(window->recent_uses(chain.locals, two), 2u);
  EXPECT_EQ(two, (Uses{1, 1}));
  EXPECT_EQ(window->recent_uses({}, {}), 0u);
}

TEST_F(UseWindowTest, MoreThanOneHoldOfTheLockIsCollectedWhole) {
  auto window = make();
  std::vector<Chain> chains;
  std::optional<UseWindow::Recorder> recorder(window->recorder());
  for (std::uint64_t family = 1; family <= 120; ++family) {
    chains.push_back(chain_of(family, 100));
    for (std::uint64_t i = 0; i <= family % 3; ++i) ASSERT_TRUE(recorder->record(chains.back().locals, 100));
  }
  recorder.reset();
  window->collect(clock_.now());
  EXPECT_EQ(window->counters().recorders, 0u);
  EXPECT_EQ(window->counters().recorded, 240u);
  EXPECT_EQ(window->counters().contents, 12'000u);
  for (std::uint64_t family = 1; family <= 120; ++family)
    EXPECT_EQ(uses_of(*window, chains[family - 1]), Uses(100, static_cast<std::uint32_t>(1 + family % 3)));
  clock_.advance(seconds(1'000));
  window->collect(clock_.now());
  EXPECT_EQ(window->counters().contents, 0u);
}

TEST(UseCountsTest, ContentsAreForgottenInParts) {
  detail::UseCounts counts(6, 100'000);
  ASSERT_TRUE(counts.advance(1, 100));
  const Chain used = chain_of(1, 1'000);
  const Chain later = branch_of(used, 500, 2, 600);
  EXPECT_EQ(counts.use(used.locals), 0u);
  ASSERT_TRUE(counts.advance(3, 100));
  EXPECT_EQ(counts.use(later.locals), 0u);
  // The 500 that were not used again go; a reader between the parts sees what is left.
  std::size_t parts = 0;
  Uses uses(1'000);
  for (; !counts.advance(7, 100); ++parts) {
    EXPECT_LE(counts.read(used.locals, uses), 1'000u);
    EXPECT_EQ(counts.read(later.locals, uses), 600u);
    EXPECT_EQ(uses[0], 2u);
  }
  EXPECT_EQ(parts, 4u);
  EXPECT_EQ(counts.contents(), 600u);
  EXPECT_EQ(counts.read(used.locals, uses), 500u);
  EXPECT_EQ(uses[0], 1u);
}

TEST_F(UseWindowTest, ABlockIsToldByItsWholePrefix) {
  auto window = make();
  auto recorder = window->recorder();
  Chain first = chain_of(1, 2);
  Chain second = chain_of(2, 2);
  second.locals[1] = first.locals[1];
  recorder.record(first.locals, 2);
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, second), (Uses{0, 0}));
}

TEST_F(UseWindowTest, UsesLeaveTheWindowBucketByBucket) {
  auto window = make({.window = seconds(60), .buckets = 6});
  auto recorder = window->recorder();
  const Chain chain = chain_of(1, 3);
  clock_.advance(seconds(9));  // at the start of a bucket of 10 s
  for (std::size_t depth = 3; depth >= 1; --depth) {
    recorder.record(chain.locals, depth);
    window->collect(clock_.now());
    clock_.advance(seconds(10));
  }
  EXPECT_EQ(uses_of(*window, chain), (Uses{3, 2, 1}));
  clock_.advance(seconds(20));
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{3, 2, 1}));
  clock_.advance(seconds(10));
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{2, 1, 0}));
  clock_.advance(seconds(10));
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{1, 0, 0}));
  recorder.record(chain.locals, 2);
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{2, 1, 0}));
  clock_.advance(seconds(1000));
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{0, 0, 0}));
  EXPECT_EQ(window->counters().contents, 0u);
  EXPECT_EQ(window->counters().bytes, 0u);
}

TEST_F(UseWindowTest, TimeThatRunsBackIsTheLatestSoFar) {
  auto window = make();
  auto recorder = window->recorder();
  const Chain chain = chain_of(1, 1);
  window->collect(Clock::TimePoint(seconds(1000)));
  recorder.record(chain.locals, 1);
  window->collect(Clock::TimePoint(seconds(10)));
  window->collect(Clock::TimePoint(seconds(-10)));
  EXPECT_EQ(uses_of(*window, chain), (Uses{1}));
  window->collect(Clock::TimePoint(seconds(1049)));
  EXPECT_EQ(uses_of(*window, chain), (Uses{1}));
  window->collect(Clock::TimePoint(seconds(1060)));
  EXPECT_EQ(uses_of(*window, chain), (Uses{0}));
}

TEST_F(UseWindowTest, AFullRingDropsAndCounts) {
  auto window = make({.ring_blocks = 16});
  auto recorder = window->recorder();
  const Chain chain = chain_of(1, 7);
  EXPECT_TRUE(recorder.record(chain.locals, 7));
  EXPECT_TRUE(recorder.record(chain.locals, 6));
  EXPECT_FALSE(recorder.record(chain.locals, 1));  // one word is left, two are needed
  EXPECT_FALSE(recorder.record(chain_of(1, 16).locals, 16));
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{2, 2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(window->counters().dropped, 2u);
  EXPECT_TRUE(recorder.record(chain_of(1, 15).locals, 15));
  EXPECT_FALSE(recorder.record(chain.locals, 1));
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{3, 3, 3, 3, 3, 3, 2}));
}

TEST_F(UseWindowTest, TheOldestBucketMakesRoom) {
  auto window = make({.window = seconds(60), .buckets = 6, .max_contents = 10});
  auto recorder = window->recorder();
  const Chain old = chain_of(1, 6);
  const Chain kept = branch_of(old, 2, 2, 4);
  recorder.record(old.locals, 6);
  window->collect(clock_.now());
  clock_.advance(seconds(10));
  recorder.record(kept.locals, 4);
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, old), (Uses{2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(window->counters().contents, 8u);
  clock_.advance(seconds(10));
  const Chain fresh = chain_of(3, 5);
  recorder.record(fresh.locals, 5);
  window->collect(clock_.now());
  // The first bucket went whole, also where contents stay.
  EXPECT_EQ(uses_of(*window, old), (Uses{1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(uses_of(*window, kept), (Uses{1, 1, 1, 1}));
  EXPECT_EQ(uses_of(*window, fresh), (Uses{1, 1, 1, 1, 1}));
  EXPECT_EQ(window->counters().shortened, 1u);
  EXPECT_EQ(window->counters().uncounted, 0u);

  // With the current bucket alone there is nothing to give up.
  const Chain large = chain_of(4, 30);
  recorder.record(large.locals, 30);
  window->collect(clock_.now());
  EXPECT_EQ(window->counters().contents, 10u);
  EXPECT_EQ(window->counters().shortened, 2u);
  EXPECT_EQ(window->counters().uncounted, 25u);
  EXPECT_EQ(uses_of(*window, fresh), (Uses{1, 1, 1, 1, 1}));
  const Uses some = uses_of(*window, large);
  EXPECT_EQ(std::accumulate(some.begin(), some.end(), 0u), 5u);
}

TEST_F(UseWindowTest, ARecorderThatGoesLeavesItsUses) {
  auto window = make();
  const Chain chain = chain_of(1, 2);
  {
    auto recorder = window->recorder();
    recorder.record(chain.locals, 2);
    auto moved = std::move(recorder);
    moved.record(chain.locals, 1);
  }
  EXPECT_EQ(window->counters().recorders, 1u);
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{2, 1}));
  EXPECT_EQ(window->counters().recorders, 0u);
  EXPECT_EQ(window->counters().recorded, 2u);
}

TEST_F(UseWindowTest, ARecorderMayOutliveTheWindow) {
  const Chain chain = chain_of(1, 2);
  std::optional<UseWindow::Recorder> recorder;
  {
    auto window = make();
    recorder = window->recorder();
  }
  EXPECT_TRUE(recorder->record(chain.locals, 2));
}

TEST_F(UseWindowTest, ComposesWithAnIndex) {
  testing::IndexOracle index;
  const Chain chain = chain_of(1, 5);
  const auto blocks = chain.blocks(0, 3);
  index.store({{WorkerId(1), 0}, StorageTier::kDevice, {}, {}, blocks});
  auto window = make();
  auto recorder = window->recorder();
  MatchScores scores;
  index.find_matches(chain.locals, scores);
  recorder.record(chain.locals, scores.longest());
  window->collect(clock_.now());
  EXPECT_EQ(uses_of(*window, chain), (Uses{1, 1, 1, 0, 0}));
}

TEST_F(UseWindowTest, WrongOptionsAreRefusedWithTheValue) {
  const auto message = [](const UseWindowOptions& options) {
    auto window = UseWindow::create(options);
    return window ? std::string() : window.error().message();
  };
  EXPECT_EQ(message({.buckets = 0}), "buckets is 0; it must be 1 to 64");
  EXPECT_EQ(message({.buckets = 65}), "buckets is 65; it must be 1 to 64");
  EXPECT_EQ(message({.window = Clock::Duration(5)}),
            "window is 5 ns; it must be at least 1 ns for each of the 6 buckets");
  EXPECT_EQ(message({.max_contents = 0}), "max_contents is 0; it must be 1 to 2147483648");
  EXPECT_EQ(message({.ring_blocks = 1}), "ring_blocks is 1; it must be 2 to 2147483648");
  EXPECT_EQ(message({}), "");
}

TEST_F(UseWindowTest, RandomUsesAgreeWithTheModel) {
  const testing::TimeBox box(0.5);
  constexpr std::int64_t kBuckets = 4;
  Random random(3);
  do {
    auto window = make({.window = seconds(kBuckets), .buckets = kBuckets});
    auto recorder = window->recorder();
    std::vector<Chain> chains;
    chains.push_back(chain_of(1, 9));
    chains.push_back(branch_of(chains[0], 4, 2, 9));
    chains.push_back(branch_of(chains[1], 6, 3, 9));
    chains.push_back(chain_of(4, 9));
    // Uses of a path by the second in which they were collected.
    std::map<std::vector<LocalHash>, std::map<std::int64_t, std::uint32_t>> expected;
    std::int64_t now = 100;
    for (int step = 0; step < 300; ++step) {
      const Chain& chain = chains[random.below(chains.size())];
      const std::size_t depth = random.below(chain.size() + 1);
      recorder.record(chain.locals, depth);
      for (std::size_t i = 1; i <= depth; ++i)
        ++expected[{chain.locals.begin(), chain.locals.begin() + static_cast<std::ptrdiff_t>(i)}][now];
      window->collect(Clock::TimePoint(seconds(now)));
      if (random.chance(0.3)) now += static_cast<std::int64_t>(random.below(kBuckets + 2));
      window->collect(Clock::TimePoint(seconds(now)));
      for (const Chain& query : chains) {
        const Uses uses = uses_of(*window, query);
        for (std::size_t i = 0; i < query.size(); ++i) {
          const auto end = query.locals.begin() + static_cast<std::ptrdiff_t>(i + 1);
          std::uint32_t sum = 0;
          for (const auto& [second, count] : expected[{query.locals.begin(), end}])
            if (second > now - kBuckets) sum += count;
          ASSERT_EQ(uses[i], sum);
        }
      }
    }
  } while (!box.over());
}

// Threads record while another collects and a third reads: nothing is lost but what was counted as dropped.
TEST(UseWindowStressTest, EveryUseIsCountedOrDropped) {
  constexpr std::size_t kThreads = 3;
  const testing::TimeBox box(1.0);
  std::uint64_t seed = 1;
  do {
    auto window = UseWindow::create({.ring_blocks = 128}).value();
    const Chain chain = chain_of(7, 12);
    std::atomic<std::uint64_t> kept = 0;
    std::atomic<std::uint64_t> dropped = 0;
    std::atomic<bool> done = false;
    std::jthread collector([&] {
      while (!done) window->collect(Clock::TimePoint(seconds(100)));
    });
    std::jthread reader([&] {
      Uses uses(chain.size());
      Uses before(chain.size());
      while (!done) {
        window->recent_uses(chain.locals, uses);
        for (std::size_t i = 0; i < uses.size(); ++i) {
          EXPECT_GE(uses[i], before[i]);
          if (i > 0) {
            EXPECT_GE(uses[i - 1], uses[i]);
          }
        }
        before = uses;
      }
    });
    {
      std::vector<std::jthread> recorders;
      recorders.reserve(kThreads);
      for (std::size_t i = 0; i < kThreads; ++i) {
        recorders.emplace_back([&, random = Random(++seed)]() mutable {
          auto recorder = window->recorder();
          for (int round = 0; round < 2000; ++round)
            ++(recorder.record(chain.locals, random.between(std::size_t{1}, chain.size())) ? kept : dropped);
        });
      }
    }
    done = true;
    collector.join();
    reader.join();
    window->collect(Clock::TimePoint(seconds(100)));
    Uses uses(chain.size());
    window->recent_uses(chain.locals, uses);
    ASSERT_EQ(uses[0], kept);
    const UseCounters counters = window->counters();
    ASSERT_EQ(counters.recorded, kept);
    ASSERT_EQ(counters.dropped, dropped);
    ASSERT_EQ(counters.recorders, 0u);
    ASSERT_EQ(kept + dropped, kThreads * 2000);
  } while (!box.over());
}

}  // namespace
}  // namespace ashlar::index
