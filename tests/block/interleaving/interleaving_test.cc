// The tool itself.
#include "ashlar/testing/interleaving.h"
#include "base/interleaving.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ashlar::testing {
namespace {

TEST(InterleavingTest, HoldsTheNthThreadAndNoOther) {
  Interleaving order;
  order.pause_at("a", 2);
  interleaving_point("a");
  interleaving_point("b");
  std::atomic<bool> through = false;
  std::jthread held([&] {
    interleaving_point("a");
    through = true;
  });
  order.wait_until_paused("a");
  EXPECT_FALSE(through);
  interleaving_point("a");
  EXPECT_EQ(order.passes("a"), 3u);
  order.resume("a");
  held.join();
  EXPECT_TRUE(through);
}

TEST(InterleavingTest, SeveralPausesAtOnePointLetGoInAnyOrder) {
  Interleaving order;
  std::atomic<int> last = 0;
  Interleaving::Pause pauses[2];
  std::jthread threads[2];
  for (int i = 0; i < 2; ++i) {
    pauses[i] = order.pause_at("a");
    threads[i] = std::jthread([&, i] {
      interleaving_point("a");
      last = i + 1;
    });
    order.wait_until_paused(pauses[i]);
  }
  order.resume(pauses[1]);
  threads[1].join();
  EXPECT_EQ(last, 2);
  order.resume(pauses[0]);
  threads[0].join();
  EXPECT_EQ(last, 1);
}

TEST(InterleavingTest, APauseThatWasResumedBeforeItHeldHoldsNobody) {
  Interleaving order;
  const auto pause = order.pause_at("a");
  order.resume(pause);
  interleaving_point("a");
  EXPECT_EQ(order.passes("a"), 1u);
}

TEST(InterleavingTest, EndsWithItsScope) {
  {
    Interleaving order;
    order.pause_at("a");
  }
  interleaving_point("a");
  const Interleaving again;
  EXPECT_EQ(again.passes("a"), 0u);
}

TEST(InterleavingDeathTest, TwoAtOnceAreRefused) {
  const Interleaving order;
  EXPECT_DEATH(const Interleaving second, "one at a time");
}

}  // namespace
}  // namespace ashlar::testing
