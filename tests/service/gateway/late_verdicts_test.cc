#include "service/gateway/late_verdicts.h"

#include <gtest/gtest.h>

#include "service/route/dropped_blocks.h"

namespace ashlar::service {
namespace {

constexpr Clock::TimePoint kStart{std::chrono::seconds(100)};
constexpr Clock::Duration kLate = std::chrono::seconds(2);
constexpr events::Worker kWorker{.id = events::WorkerId(3), .rank = 1};

RouteVerdict verdict_of(std::uint64_t expected, std::uint64_t delivered) {
  return {.id = DecisionId(7),
          .worker = kWorker,
          .then = {.stored = 10, .removed = 5, .cleared = 1},
          .expected = expected,
          .delivered = delivered};
}

WorkerEvidence evidence_of(std::uint64_t stored, std::uint64_t removed, std::uint64_t cleared,
                           std::uint64_t reported = 0, BlockFate fate = BlockFate::kKept) {
  return {.changes = {.stored = stored, .removed = removed, .cleared = cleared},
          .reported = reported,
          .fate = fate};
}

TEST(LateVerdicts, ChangesSinceTheDecisionSayWhy) {
  const WorkerEvidence same = evidence_of(10, 5, 1);
  EXPECT_EQ(judge(verdict_of(32, 32), same), Misroute::kNone);
  EXPECT_EQ(judge(verdict_of(32, 0), same), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict_of(32, 0), evidence_of(10, 6, 1)), Misroute::kUnexplained) << "another block";
  EXPECT_EQ(judge(verdict_of(32, 0), evidence_of(10, 6, 1, 0, BlockFate::kDropped)), Misroute::kEvicted);
  EXPECT_EQ(judge(verdict_of(32, 0), evidence_of(10, 6, 1, 0, BlockFate::kForgotten)), Misroute::kForgotten);
  EXPECT_EQ(judge(verdict_of(0, 32), evidence_of(10, 6, 1)), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict_of(32, 0), evidence_of(11, 5, 1)), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict_of(32, 0), evidence_of(12, 9, 2)), Misroute::kCleared);
  EXPECT_EQ(judge(verdict_of(32, 0), evidence_of(2, 0, 1)), Misroute::kCleared);
  RouteVerdict verdict = verdict_of(32, 0);
  verdict.state = WorkerState::kDegraded;
  EXPECT_EQ(judge(verdict, same), Misroute::kNotExact);
}

TEST(LateVerdicts, OnlyStoresOfOthersExplainThatMoreWasFound) {
  RouteVerdict verdict = verdict_of(16, 48);
  verdict.reported = 16;
  verdict.own_blocks = 3;
  EXPECT_EQ(judge(verdict, evidence_of(13, 5, 1, 16)), Misroute::kUnexplained) << "its own three blocks";
  EXPECT_EQ(judge(verdict, evidence_of(19, 5, 1, 32)), Misroute::kUnexplained) << "blocks of other prompts";
  EXPECT_EQ(judge(verdict, evidence_of(12, 5, 1, 48)), Misroute::kStoredMeanwhile);
  EXPECT_EQ(judge(verdict, evidence_of(13, 6, 1, 16)), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict, evidence_of(14, 6, 1, 16)), Misroute::kUnexplained) << "other blocks were evicted";
  EXPECT_EQ(judge(verdict, evidence_of(14, 6, 1, 16, BlockFate::kDropped)), Misroute::kStoredMeanwhile);
  EXPECT_EQ(judge(verdict, evidence_of(13, 6, 1, 16, BlockFate::kDropped)), Misroute::kUnexplained);
  EXPECT_EQ(judge(verdict, evidence_of(14, 6, 1, 16, BlockFate::kForgotten)), Misroute::kForgotten);
  verdict.reported = 48;  // then already, though fewer were expected
  EXPECT_EQ(judge(verdict, evidence_of(12, 5, 1, 48)), Misroute::kUnexplained);
}

void store(Router& router, std::uint64_t first, std::uint64_t last, std::optional<events::BlockName> parent) {
  std::vector<events::StoredBlock> blocks;
  for (std::uint64_t i = first; i <= last; ++i)
    blocks.push_back({.local = tokens::LocalHash(i), .name = events::BlockName(100 + i)});
  events::BlocksStored event;
  event.worker = kWorker;
  event.parent = parent;
  event.blocks = blocks;
  ASSERT_EQ(router.sink().store(event), events::StoreVerdict::kApplied);
}

