#include "ashlar/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

namespace ashlar {
namespace {

TEST(RandomTest, SeedZeroGivesTheKnownSequence) {
  Random random(0);
  EXPECT_EQ(random.next(), 5987356902031041503U);
  EXPECT_EQ(random.next(), 7051070477665621255U);
  EXPECT_EQ(random.next(), 6633766593972829180U);
  EXPECT_EQ(random.next(), 211316841551650330U);
}

TEST(RandomTest, EveryFunctionGivesItsKnownValues) {
  Random random(42);
  std::vector<std::uint64_t> numbers(6);
  for (std::uint64_t& number : numbers) number = random.below(1000);
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{951, 753, 100, 464, 331, 965}));
  std::vector<int> ranged(6);
  for (int& number : ranged) number = random.between(-5, 5);
  EXPECT_EQ(ranged, (std::vector<int>{-1, -5, 0, -4, -5, -4}));
  std::vector<bool> chances(6);
  for (std::size_t i = 0; i < chances.size(); ++i) chances[i] = random.chance(0.5);
  EXPECT_EQ(chances, (std::vector<bool>{false, true, true, false, true, true}));
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
  random.shuffle(std::span(order));
  EXPECT_EQ(order, (std::vector<int>{2, 3, 5, 7, 6, 0, 1, 4}));
  EXPECT_EQ(random.fork().next(), 7829571171768353631U);
  EXPECT_EQ(random.next(), 7860803162265517708U);
}

TEST(RandomTest, WorksAtCompileTime) {
  constexpr std::uint64_t kFirst = Random(0).next();
  static_assert(kFirst == 5987356902031041503U);
}

TEST(RandomTest, CopiesContinueAlike) {
  Random one(7);
  one.next();
  Random other = one;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(one.next(), other.next());
}

TEST(RandomTest, BelowStaysBelowAndReachesEveryValue) {
  Random random(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) ++seen.at(random.below(seen.size()));
  for (const int count : seen) {
    EXPECT_GT(count, 800);
    EXPECT_LT(count, 1200);
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(random.below(1), 0U);
}

TEST(RandomTest, BelowIsUnbiasedWhereTheRangeDoesNotDivide) {
  // Without the second draw, values in the lower half of this range would come up twice as often.
  Random random(2);
  const std::uint64_t n = (std::uint64_t{1} << 63) + (std::uint64_t{1} << 62);
  int low = 0;
  for (int i = 0; i < 30000; ++i) low += random.below(n) < n / 3 ? 1 : 0;
  EXPECT_NEAR(low, 10000, 400);
}

TEST(RandomTest, BetweenIncludesBothEnds) {
  Random random(3);
  std::map<int, int> seen;
  for (int i = 0; i < 1000; ++i) ++seen[random.between(-1, 1)];
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen.begin()->first, -1);
  EXPECT_EQ(random.between(9, 9), 9);
}

TEST(RandomTest, BetweenSpansTheWholeOfAType) {
  Random random(4);
  using Signed = std::numeric_limits<std::int64_t>;
  bool negative = false;
  bool positive = false;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t drawn = random.between(Signed::min(), Signed::max());
    negative |= drawn < 0;
    positive |= drawn > 0;
  }
  EXPECT_TRUE(negative && positive);
  const std::uint8_t byte = random.between(std::uint8_t{0}, std::uint8_t{255});
  EXPECT_LE(byte, 255);
}

TEST(RandomTest, ChanceOfZeroNeverAndOfOneAlwaysHappens) {
  Random random(5);
  int happened = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(random.chance(0.0));
    EXPECT_TRUE(random.chance(1.0));
    happened += random.chance(0.25) ? 1 : 0;
  }
  EXPECT_NEAR(happened, 250, 60);
}

TEST(RandomTest, ShuffleKeepsTheElementsAndReachesEveryOrder) {
  Random random(6);
  std::map<std::vector<int>, int> seen;
  for (int i = 0; i < 6000; ++i) {
    std::vector<int> order = {1, 2, 3};
    random.shuffle(order);
    ++seen[order];
  }
  EXPECT_EQ(seen.size(), 6U);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 150);
  std::vector<int> empty;
  random.shuffle(empty);
  EXPECT_TRUE(empty.empty());
}

TEST(RandomTest, ForksDifferFromEachOtherAndFromTheirParent) {
  Random parent(8);
  Random first = parent.fork();
  Random second = parent.fork();
  const std::uint64_t one = first.next();
  const std::uint64_t two = second.next();
  EXPECT_NE(one, two);
  EXPECT_NE(one, parent.next());
}

TEST(RandomDeathTest, EmptyRangesStop) {
  Random random(9);
  EXPECT_DEATH(random.below(0), "no value to return");
  EXPECT_DEATH(random.between(2, 1), "ends before it starts");
}

}  // namespace
}  // namespace ashlar
