#include "ashlar/index/indexer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "index/index_printers.h"

namespace ashlar::index {
namespace {

using events::StorageTier;
using events::Worker;
using events::WorkerId;

std::vector<Worker> workers(std::size_t count) {
  std::vector<Worker> workers;
  for (std::size_t i = 0; i < count; ++i) workers.push_back({WorkerId(100 + i), 0});
  return workers;
}

TEST(MatchScoresTest, AnObjectThatWasNeverFilledIsEmpty) {
  const MatchScores scores;
  EXPECT_EQ(scores.slots(), 0u);
  EXPECT_EQ(scores.matched(), 0u);
  EXPECT_EQ(scores.longest(), 0u);
  EXPECT_TRUE(scores.depths().empty());
  EXPECT_TRUE(scores.exact());
  EXPECT_EQ(scores.of({WorkerId(1), 0}), std::nullopt);
}

TEST(MatchScoresTest, ABegunAnswerHasNoMatches) {
  MatchScores scores;
  scores.begin(MatchScores::next_assignment(), workers(3));
  EXPECT_EQ(scores.slots(), 3u);
  EXPECT_EQ(scores.depths().size(), 3u);
  EXPECT_EQ(scores.matched(), 0u);
  EXPECT_EQ(scores.worker(2).id, WorkerId(102));
  EXPECT_EQ(scores.score(1), Score{});
}

TEST(MatchScoresTest, AScoreIsReadBackBySlotAndByWorker) {
  MatchScores scores;
  scores.begin(MatchScores::next_assignment(), workers(5));
  const Score score{2, 7, {3, 1, 2, 1}};
  scores.set(3, score);
  scores.set_device(1, 9);
  EXPECT_EQ(scores.score(3), score);
  EXPECT_EQ(scores.of({WorkerId(103), 0}), score);
  EXPECT_EQ(scores.of({WorkerId(103), 1}), std::nullopt);
  EXPECT_EQ(scores.of({WorkerId(101), 0}), (Score{9, 9, {9, 0, 0, 0}}));
  EXPECT_EQ(scores.of({WorkerId(100), 0}), std::nullopt);
  EXPECT_EQ(scores.matched(), 2u);
  EXPECT_EQ(scores.longest(), 9u);
  EXPECT_EQ(scores.device_depths()[3], 2u);
  EXPECT_EQ(scores.depths()[3], 7u);
  EXPECT_EQ(scores.blocks(StorageTier::kDisk)[3], 2u);
  std::vector<std::pair<Worker, Score>> seen;
  scores.for_each([&](const Worker& worker, const Score& one) { seen.emplace_back(worker, one); });
  const std::vector<std::pair<Worker, Score>> expected = {{{WorkerId(101), 0}, {9, 9, {9, 0, 0, 0}}},
                                                          {{WorkerId(103), 0}, score}};
  EXPECT_EQ(seen, expected);
}

TEST(MatchScoresTest, TheNextAnswerStartsFromZero) {
  MatchScores scores;
  const std::uint64_t assignment = MatchScores::next_assignment();
  scores.begin(assignment, workers(70));
  for (std::size_t slot = 0; slot < 70; ++slot) scores.set(slot, {1, 10, {1, 2, 3, 4}});
  scores.set_inexact();
  EXPECT_FALSE(scores.exact());
  scores.begin(assignment, workers(70));
  EXPECT_TRUE(scores.exact());
  for (std::size_t slot = 0; slot < 70; ++slot) EXPECT_EQ(scores.score(slot), Score{});
  scores.set_device(69, 4);
  EXPECT_EQ(scores.score(69), (Score{4, 4, {4, 0, 0, 0}}));
}

TEST(MatchScoresTest, AnotherAssignmentBringsItsOwnWorkers) {
  MatchScores scores;
  scores.begin(MatchScores::next_assignment(), workers(200));
  scores.set(150, {0, 5, {0, 5, 0, 0}});
  std::vector<Worker> fewer = workers(3);
  fewer[0] = {WorkerId(7), 2};
  scores.begin(MatchScores::next_assignment(), fewer);
  EXPECT_EQ(scores.slots(), 3u);
  EXPECT_EQ(scores.worker(0), (Worker{WorkerId(7), 2}));
  EXPECT_EQ(scores.matched(), 0u);
  scores.begin(MatchScores::next_assignment(), workers(200));
  EXPECT_EQ(scores.slots(), 200u);
  for (std::size_t slot = 0; slot < 200; ++slot) ASSERT_EQ(scores.score(slot), Score{});
}

TEST(MatchScoresTest, AnAssignmentOfNobodyIsFine) {
  MatchScores scores;
  scores.begin(MatchScores::next_assignment(), workers(4));
  scores.set_device(2, 3);
  scores.begin(MatchScores::next_assignment(), {});
  EXPECT_EQ(scores.slots(), 0u);
  EXPECT_EQ(scores.matched(), 0u);
  EXPECT_EQ(scores.longest(), 0u);
}

// The same number means the same slots, so nothing is copied.
TEST(MatchScoresTest, TheSameAssignmentIsTakenOver) {
  MatchScores scores;
  const std::uint64_t assignment = MatchScores::next_assignment();
  scores.begin(assignment, workers(4));
  scores.begin(assignment, {});
  EXPECT_EQ(scores.slots(), 4u);
  EXPECT_EQ(scores.assignment(), assignment);
  EXPECT_NE(MatchScores::next_assignment(), assignment);
}

TEST(MatchScoresTest, AMaskSetsSlotsOfOneWord) {
  MatchScores scores;
  scores.begin(MatchScores::next_assignment(), workers(130));
  scores.set_device(0, ~std::uint64_t{0}, 5);
  scores.set_device(64, std::uint64_t{1} | (std::uint64_t{1} << 63), 6);
  scores.set_device(128, 0, 9);
  scores.set_device(128, 2, 7);
  for (std::size_t slot = 0; slot < 130; ++slot) {
    std::uint32_t depth = slot < 64 ? 5 : 0;
    if (slot == 64 || slot == 127) depth = 6;
    if (slot == 129) depth = 7;
    ASSERT_EQ(scores.score(slot), (Score{depth, depth, {depth, 0, 0, 0}})) << slot;
  }
  EXPECT_EQ(scores.matched(), 64u + 3);
  EXPECT_EQ(scores.longest(), 7u);
}

// A whole word may reach over the last slot; what lies there is not part of the answer.
TEST(MatchScoresTest, AWordMayReachOverTheLastSlot) {
  MatchScores scores;
  scores.begin(MatchScores::next_assignment(), workers(10));
  scores.set_device(0, ~std::uint64_t{0}, 3);
  EXPECT_EQ(scores.matched(), 10u);
  EXPECT_EQ(scores.longest(), 3u);
  EXPECT_EQ(scores.depths().size(), 10u);
  const std::uint64_t assignment = MatchScores::next_assignment();
  scores.begin(assignment, workers(64));
  EXPECT_EQ(scores.matched(), 0u);
}

TEST(MatchScoresTest, ADeviceScoreMayFollowOneWithLowerTiers) {
  MatchScores scores;
  const std::uint64_t assignment = MatchScores::next_assignment();
  scores.begin(assignment, workers(2));
  scores.set(0, {0, 3, {0, 3, 0, 0}});
  scores.begin(assignment, workers(2));
  scores.set_device(0, 2);
  EXPECT_EQ(scores.score(0), (Score{2, 2, {2, 0, 0, 0}}));
  EXPECT_EQ(scores.blocks(StorageTier::kHost)[0], 0u);
}

}  // namespace
}  // namespace ashlar::index
