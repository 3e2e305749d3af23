#include "ashlar/block/eviction.h"

#include <gtest/gtest.h>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace std::chrono_literals;
using support::name_of;

constexpr std::uint32_t kBlocks = 8;

// What comes back for a retention that goes in.
BlockRetention round_trip(const BlockRetention& retention) {
  BlockFacts facts(kBlocks);
  facts.keep_retentions();
  facts.set_retention(BlockId(3), retention);
  EXPECT_FALSE(facts.retention(BlockId(2)));
  EXPECT_FALSE(facts.retention(BlockId(4)));
  EXPECT_TRUE(facts.retention(BlockId(3)));
  return facts.retention(BlockId(3)).value_or(BlockRetention{});
}

TEST(BlockFactsTest, NothingIsKeptThatNobodyAskedFor) {
  BlockFacts facts(kBlocks);
  EXPECT_FALSE(facts.keeps_retentions());
  EXPECT_FALSE(facts.keeps_hits());
  EXPECT_FALSE(facts.keeps_acquisitions());
  EXPECT_FALSE(facts.keeps_parents());
  // The store tells anyway.
  facts.begin_life(BlockId(0));
  facts.acquire(BlockId(0));
  facts.set_retention(BlockId(0), {90});
  facts.set_hit(BlockId(0));
  facts.set_parent(BlockId(0), name_of(0, 1));
  facts.keep_retentions();
  facts.keep_hits();
  facts.keep_acquisitions();
  facts.keep_parents();
  EXPECT_FALSE(facts.retention(BlockId(0)));
  EXPECT_FALSE(facts.was_hit(BlockId(0)));
  EXPECT_EQ(facts.acquired(BlockId(0)), 0u);
  EXPECT_FALSE(facts.parent(BlockId(0)));
}

TEST(BlockFactsTest, AColumnMayBeAskedForTwiceAndKeepsWhatItHas) {
  BlockFacts facts(kBlocks);
  for (int i = 0; i < 2; ++i) {
    facts.keep_retentions();
    facts.keep_hits();
    facts.keep_acquisitions();
    facts.keep_parents();
    if (i == 0) {
      facts.acquire(BlockId(1));
      facts.set_retention(BlockId(1), {90});
      facts.set_hit(BlockId(1));
      facts.set_parent(BlockId(1), name_of(0, 1));
    }
  }
  EXPECT_EQ(facts.retention(BlockId(1)), (BlockRetention{90}));
  EXPECT_TRUE(facts.was_hit(BlockId(1)));
  EXPECT_EQ(facts.acquired(BlockId(1)), 1u);
  EXPECT_EQ(facts.parent(BlockId(1)), name_of(0, 1));
}

TEST(BlockFactsTest, EveryPriorityComesBackWithAndWithoutATime) {
  for (unsigned priority = 0; priority <= BlockRetention::kMaxPriority; ++priority) {
    const auto value = static_cast<std::uint8_t>(priority);
    const BlockRetention forever{value, BlockRetention::kForever};
    const BlockRetention limited{value, Clock::TimePoint(123'456'789us)};
    EXPECT_EQ(round_trip(forever), forever);
    EXPECT_EQ(round_trip(limited), limited);
  }
}

TEST(BlockFactsTest, TimesComeBackCutToTheMicrosecond) {
  for (const Clock::Duration since :
       {Clock::Duration(0us), Clock::Duration(1us), Clock::Duration(24h * 36'500)}) {
    for (const auto more : {0ns, 1ns, 999ns}) {
      const BlockRetention stored = round_trip({50, Clock::TimePoint(since + more)});
      EXPECT_EQ(stored, (BlockRetention{50, Clock::TimePoint(since)}));
    }
  }
}

TEST(BlockFactsTest, PriorityZeroAtTimeZeroIsStillSomethingSaid) {
  const BlockRetention least{0, Clock::TimePoint(0ns)};
  EXPECT_EQ(round_trip(least), least);
}

TEST(BlockFactsTest, ATimeBeforeTheClocksBeginningIsTheBeginning) {
  EXPECT_EQ(round_trip({50, Clock::TimePoint(-5s)}), (BlockRetention{50, Clock::TimePoint(0ns)}));
  EXPECT_EQ(round_trip({50, Clock::TimePoint::min()}), (BlockRetention{50, Clock::TimePoint(0ns)}));
}

TEST(BlockFactsTest, TheLastMomentsOfTimeAreNotForEver) {
  const Clock::TimePoint late = BlockRetention::kForever - 1ns;
  const BlockRetention stored = round_trip({50, late});
  EXPECT_LE(stored.until, late);
  EXPECT_GT(stored.until, late - 1us);
}

TEST(BlockFactsTest, ANewLifeForgetsAllButTheTick) {
  BlockFacts facts(kBlocks);
  facts.keep_retentions();
  facts.keep_hits();
  facts.keep_acquisitions();
  facts.keep_parents();
  const BlockId id(5);
  facts.begin_life(id);
  EXPECT_EQ(facts.acquired(id), 1u);
  facts.set_retention(id, {90, Clock::TimePoint(1s)});
  facts.set_hit(id);
  facts.set_parent(id, name_of(2, 7));
  facts.begin_life(id);
  EXPECT_FALSE(facts.retention(id));
  EXPECT_FALSE(facts.was_hit(id));
  EXPECT_FALSE(facts.parent(id));
  EXPECT_EQ(facts.acquired(id), 2u);
}

TEST(BlockFactsTest, AcquisitionsAreNumberedAcrossBlocks) {
  BlockFacts facts(kBlocks);
  facts.keep_acquisitions();
  for (const std::uint32_t id : {4u, 2u, 4u, 7u}) facts.acquire(BlockId(id));
  EXPECT_EQ(facts.acquired(BlockId(2)), 2u);
  EXPECT_EQ(facts.acquired(BlockId(4)), 3u);
  EXPECT_EQ(facts.acquired(BlockId(7)), 4u);
  EXPECT_EQ(facts.acquired(BlockId(0)), 0u);
}

TEST(BlockFactsTest, TheLastRetentionCounts) {
  BlockFacts facts(kBlocks);
  facts.keep_retentions();
  facts.set_retention(BlockId(0), {90});
  facts.set_retention(BlockId(0), {10, Clock::TimePoint(1s)});
  EXPECT_EQ(facts.retention(BlockId(0)), (BlockRetention{10, Clock::TimePoint(1s)}));
}

}  // namespace
}  // namespace ashlar::block
