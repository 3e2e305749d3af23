#include "index/adapters/content_trie.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::index::detail {
namespace {

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
