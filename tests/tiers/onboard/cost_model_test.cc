#include "tiers/onboard/cost_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "ashlar/base/random.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

TEST(CostModelTest, LatencyAndBandwidthAreFound) {
  CostModel model;
  EXPECT_EQ(model.seconds(kG3, 1000), 0) << "nothing was measured";
  for (int i = 1; i <= 20; ++i) model.observe(kG3, 1000u * i, 0.5 + 0.001 * 1000 * i);
  EXPECT_NEAR(model.seconds(kG3, 50'000), 0.5 + 50, 1e-6);
  EXPECT_NEAR(model.seconds(kG3, 1), 0.501, 1e-6);
  EXPECT_EQ(model.seconds(kG2, 1000), 0) << "of another tier";
}

TEST(CostModelTest, MovesOfOneSizeGiveABandwidth) {
  CostModel model;
  for (int i = 0; i < 5; ++i) model.observe(kG3, 4096, 2);
  EXPECT_NEAR(model.seconds(kG3, 8192), 4, 1e-9);
}

TEST(CostModelTest, OldMovesAreForgotten) {
  CostModel model;
  for (int i = 0; i < 50; ++i) model.observe(kG3, 1000 + i, 10);
  for (int i = 0; i < 200; ++i) model.observe(kG3, 1000 + i % 7, 1);
  EXPECT_LT(model.seconds(kG3, 1000), 1.1);
}

TEST(CostModelTest, IsNeverNegative) {
  CostModel model;
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    model.observe(kG3, 1 + random.below(100'000), static_cast<double>(random.below(1000)) / 1000);
    ASSERT_GE(model.seconds(kG3, 1 + random.below(1'000'000)), 0);
  }
}

// Against every place to stop.
TEST(WorthBringingTest, IsTheFastestWay) {
  Random random(9);
  for (int round = 0; round < 2000; ++round) {
    std::vector<TierRun> runs;
    std::size_t total = 0;
    for (std::uint64_t n = random.below(5); n > 0; --n) {
      const std::size_t count = 1 + random.below(6);
      runs.push_back({kG3, total, count, static_cast<double>(random.below(40))});
      total += count;
    }
    const double compute = static_cast<double>(random.below(12));
    const auto time = [&](std::size_t stop) {
      double sum = static_cast<double>(total - stop) * compute;
      for (const TierRun& run : runs) {
        if (stop <= run.first) break;
        const std::size_t brought = std::min(run.count, stop - run.first);
        sum += run.seconds * static_cast<double>(brought) / static_cast<double>(run.count);
      }
      return sum;
    };
    const std::size_t chosen = worth_bringing(runs, compute);
    for (std::size_t stop = 0; stop <= total; ++stop) {
      ASSERT_LE(time(chosen), time(stop) + 1e-9);
      if (stop > chosen) {
        ASSERT_LT(time(chosen), time(stop)) << "of equal ways the one that keeps more";
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::tiers
