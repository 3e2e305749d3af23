#include "ashlar/tokens/engine_hash.h"

#include <gtest/gtest.h>

#include <vector>

#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

TEST(RouterHashTest, WithoutItemsItIsTheLocalHash) {
  const auto tokens = tokens_from_to(1, 4);
  EXPECT_EQ(router_local_hash(tokens, {}, Salt::kBaseSeed).value(), 14643705804678351452u);
  EXPECT_EQ(router_local_hash(tokens, {}, Salt("a", "b").seed()),
            SequenceHasher(Salt("a", "b")).local_hash(tokens));
}

TEST(RouterHashTest, ItemsFollowTheTokensInAscendingOrder) {
  const auto tokens = tokens_from_to(1, 4);
  const std::vector<std::uint64_t> ascending = {0xAA, 0xBB};
  const std::vector<std::uint64_t> descending = {0xBB, 0xAA};
  EXPECT_EQ(router_local_hash(tokens, ascending, Salt::kBaseSeed).value(), 5252553193920350874u);
  EXPECT_EQ(router_local_hash(tokens, descending, Salt::kBaseSeed).value(), 5252553193920350874u);
}

TEST(RouterHashTest, EagleWindowsReachOneTokenIntoTheNextBlock) {
  const auto one = eagle_local_hashes(tokens_from_to(1, 5), 4, Salt::kBaseSeed).value();
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].value(), 1914873892905420881u);
  const auto two = eagle_local_hashes(tokens_from_to(1, 9), 4, Salt::kBaseSeed).value();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0], one[0]);
  EXPECT_EQ(two[1], router_local_hash(tokens_from_to(5, 9), {}, Salt::kBaseSeed));
}

TEST(RouterHashTest, OnlyWholeEagleWindowsCount) {
  EXPECT_TRUE(eagle_local_hashes({}, 4, 1).value().empty());
  EXPECT_TRUE(eagle_local_hashes(tokens_from_to(1, 4), 4, 1).value().empty());
  EXPECT_EQ(eagle_local_hashes(tokens_from_to(1, 8), 4, 1).value().size(), 1u);
  EXPECT_EQ(eagle_local_hashes(tokens_from_to(1, 3), 1, 1).value().size(), 2u);
}

TEST(RouterHashTest, EagleRefusesBlockSizesOutOfRange) {
  EXPECT_EQ(eagle_local_hashes({}, 0, 1).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(eagle_local_hashes({}, 65537, 1).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ashlar::tokens
