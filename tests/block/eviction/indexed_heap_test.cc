#include "ashlar/block/block_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <compare>
#include <map>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::block {
namespace {

using ::testing::ElementsAre;

template <class Key>
std::vector<std::uint32_t> first(const IndexedHeap<Key>& heap, std::size_t n) {
  std::vector<BlockId> ids(n);
  ids.resize(heap.peek(ids));
  std::vector<std::uint32_t> values;
  for (const BlockId id : ids) values.push_back(id.value());
  return values;
}

TEST(IndexedHeapTest, AnEmptyHeapHasNothingToGive) {
  IndexedHeap<int> heap(3);
  EXPECT_TRUE(heap.empty());
  EXPECT_EQ(heap.size(), 0u);
  EXPECT_FALSE(heap.top());
  EXPECT_FALSE(heap.pop());
  EXPECT_FALSE(heap.contains(BlockId(2)));
  EXPECT_TRUE(first(heap, 5).empty());
}

TEST(IndexedHeapTest, TheLeastKeyComesFirst) {
  IndexedHeap<int> heap(8);
  for (const auto& [id, key] : {std::pair(4u, 30), {1u, 10}, {7u, 20}, {0u, 40}}) heap.push(BlockId(id), key);
  EXPECT_EQ(heap.top(), BlockId(1));
  EXPECT_EQ(heap.key_of(BlockId(7)), 20);
  EXPECT_THAT(first(heap, 8), ElementsAre(1u, 7u, 4u, 0u));
  EXPECT_THAT(first(heap, 2), ElementsAre(1u, 7u));
  EXPECT_TRUE(first(heap, 0).empty());
  heap.update(BlockId(0), 5);
  heap.update(BlockId(1), 50);
  heap.remove(BlockId(7));
  EXPECT_FALSE(heap.contains(BlockId(7)));
  EXPECT_THAT(first(heap, 8), ElementsAre(0u, 4u, 1u));
  EXPECT_EQ(heap.pop(), BlockId(0));
  EXPECT_EQ(heap.pop(), BlockId(4));
  EXPECT_EQ(heap.pop(), BlockId(1));
  EXPECT_FALSE(heap.pop());
}

TEST(IndexedHeapTest, RandomTurnsAgreeWithASortedMap) {
  for (const std::uint32_t blocks : {1u, 2u, 5u, 6u, 200u}) {
    IndexedHeap<std::pair<std::uint64_t, std::uint32_t>> heap(blocks);
    std::map<std::uint32_t, std::pair<std::uint64_t, std::uint32_t>>
        keys;  // few first halves, so that they meet
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> order;
    Random random(blocks);
    for (int turn = 0; turn < 5'000; ++turn) {
      const auto id = static_cast<std::uint32_t>(random.below(blocks));
      const std::pair key(random.below(20), id);
      const auto at = keys.find(id);
      ASSERT_EQ(heap.contains(BlockId(id)), at != keys.end());
      if (at == keys.end()) {
        heap.push(BlockId(id), key);
        keys[id] = key;
        order[key] = id;
      } else {
        ASSERT_EQ(heap.key_of(BlockId(id)), at->second);
        order.erase(at->second);
        if (random.chance(0.6)) {
          heap.update(BlockId(id), key);
          at->second = key;
          order[key] = id;
        } else {
          heap.remove(BlockId(id));
          keys.erase(at);
        }
      }
      if (random.chance(0.1) && !order.empty()) {
        ASSERT_EQ(heap.pop(), BlockId(order.begin()->second));
        keys.erase(order.begin()->second);
        order.erase(order.begin());
      }
      ASSERT_EQ(heap.size(), order.size());
      std::vector<std::uint32_t> expected;
      const std::size_t looked_at = turn % 50 == 0 ? order.size() : std::min<std::size_t>(order.size(), 3);
      for (auto each = order.begin(); expected.size() < looked_at; ++each) expected.push_back(each->second);
      ASSERT_EQ(first(heap, looked_at), expected);
    }
  }
}

// ---- cost, in comparisons

std::size_t g_comparisons = 0;
struct CountedKey {
  std::uint64_t value = 0;
  [[maybe_unused]] friend bool operator==(const CountedKey& a, const CountedKey& b) {
    return a.value == b.value;
  }
  friend std::strong_ordering operator<=>(const CountedKey& a, const CountedKey& b) {
    ++g_comparisons;
    return a.value <=> b.value;
  }
};

class IndexedHeapCostTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  template <class F>
  static std::size_t comparisons_of(F&& f) {
    const std::size_t before = g_comparisons;
    f();
    return g_comparisons - before;
  }
};

TEST_P(IndexedHeapCostTest, NoOperationComparesMoreThanTheDepthAllows) {
  const std::uint32_t n = GetParam();
  const auto most = static_cast<std::size_t>(5 * std::log2(n) / 2 + 5);
  IndexedHeap<CountedKey> heap(n);
  Random random(n);
  for (std::uint32_t id = 0; id < n; ++id) {
    // Descending: every push climbs to the top.
    ASSERT_LE(comparisons_of([&] { heap.push(BlockId(id), {n - id}); }), most);
  }
  for (int i = 0; i < 2'000; ++i) {
    const BlockId id(static_cast<std::uint32_t>(random.below(n)));
    ASSERT_LE(comparisons_of([&] { heap.update(id, {random.below(2 * n)}); }), most);
    ASSERT_LE(comparisons_of([&] { heap.remove(id); }), most);
    ASSERT_LE(comparisons_of([&] { heap.push(id, {random.below(2 * n)}); }), most);
    std::optional<BlockId> victim;
    ASSERT_LE(comparisons_of([&] { victim = heap.pop(); }), most);
    ASSERT_EQ(comparisons_of([&] { heap.top(); }), 0u);
    heap.push(*victim, {random.below(2 * n)});
  }
}

TEST_P(IndexedHeapCostTest, APeekDoesNotDependOnTheSizeOfTheHeap) {
  const std::uint32_t n = GetParam();
  IndexedHeap<CountedKey> heap(n);
  Random random(n);
  for (std::uint32_t id = 0; id < n; ++id) heap.push(BlockId(id), {random.next()});
  for (const std::size_t k : {1u, 10u, 100u}) {
    std::vector<BlockId> out(k);
    const auto most = static_cast<std::size_t>(8 * static_cast<double>(k) * std::log2(4 * k));
    EXPECT_LE(comparisons_of([&] { ASSERT_EQ(heap.peek(out), k); }), most) << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, IndexedHeapCostTest, ::testing::Values(1'000u, 1'000'000u));

}  // namespace
}  // namespace ashlar::block