void drop(Router& router, std::uint64_t block, events::StorageTier tier = events::StorageTier::kDevice) {
  const events::BlockName name(100 + block);
  ASSERT_EQ(router.sink().remove(kWorker, tier, {&name, 1}), 1u);
}

// Blocks 1 to 4 were expected, 1 and 2 were found.
TEST(LateVerdicts, OnlyADroppedBlockOfThePromptExplainsThatLessWasFound) {
  Router router;
  router.add_worker({.id = kWorker.id, .group = "m", .ranks = 2, .has_events = true});
  store(router, 1, 8, {});
  RouteVerdict verdict = verdict_of(16, 8);
  verdict.group = "m";
  verdict.block_size = 4;
  for (std::uint64_t i = 1; i <= 4; ++i) verdict.blocks.emplace_back(i);
  verdict.agreed = 2;
  drop(router, 4);
  store(router, 4, 4, events::BlockName(103));
  verdict.then = router.changes(kWorker);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kUnexplained) << "it was before";
  drop(router, 8);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kUnexplained) << "it was not expected";
  drop(router, 1);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kUnexplained) << "it was found";
  store(router, 1, 1, {});
  drop(router, 4);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kEvicted);
  store(router, 4, 4, events::BlockName(103));
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kEvicted)
      << "the request stored it again";
  // A copy in another tier is left.
  verdict.then = router.changes(kWorker);
  events::BlocksStored copy;
  const events::StoredBlock block{.local = tokens::LocalHash(4), .name = events::BlockName(104)};
  copy.worker = kWorker;
  copy.tier = events::StorageTier::kHost;
  copy.parent = events::BlockName(103);
  copy.blocks = {&block, 1};
  ASSERT_EQ(router.sink().store(copy), events::StoreVerdict::kApplied);
  drop(router, 4);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kUnexplained);
  drop(router, 4, events::StorageTier::kHost);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kEvicted);
  // A worker that comes back under its name counts anew.
  router.remove_worker(kWorker.id);
  router.add_worker({.id = kWorker.id, .group = "m", .ranks = 2, .has_events = true});
  verdict.then = router.changes(kWorker);
  EXPECT_EQ(evidence_for(verdict, router).fate, BlockFate::kKept);
}

TEST(DroppedBlocks, TheLastAreRemembered) {
  DroppedBlocks dropped;
  const std::vector<tokens::LocalHash> prompt = {tokens::LocalHash(7), tokens::LocalHash(8)};
  EXPECT_EQ(dropped.fate_of(prompt, 0, 0), BlockFate::kKept);
  dropped.add(tokens::LocalHash(8), 1, 1);
  dropped.add(tokens::LocalHash(7), 1, 2);
  EXPECT_EQ(dropped.fate_of(prompt, 0, 0), BlockFate::kDropped);
  EXPECT_EQ(dropped.fate_of(prompt, 2, 0), BlockFate::kKept);
  EXPECT_EQ(dropped.fate_of(prompt, 0, 1), BlockFate::kKept) << "another place";
  for (std::uint64_t mark = 3; mark < DroppedBlocks::kMost + 1; ++mark)
    dropped.add(tokens::LocalHash(9), 0, mark);
  EXPECT_EQ(dropped.fate_of(prompt, 0, 0), BlockFate::kDropped) << "as many as there is room for";
  dropped.add(tokens::LocalHash(9), 0, DroppedBlocks::kMost + 1);
  EXPECT_EQ(dropped.fate_of(prompt, 0, 0), BlockFate::kForgotten);
  EXPECT_EQ(dropped.fate_of(prompt, 0, 1), BlockFate::kKept) << "everything since is known";
  dropped.forget(2 * DroppedBlocks::kMost);
  EXPECT_EQ(dropped.fate_of(prompt, 0, 1), BlockFate::kForgotten);
}

