#include "index/adapters/content_trie.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "ashlar/base/random.h"
#include "index/common/flat_map.h"

namespace ashlar::index::detail {
namespace {

struct Spread {
  std::uint64_t operator()(std::uint64_t key, std::uint64_t seed) const noexcept {
    return seeded_hash(key, seed);
  }
};
// Many keys share a home, so that runs are long.
struct Crowded {
  std::uint64_t operator()(std::uint64_t key, std::uint64_t seed) const noexcept {
    return seeded_hash(key % 7, seed);
  }
};

template <class Hash>
void compare_with_a_map(std::uint64_t keys, std::uint64_t seed) {
  FlatMap<std::uint64_t, std::uint64_t, Hash> map;
  std::map<std::uint64_t, std::uint64_t> expected;
  Random random(seed);
  for (int round = 0; round < 6; ++round) {
    for (int step = 0; step < 2000; ++step) {
      const std::uint64_t key = random.below(keys);
      // Rounds grow and shrink by turns.
      if (random.chance(round % 2 == 0 ? 0.7 : 0.2)) {
        const auto [value, is_new] = map.try_emplace(key);
        ASSERT_EQ(is_new, !expected.contains(key));
        *value = expected[key] = random.next();
      } else {
        ASSERT_EQ(map.erase(key), expected.erase(key) == 1);
      }
      ASSERT_EQ(map.size(), expected.size());
    }
    std::map<std::uint64_t, std::uint64_t> found;
    map.for_each([&](std::uint64_t key, std::uint64_t value) { found[key] = value; });
    ASSERT_EQ(found, expected);
    for (std::uint64_t key = 0; key < keys; ++key) {
      const std::uint64_t* const value = map.find(key);
      ASSERT_EQ(value != nullptr, expected.contains(key));
      if (value != nullptr) {
        ASSERT_EQ(*value, expected[key]);
      }
    }
  }
  while (!expected.empty()) {
    ASSERT_TRUE(map.erase(expected.begin()->first));
    expected.erase(expected.begin());
  }
  EXPECT_EQ(map.bytes(), 0u);
}

TEST(FlatMapTest, BehavesLikeAMapAndOwnsNothingWhenEmpty) {
  compare_with_a_map<Spread>(1000, 1);
  compare_with_a_map<Crowded>(60, 2);
}

TEST(FlatMapTest, ShrinksWithItsSize) {
  FlatMap<std::uint64_t, std::uint64_t, Spread> map;
  for (std::uint64_t key = 0; key < 10'000; ++key) map.try_emplace(key);
  const std::size_t full = map.bytes();
  for (std::uint64_t key = 10; key < 10'000; ++key) map.erase(key);
  EXPECT_LT(map.bytes(), full / 50);
  for (std::uint64_t key = 0; key < 10; ++key) EXPECT_NE(map.find(key), nullptr);
}

TEST(ContentTrieTest, EqualPathsHaveOneNumberAndOthersHaveOthers) {
  ContentTrie trie;
  const auto a = trie.find_or_add(ContentTrie::kRoot, LocalHash(1));
  const auto ab = trie.find_or_add(a, LocalHash(2));
  const auto b = trie.find_or_add(ContentTrie::kRoot, LocalHash(2));
  EXPECT_NE(ab, b);
  EXPECT_EQ(trie.find_or_add(a, LocalHash(2)), ab);
  EXPECT_EQ(trie.find(a, LocalHash(2)), ab);
  EXPECT_EQ(trie.find(b, LocalHash(2)), ContentTrie::kNone);
  EXPECT_EQ(trie.parent(ab), a);
  EXPECT_EQ(trie.size(), 3u);
}

TEST(ContentTrieTest, APathLivesWhileItOrALongerOneIsHeld) {
  ContentTrie trie;
  ContentTrie::Id id = ContentTrie::kRoot;
  std::vector<ContentTrie::Id> path;
  path.reserve(1000);
  for (std::uint64_t i = 0; i < 1000; ++i) path.push_back(id = trie.find_or_add(id, LocalHash(i)));
  trie.hold(path[499]);
  trie.hold(path[999]);
  trie.release(path[999]);
  EXPECT_EQ(trie.size(), 500u);
  trie.trim(path[499]);
  EXPECT_EQ(trie.size(), 500u);
  trie.release(path[499]);
  EXPECT_EQ(trie.size(), 0u);
  EXPECT_EQ(trie.bytes(), 0u);
}

TEST(ContentTrieTest, NumbersAreUsedAgain) {
  ContentTrie trie;
  trie.hold(trie.find_or_add(ContentTrie::kRoot, LocalHash(1)));
  std::size_t bytes = 0;
  for (std::uint64_t i = 2; i < 1000; ++i) {
    const auto id = trie.find_or_add(ContentTrie::kRoot, LocalHash(i));
    trie.hold(id);
    trie.release(id);
    if (i == 2) bytes = trie.bytes();
  }
  EXPECT_EQ(trie.bytes(), bytes);
  EXPECT_EQ(trie.size(), 1u);
}

}  // namespace
}  // namespace ashlar::index::detail
