#include "service/gateway/recent_ends.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar::service {
namespace {

using tokens::LocalHash;
using namespace std::chrono_literals;

const Clock::TimePoint kFirstEnd{1s};

std::vector<LocalHash> blocks(std::size_t count) {
  std::vector<LocalHash> out;
  for (std::size_t i = 0; i < count; ++i) out.emplace_back(100 + i);
  return out;
}

TEST(RecentEnds, AFollowUpFindsWhatItContinues) {
  RecentEnds ends(5ms);
  EXPECT_FALSE(ends.expected(blocks(4), kFirstEnd));
  ends.add(blocks(3), {.worker = {.id = events::WorkerId(7)}, .blocks = 5}, kFirstEnd);
  const auto owed = ends.expected(blocks(6), kFirstEnd + 4ms);
  ASSERT_TRUE(owed);
  EXPECT_EQ(owed->worker.id, events::WorkerId(7));
  EXPECT_EQ(owed->blocks, 5u);
  // Neither what is shorter nor what is different.
  EXPECT_FALSE(ends.expected(blocks(2), kFirstEnd));
  std::vector<LocalHash> other = blocks(6);
  other[1] = LocalHash(1);
  EXPECT_FALSE(ends.expected(other, kFirstEnd));
}

TEST(RecentEnds, TheLongestCountsAndAllPass) {
  RecentEnds ends(5ms);
  ends.add(blocks(2), {.worker = {.id = events::WorkerId(1)}, .blocks = 3}, kFirstEnd);
  ends.add(blocks(4), {.worker = {.id = events::WorkerId(2)}, .blocks = 6}, kFirstEnd + 3ms);
  EXPECT_EQ(ends.expected(blocks(8), kFirstEnd + 4ms)->worker.id, events::WorkerId(2));
  EXPECT_EQ(ends.expected(blocks(3), kFirstEnd + 4ms)->worker.id, events::WorkerId(1));
  EXPECT_FALSE(ends.expected(blocks(3), kFirstEnd + 5ms));
  EXPECT_TRUE(ends.expected(blocks(8), kFirstEnd + 5ms));
  EXPECT_FALSE(ends.expected(blocks(8), kFirstEnd + 8ms));
}

TEST(RecentEnds, AnEndThatComesAgainLastsAnew) {
  RecentEnds ends(5ms);
  ends.add(blocks(2), {.worker = {.id = events::WorkerId(1)}, .blocks = 3}, kFirstEnd);
  ends.add(blocks(2), {.worker = {.id = events::WorkerId(1)}, .blocks = 4}, kFirstEnd + 4ms);
  const auto owed = ends.expected(blocks(4), kFirstEnd + 6ms);
  ASSERT_TRUE(owed);
  EXPECT_EQ(owed->blocks, 4u);
}

}  // namespace
}  // namespace ashlar::service
