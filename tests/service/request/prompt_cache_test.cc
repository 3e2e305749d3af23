#include "service/request/prompt_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace ashlar::service {
namespace {

TEST(PromptCache, CountsWhatIsKeptOfBlocks) {
  const auto list = [](std::uint32_t first) {
    std::vector<tokens::Token> ids;
    for (std::uint32_t i = 0; i < 100; ++i) ids.emplace_back(first + i);
    return std::make_shared<const std::vector<tokens::Token>>(std::move(ids));
  };
  const std::size_t each = PromptCache::bytes_of(*list(0));
  PromptCache cache(3 * each);
  for (std::uint64_t i = 1; i <= 3; ++i) cache.put({i, 0}, list(static_cast<std::uint32_t>(i)), 1, false);
  EXPECT_EQ(cache.size(), 3u);
  const TokenList third = cache.find({3, 0});
  const auto hashed = hash_from(nullptr, 0, *third, {}, 4);
  cache.set_hashed({3, 0}, list(3), hashed);
  EXPECT_EQ(cache.hashed({3, 0}), nullptr) << "another list, though an equal one";
  cache.set_hashed({4, 0}, third, hashed);
  EXPECT_EQ(cache.size(), 3u);
  cache.set_hashed({3, 0}, third, hashed);
  EXPECT_EQ(cache.hashed({3, 0}), hashed);
  EXPECT_EQ(cache.size(), 2u) << "the oldest made room";
  EXPECT_EQ(cache.find({1, 0}), nullptr);
  EXPECT_GT(cache.bytes(), 2 * each);
  EXPECT_LE(cache.bytes(), 3 * each);
  cache.put({3, 0}, list(5), 1, false);
  EXPECT_EQ(cache.hashed({3, 0}), nullptr) << "of other tokens";
  EXPECT_EQ(cache.bytes(), 2 * each);
  cache.drop_all(1);
  EXPECT_EQ(cache.bytes(), 0u);
}

}  // namespace
}  // namespace ashlar::service
