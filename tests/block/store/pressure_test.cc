// Watermarks: pressure with hysteresis, reported outside all locks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;
using ::testing::ElementsAre;

using Report = std::pair<Pressure, std::size_t>;

class PressureTest : public ::testing::Test {
 protected:
  Manager build(std::size_t low, std::size_t high) {
    return value_of(
        builder_of(10)
            .clock(clock_)
            .watermarks({low, high}, [this](Pressure now, std::size_t n) { reports_.emplace_back(now, n); })
            .build());
  }
  ManualClock clock_;
  std::vector<Report> reports_;
};

TEST_F(PressureTest, StartsBelowTheLowMarkAndEndsAtTheHighMark) {
  Manager manager = build(3, 6);
  EXPECT_EQ(manager.pressure(), Pressure::kNormal);
  auto held = value_of(manager.allocate_blocks(7));
  EXPECT_EQ(manager.pressure(), Pressure::kNormal) << "three are available: not below the mark";
  held.push_back(take_one(manager));
  EXPECT_EQ(manager.pressure(), Pressure::kLow);
  held.push_back(take_one(manager));
  held.truncate(5);
  EXPECT_EQ(manager.pressure(), Pressure::kLow) << "five are available: between the marks nothing changes";
  held.truncate(4);
  EXPECT_EQ(manager.pressure(), Pressure::kNormal);
  held.push_back(take_one(manager));
  held.push_back(take_one(manager));
  EXPECT_EQ(manager.pressure(), Pressure::kNormal);
  EXPECT_THAT(reports_, ElementsAre(Report(Pressure::kLow, 2), Report(Pressure::kNormal, 6)));
}

TEST_F(PressureTest, EqualMarksMakeOneThreshold) {
  Manager manager = build(5, 5);
  auto held = value_of(manager.allocate_blocks(6));
  EXPECT_EQ(manager.pressure(), Pressure::kLow);
  held.truncate(5);
  EXPECT_EQ(manager.pressure(), Pressure::kNormal);
  EXPECT_THAT(reports_, ElementsAre(Report(Pressure::kLow, 4), Report(Pressure::kNormal, 5)));
}

TEST_F(PressureTest, WithoutMarksThereIsNoPressure) {
  Manager manager = build(0, 0);
  const auto held = value_of(manager.allocate_blocks(10));
  EXPECT_EQ(manager.pressure(), Pressure::kNormal);
  EXPECT_TRUE(reports_.empty());
}

TEST_F(PressureTest, CachedBlocksAreAvailableAndPinnedOnesAreNot) {
  Manager manager = build(8, 10);
  const TokenSequence sequence = sequence_of(4);
  {
    const Blocks stored = store_all(manager, sequence);
  }
  EXPECT_THAT(reports_, ElementsAre(Report(Pressure::kLow, 6), Report(Pressure::kNormal, 10)));
  reports_.clear();
  std::vector<Pin> pins;
  for (int i = 0; i < 2; ++i) pins.push_back(value_of(manager.pin(sequence.sequence_hashes()[i], 1s)));
  EXPECT_TRUE(reports_.empty()) << "eight are left";
  const Mutable one = take_one(manager);
  EXPECT_THAT(reports_, ElementsAre(Report(Pressure::kLow, 7)));
  clock_.advance(1s);
  EXPECT_EQ(manager.available_blocks(), 9u);
  EXPECT_EQ(manager.pressure(), Pressure::kLow);
}

TEST_F(PressureTest, ARefusedAllocationChangesNothing) {
  Manager manager = build(3, 6);
  const auto held = value_of(manager.allocate_blocks(7));
  EXPECT_FALSE(manager.allocate_blocks(4));
  EXPECT_TRUE(reports_.empty());
}

TEST(PressureCallbackTest, MayUseTheManager) {
  std::optional<Manager> manager;
  std::vector<std::size_t> reset;
  manager = value_of(builder_of(10)
                         .watermarks({5, 8},
                                     [&](Pressure now, std::size_t) {
                                       if (now == Pressure::kLow) {
                                         reset.push_back(manager->status().inactive);
                                         reset.push_back(manager->reset_inactive_pool());
                                         EXPECT_TRUE(manager->allocate_blocks(1));
                                       }
                                     })
                         .build());
  const TokenSequence sequence = sequence_of(4);
  Blocks stored = store_all(*manager, sequence);
  stored[3] = Immutable();
  const auto held = value_of(manager->allocate_blocks(3));
  EXPECT_THAT(reset, ElementsAre(1u, 1u));
}

TEST(PressureCallbackTest, MayDropGuardsOfTheManager) {
  std::vector<Mutable> reserve;
  std::optional<Manager> manager;
  manager = value_of(builder_of(10)
                         .watermarks({5, 8},
                                     [&](Pressure now, std::size_t) {
                                       if (now == Pressure::kLow) reserve.clear();
                                     })
                         .build());
  for (int i = 0; i < 4; ++i) reserve.push_back(take_one(*manager));
  const auto held = value_of(manager->allocate_blocks(2));
  EXPECT_TRUE(reserve.empty());
  EXPECT_EQ(manager->pressure(), Pressure::kNormal) << "eight are available again";
}

}  // namespace
}  // namespace ashlar::block