TEST(LateVerdicts, TheIndexSaysWhetherTheBlocksThatWereFoundAreReported) {
  Router router;
  router.add_worker({.id = kWorker.id, .group = "m", .ranks = 2, .has_events = true});
  RouteVerdict verdict = verdict_of(4, 12);
  verdict.group = "m";
  verdict.block_size = 4;
  verdict.then = router.changes(kWorker);
  verdict.reported = 4;
  verdict.own_blocks = 2;
  for (std::uint64_t i = 1; i <= 3; ++i) verdict.blocks.emplace_back(i);
  store(router, 1, 1, {});
  EXPECT_EQ(evidence_for(verdict, router).reported, 4u);
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kUnexplained);
  store(router, 2, 3, events::BlockName(101));
  EXPECT_EQ(judge(verdict, evidence_for(verdict, router)), Misroute::kStoredMeanwhile);
}

TEST(LateVerdicts, EventsThatComeAfterTheAnswerExplainIt) {
  LateVerdicts late(2, kLate);
  WorkerEvidence now = evidence_of(10, 5, 1);
  const LateVerdicts::Questions evidence = {.changes =
                                                [&](const events::Worker& worker) {
                                                  EXPECT_EQ(worker, kWorker);
                                                  return now.changes;
                                                },
                                            .evidence = [&](const RouteVerdict&) { return now; }};
  RouteVerdict verdict = verdict_of(32, 0);
  verdict.blocks.resize(2);
  EXPECT_TRUE(late.add(std::move(verdict), kStart));
  EXPECT_TRUE(late.settle(kStart, evidence).empty());
  now.changes.removed = 8;
  now.fate = BlockFate::kDropped;
  const std::vector<RouteVerdict> settled = late.settle(kStart + kLate / 2, evidence);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_EQ(settled[0].id, DecisionId(7));
  EXPECT_EQ(settled[0].outcome.misroute, Misroute::kEvicted);
  EXPECT_TRUE(late.settle(kStart + 2 * kLate, evidence).empty());
}

TEST(LateVerdicts, TheIndexIsAskedOnlyAfterChanges) {
  LateVerdicts late(2, kLate);
  WorkerEvidence now = evidence_of(10, 5, 1);
  int walks = 0;
  const LateVerdicts::Questions ask = {.changes = [&](const events::Worker&) { return now.changes; },
                                       .evidence =
                                           [&](const RouteVerdict&) {
                                             ++walks;
                                             return now;
                                           }};
  RouteVerdict verdict = verdict_of(16, 48);
  verdict.blocks = {tokens::LocalHash(1), tokens::LocalHash(2), tokens::LocalHash(3)};
  verdict.own_blocks = 3;
  EXPECT_TRUE(late.add(verdict, kStart));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(late.settle(kStart, ask).empty());
  EXPECT_EQ(walks, 1);
  now.changes.stored = 11;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(late.settle(kStart, ask).empty());
  EXPECT_EQ(walks, 2);
  now.changes.removed = 6;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(late.settle(kStart, ask).empty());
  EXPECT_EQ(walks, 3);
  now.changes.stored = 13;
  now.reported = 48;
  const std::vector<RouteVerdict> settled = late.settle(kStart, ask);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_EQ(settled[0].outcome.misroute, Misroute::kStoredMeanwhile);
  EXPECT_EQ(walks, 4);
  // Others do not wait while one is judged.
  const LateVerdicts::Questions adding = {.changes =
                                              [&](const events::Worker&) {
                                                late.add(verdict, kStart);
                                                return now.changes;
                                              },
                                          .evidence = ask.evidence};
  EXPECT_TRUE(late.add(verdict_of(32, 0), kStart));
  EXPECT_TRUE(late.settle(kStart, adding).empty());
  EXPECT_FALSE(late.add(verdict, kStart)) << "the one that was added meanwhile counts";
}

TEST(LateVerdicts, NothingIsOpenForEver) {
  LateVerdicts late(2, kLate);
  const LateVerdicts::Questions evidence = {
      .changes = [](const events::Worker&) { return evidence_of(10, 5, 1).changes; },
      .evidence = [](const RouteVerdict&) { return evidence_of(10, 5, 1); }};
  EXPECT_TRUE(late.add(verdict_of(32, 0), kStart));
  EXPECT_TRUE(late.add(verdict_of(32, 0), kStart + kLate));
  EXPECT_FALSE(late.add(verdict_of(32, 0), kStart)) << "it has room for two";
  const std::vector<RouteVerdict> settled = late.settle(kStart + kLate, evidence);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_EQ(settled[0].outcome.misroute, Misroute::kUnexplained);
  EXPECT_EQ(late.settle(kStart + 2 * kLate, evidence).size(), 1u);
}

}  // namespace
}  // namespace ashlar::service
