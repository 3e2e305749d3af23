#include "ashlar/block/block_retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ashlar::block {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr Clock::TimePoint kNow{1000s};
constexpr std::optional<BlockRetention> kNothingSaid;

template <class T>
std::string refusal_of(const T& value) {
  const auto refused = value.validate();
  EXPECT_FALSE(refused);
  if (refused) return "";
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  return std::string(refused.error().message());
}

constexpr std::nullopt_t kToTheEnd = std::nullopt;
RetentionPlan::TokenRange range(std::size_t begin, std::optional<std::size_t> end,
                                std::uint8_t priority = BlockRetention::kDefaultPriority,
                                std::optional<Clock::Duration> duration = {}) {
  return {begin, end, priority, duration};
}
RetentionPlan plan_of(std::vector<RetentionPlan::TokenRange> ranges) {
  RetentionPlan plan;
  plan.prompt = std::move(ranges);
  return plan;
}

TEST(BlockRetentionTest, TheDefaultIsTheDefaultPriorityForEver) {
  EXPECT_EQ(BlockRetention().priority, 35);
  EXPECT_EQ(BlockRetention().until, BlockRetention::kForever);
  EXPECT_TRUE(BlockRetention().validate());
}

TEST(BlockRetentionTest, PrioritiesEndAtAHundred) {
  EXPECT_TRUE((BlockRetention{0}).validate());
  EXPECT_TRUE((BlockRetention{100}).validate());
  EXPECT_THAT(refusal_of(BlockRetention{101}), HasSubstr("101"));
  EXPECT_THAT(refusal_of(BlockRetention{255}), HasSubstr("255"));
}

TEST(RetentionPlanTest, APlanThatSaysNothingIsValidAndEmpty) {
  RetentionPlan plan;
  EXPECT_TRUE(plan.validate());
  EXPECT_TRUE(plan.empty());
  plan.decode_priority = 36;
  EXPECT_FALSE(plan.empty());
  EXPECT_FALSE(plan_of({range(0, kToTheEnd)}).empty());
}

TEST(RetentionPlanTest, EveryPartIsValidated) {
  EXPECT_TRUE(plan_of({range(0, 1, 100, 1ns), range(7, kToTheEnd)}).validate());
  EXPECT_THAT(refusal_of(plan_of({range(0, kToTheEnd), range(5, 5)})), HasSubstr("tokens 5 to 5"));
  EXPECT_THAT(refusal_of(plan_of({range(6, 5)})), HasSubstr("tokens 6 to 5"));
  EXPECT_THAT(refusal_of(plan_of({range(0, kToTheEnd), range(0, kToTheEnd, 101)})), HasSubstr("101"));
  EXPECT_THAT(refusal_of(plan_of({range(0, kToTheEnd, 35, 0ns)})), HasSubstr("0 ns"));
  EXPECT_THAT(refusal_of(plan_of({range(0, kToTheEnd, 35, -3ns)})), HasSubstr("-3 ns"));
  RetentionPlan decode;
  decode.decode_priority = 200;
  EXPECT_THAT(refusal_of(decode), HasSubstr("200"));
  decode = {};
  decode.decode_duration = -1s;
  EXPECT_THAT(refusal_of(decode), HasSubstr("-1000000000 ns"));
}

TEST(RetentionPlanTest, ARangeCoversEveryBlockItTouches) {
  const RetentionPlan plan = plan_of({range(5, 9, 80)});
  EXPECT_EQ(plan.of_block(0, 4, 100, kNow), kNothingSaid);
  EXPECT_EQ(plan.of_block(4, 8, 100, kNow), (BlockRetention{80}));
  EXPECT_EQ(plan.of_block(8, 12, 100, kNow), (BlockRetention{80}));
  EXPECT_EQ(plan.of_block(12, 16, 100, kNow), kNothingSaid);
  // One token at the border is enough, and none is not.
  EXPECT_EQ(plan.of_block(1, 5, 100, kNow), kNothingSaid);
  EXPECT_EQ(plan.of_block(1, 6, 100, kNow), (BlockRetention{80}));
  EXPECT_EQ(plan.of_block(9, 10, 100, kNow), kNothingSaid);
}

TEST(RetentionPlanTest, ARangeWithoutAnEndGoesToTheEndOfThePrompt) {
  RetentionPlan plan = plan_of({range(8, kToTheEnd, 80)});
  plan.decode_priority = 20;
  EXPECT_EQ(plan.of_block(4, 8, 16, kNow), kNothingSaid);
  EXPECT_EQ(plan.of_block(8, 12, 16, kNow), (BlockRetention{80}));
  EXPECT_EQ(plan.of_block(12, 16, 16, kNow), (BlockRetention{80}));
  EXPECT_EQ(plan.of_block(16, 20, 16, kNow), (BlockRetention{20}));
}

