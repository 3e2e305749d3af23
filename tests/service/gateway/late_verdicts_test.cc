#include "service/gateway/late_verdicts.h"

#include <gtest/gtest.h>

namespace ashlar::service {
namespace {

constexpr Clock::TimePoint kStart{std::chrono::seconds(100)};
constexpr events::Worker kWorker{.id = events::WorkerId(3), .rank = 1};

RouteVerdict verdict_of(std::uint64_t expected, std::uint64_t delivered) {
  return {.id = DecisionId(7),
          .worker = kWorker,
          .then = {.stored = 10, .removed = 5, .cleared = 1},
          .expected = expected,
          .delivered = delivered};
}

TEST(LateVerdicts, ChangesSinceTheDecisionSayWhy) {
  const WorkerChanges same{.stored = 10, .removed = 5, .cleared = 1};
  EXPECT_EQ(judge(verdict_of(32, 32), same), Misroute::kNone);
  EXPECT_EQ(judge(verdict_of(32, 0), same), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict_of(32, 0), {.stored = 10, .removed = 6, .cleared = 1}), Misroute::kEvicted);
  EXPECT_EQ(judge(verdict_of(0, 32), {.stored = 10, .removed = 6, .cleared = 1}), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict_of(0, 32), {.stored = 11, .removed = 5, .cleared = 1}), Misroute::kStoredMeanwhile);
  EXPECT_EQ(judge(verdict_of(32, 0), {.stored = 11, .removed = 5, .cleared = 1}), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict_of(32, 0), {.stored = 12, .removed = 9, .cleared = 2}), Misroute::kCleared);
  EXPECT_EQ(judge(verdict_of(32, 0), {.stored = 2, .removed = 0, .cleared = 1}), Misroute::kCleared);
  RouteVerdict verdict = verdict_of(32, 0);
  verdict.state = WorkerState::kDegraded;
  EXPECT_EQ(judge(verdict, same), Misroute::kNotExact);
}

TEST(LateVerdicts, EventsThatComeAfterTheAnswerExplainIt) {
  LateVerdicts late(2);
  WorkerChanges now{.stored = 10, .removed = 5, .cleared = 1};
  const auto changes = [&](const events::Worker& worker) {
    EXPECT_EQ(worker, kWorker);
    return now;
  };
  EXPECT_TRUE(late.add(verdict_of(32, 0), kStart));
  EXPECT_TRUE(late.settle(kStart, changes).empty());
  now.removed = 8;
  const std::vector<RouteVerdict> settled = late.settle(kStart + LateVerdicts::kPatience / 2, changes);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_EQ(settled[0].id, DecisionId(7));
  EXPECT_EQ(settled[0].outcome.misroute, Misroute::kEvicted);
  EXPECT_TRUE(late.settle(kStart + 2 * LateVerdicts::kPatience, changes).empty());
}

TEST(LateVerdicts, NothingIsOpenForEver) {
  LateVerdicts late(2);
  const auto changes = [](const events::Worker&) {
    return WorkerChanges{.stored = 10, .removed = 5, .cleared = 1};
  };
  EXPECT_TRUE(late.add(verdict_of(32, 0), kStart));
  EXPECT_TRUE(late.add(verdict_of(32, 0), kStart + LateVerdicts::kPatience));
  EXPECT_FALSE(late.add(verdict_of(32, 0), kStart)) << "it has room for two";
  const std::vector<RouteVerdict> settled = late.settle(kStart + LateVerdicts::kPatience, changes);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_EQ(settled[0].outcome.misroute, Misroute::kUnexplained);
  EXPECT_EQ(late.settle(kStart + 2 * LateVerdicts::kPatience, changes).size(), 1u);
}

}  // namespace
}  // namespace ashlar::service
