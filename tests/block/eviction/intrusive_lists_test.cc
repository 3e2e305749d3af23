#include "ashlar/block/block_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::block {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint32_t> ids_in(const IntrusiveLists& lists, std::uint32_t list, std::size_t n = 100) {
  std::vector<BlockId> ids(n);
  ids.resize(lists.peek(list, ids));
  std::vector<std::uint32_t> values;
  for (const BlockId id : ids) values.push_back(id.value());
  return values;
}

TEST(IntrusiveOrderTest, FrontIsTheFirstOrNothing) {
  IntrusiveOrder order(3);
  EXPECT_FALSE(order.front());
  EXPECT_TRUE(order.empty());
  order.push_back(BlockId(2));
  order.push_back(BlockId(0));
  EXPECT_EQ(order.front(), BlockId(2));
  order.remove(BlockId(2));
  EXPECT_EQ(order.front(), BlockId(0));
  EXPECT_EQ(order.pop_front(), BlockId(0));
  EXPECT_FALSE(order.pop_front());
}

TEST(IntrusiveOrderTest, BothEndsTakeBlocks) {
  IntrusiveOrder order(4);
  order.push_back(BlockId(1));
  order.push_front(BlockId(3));
  order.push_back(BlockId(0));
  BlockId out[4];
  ASSERT_EQ(order.peek(out), 3u);
  EXPECT_THAT(std::span(out).first(3), ElementsAre(BlockId(3), BlockId(1), BlockId(0)));
}

TEST(IntrusiveListsTest, ListsShareTheBlocksAndNothingElse) {
  IntrusiveLists lists(6, 3);
  lists.push_back(0, BlockId(1));
  lists.push_back(2, BlockId(2));
  lists.push_back(0, BlockId(3));
  EXPECT_EQ(lists.size(), 3u);
  EXPECT_FALSE(lists.empty(0));
  EXPECT_TRUE(lists.empty(1));
  EXPECT_THAT(ids_in(lists, 0), ElementsAre(1u, 3u));
  lists.remove(BlockId(1));
  lists.push_front(2, BlockId(1));
  EXPECT_THAT(ids_in(lists, 0), ElementsAre(3u));
  EXPECT_THAT(ids_in(lists, 2), ElementsAre(1u, 2u));
  EXPECT_THAT(ids_in(lists, 2, 1), ElementsAre(1u));
  EXPECT_FALSE(lists.pop_front(1));
  EXPECT_EQ(lists.pop_front(2), BlockId(1));
  EXPECT_EQ(lists.front(2), BlockId(2));
  EXPECT_EQ(lists.size(), 2u);
}

TEST(IntrusiveListsTest, RandomTurnsAgreeWithPlainLists) {
  constexpr std::uint32_t kBlocks = 30;
  constexpr std::uint32_t kLists = 4;
  IntrusiveLists lists(kBlocks, kLists);
  std::vector<std::deque<std::uint32_t>> model(kLists);
  Random random(1);
  for (int turn = 0; turn < 20'000; ++turn) {
    const auto id = static_cast<std::uint32_t>(random.below(kBlocks));
    const auto list = static_cast<std::uint32_t>(random.below(kLists));
    bool was_in = false;
    for (auto& each : model) was_in |= std::erase(each, id) != 0;
    if (was_in) {
      lists.remove(BlockId(id));
    } else if (random.chance(0.5)) {
      lists.push_back(list, BlockId(id));
      model[list].push_back(id);
    } else {
      lists.push_front(list, BlockId(id));
      model[list].push_front(id);
    }
    if (random.chance(0.1)) {
      const auto first = lists.pop_front(list);
      ASSERT_EQ(first.has_value(), !model[list].empty());
      if (first) {
        ASSERT_EQ(first->value(), model[list].front());
        model[list].pop_front();
      }
    }
    std::size_t size = 0;
    for (std::uint32_t each = 0; each < kLists; ++each) {
      ASSERT_EQ(ids_in(lists, each), (std::vector<std::uint32_t>(model[each].begin(), model[each].end())));
      size += model[each].size();
    }
    ASSERT_EQ(lists.size(), size);
  }
}

}  // namespace
}  // namespace ashlar::block