TEST(RetentionPlanTest, ARangePastThePromptEndsWithIt) {
  RetentionPlan plan = plan_of({range(0, 1000, 80), range(50, kToTheEnd, 90)});
  plan.decode_priority = 20;
  EXPECT_EQ(plan.of_block(12, 16, 16, kNow), (BlockRetention{80}));
  EXPECT_EQ(plan.of_block(16, 20, 16, kNow), (BlockRetention{20}));
  EXPECT_EQ(plan.of_block(52, 56, 16, kNow), (BlockRetention{20}));
  plan.prompt = {range(12, 100, 90)};
  EXPECT_EQ(plan.of_block(8, 16, 10, kNow), (BlockRetention{20}))
      << "the range begins where nothing of the prompt is";
}

TEST(RetentionPlanTest, ABlockWithPromptAndGeneratedTokensIsOfTheRangeThatTouchesIt) {
  RetentionPlan plan = plan_of({range(12, 14, 10)});
  plan.decode_priority = 90;
  EXPECT_EQ(plan.of_block(12, 16, 14, kNow), (BlockRetention{10}));
  plan.prompt[0].end = 13;
  EXPECT_EQ(plan.of_block(12, 16, 14, kNow), (BlockRetention{10}));
  plan.prompt[0] = range(0, 12, 10);
  EXPECT_EQ(plan.of_block(12, 16, 14, kNow), (BlockRetention{90})) << "no range touches it";
}

TEST(RetentionPlanTest, OfSeveralRangesTheHighestPriorityCounts) {
  const RetentionPlan plan = plan_of({range(0, 8, 50), range(4, 12, 80, 5s), range(0, kToTheEnd, 60)});
  EXPECT_EQ(plan.of_block(0, 4, 16, kNow), (BlockRetention{60}));
  EXPECT_EQ(plan.of_block(4, 8, 16, kNow), (BlockRetention{80, kNow + 5s}));
  EXPECT_EQ(plan.of_block(8, 12, 16, kNow), (BlockRetention{80, kNow + 5s}));
  EXPECT_EQ(plan.of_block(12, 16, 16, kNow), (BlockRetention{60}));
}

TEST(RetentionPlanTest, OfEqualPrioritiesTheLongestDurationCountsWhateverTheirOrder) {
  const RetentionPlan::TokenRange shorter = range(0, kToTheEnd, 70, 5s);
  const RetentionPlan::TokenRange longer = range(0, kToTheEnd, 70, 9s);
  const RetentionPlan::TokenRange forever = range(0, kToTheEnd, 70);
  EXPECT_EQ(plan_of({shorter, longer}).of_block(0, 4, 16, kNow), (BlockRetention{70, kNow + 9s}));
  EXPECT_EQ(plan_of({longer, shorter}).of_block(0, 4, 16, kNow), (BlockRetention{70, kNow + 9s}));
  EXPECT_EQ(plan_of({longer, forever, shorter}).of_block(0, 4, 16, kNow), (BlockRetention{70}));
}

TEST(RetentionPlanTest, APriorityBelowTheDefaultIsAlsoAWish) {
  const RetentionPlan plan = plan_of({range(0, 4, 0)});
  EXPECT_EQ(plan.of_block(0, 4, 16, kNow), (BlockRetention{0}));
}

TEST(RetentionPlanTest, GeneratedBlocksHaveTheDecodePriorityAndItsDuration) {
  RetentionPlan plan;
  plan.decode_priority = 5;
  plan.decode_duration = 2s;
  EXPECT_EQ(plan.of_block(0, 16, 16, kNow), kNothingSaid);
  EXPECT_EQ(plan.of_block(16, 32, 16, kNow), (BlockRetention{5, kNow + 2s}));
  EXPECT_EQ(plan.of_block(0, 16, 15, kNow), (BlockRetention{5, kNow + 2s}));
  EXPECT_EQ(plan.of_block(0, 16, 0, kNow), (BlockRetention{5, kNow + 2s}));
}

TEST(RetentionPlanTest, ADurationPastTheEndOfTimeIsForEver) {
  RetentionPlan plan = plan_of({range(0, kToTheEnd, 70, Clock::Duration::max())});
  plan.decode_duration = Clock::Duration::max();
  EXPECT_EQ(plan.of_block(0, 4, 16, kNow), (BlockRetention{70}));
  EXPECT_EQ(plan.of_block(16, 20, 16, kNow), BlockRetention()) << "a duration is a word";
}

}  // namespace
}  // namespace ashlar::block
