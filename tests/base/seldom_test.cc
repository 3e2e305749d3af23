#include "base/seldom.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ashlar {
namespace {

TEST(Seldom, TellsOnceInAWhileAndHowManyWereLeftOut) {
  Seldom seldom;
  Clock::TimePoint now{};
  EXPECT_EQ(seldom.next(now), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(seldom.next(now), std::nullopt);
  EXPECT_EQ(seldom.next(now + Seldom::kPause - std::chrono::nanoseconds(1)), std::nullopt);
  now += Seldom::kPause;
  EXPECT_EQ(seldom.next(now), 4u);
  EXPECT_EQ(seldom.next(now + Seldom::kPause), 0u);
}

}  // namespace
}  // namespace ashlar
