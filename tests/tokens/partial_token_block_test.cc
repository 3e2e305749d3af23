#include "ashlar/tokens/partial_token_block.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

template <class T>
concept CommitsAsLvalue = requires(T& partial) { partial.commit(); };
static_assert(!CommitsAsLvalue<PartialTokenBlock>, "commit() consumes the block");
static_assert(!std::is_default_constructible_v<TokenBlock>, "blocks are made by committing");

std::vector<Token> copy(std::span<const Token> tokens) {
  return {tokens.begin(), tokens.end()};
}

TEST(PartialTokenBlockTest, StartsEmptyWithoutAParent) {
  const auto partial = PartialTokenBlock::create(4).value();
  EXPECT_EQ(partial.block_size(), 4u);
  EXPECT_EQ(partial.remaining(), 4u);
  EXPECT_TRUE(partial.empty());
  EXPECT_FALSE(partial.is_full());
  EXPECT_FALSE(partial.parent().has_value());
  EXPECT_FALSE(partial.root().has_value());
  EXPECT_EQ(partial.position(), 0u);
  EXPECT_EQ(partial.hasher(), SequenceHasher());
}

TEST(PartialTokenBlockTest, BlockSizesOutOfRangeAreRefused) {
  for (const std::uint32_t block_size : {0u, 65537u}) {
    EXPECT_EQ(PartialTokenBlock::create(block_size).error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(PartialTokenBlock::create(1));
  EXPECT_TRUE(PartialTokenBlock::create(1024));
}

TEST(PartialTokenBlockTest, TokensAreAddedAllOrNone) {
  auto partial = PartialTokenBlock::create(4).value();
  ASSERT_TRUE(partial.add_tokens(tokens_from_to(1, 2)));
  EXPECT_EQ(partial.add_tokens(tokens_from_to(3, 5)).error().code(), ErrorCode::kCapacity);
  EXPECT_EQ(copy(partial.tokens()), tokens_from_to(1, 2));
  ASSERT_TRUE(partial.add_token(Token(3)));
  ASSERT_TRUE(partial.add_token(Token(4)));
  EXPECT_TRUE(partial.is_full());
  EXPECT_EQ(partial.remaining(), 0u);
  EXPECT_EQ(partial.add_token(Token(5)).error().code(), ErrorCode::kCapacity);
  EXPECT_TRUE(partial.add_tokens({}));
}

TEST(PartialTokenBlockTest, PoppingTakesTokensOffTheEnd) {
  auto partial = PartialTokenBlock::create(4).value();
  ASSERT_TRUE(partial.add_tokens(tokens_from_to(1, 4)));
  EXPECT_EQ(partial.pop_token().value(), Token(4));
  EXPECT_EQ(partial.pop_tokens(4).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(copy(partial.tokens()), tokens_from_to(1, 3));
  ASSERT_TRUE(partial.pop_tokens(3));
  EXPECT_TRUE(partial.empty());
  EXPECT_EQ(partial.pop_token().error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(partial.pop_tokens(0));
}

TEST(PartialTokenBlockTest, CommittingAnIncompleteBlockGivesItBack) {
  auto partial = PartialTokenBlock::create(4).value();
  ASSERT_TRUE(partial.add_tokens(tokens_from_to(1, 3)));
  auto refused = std::move(partial).commit();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kNotReady);
  PartialTokenBlock back = std::move(refused).error().guard;
  ASSERT_TRUE(back.add_token(Token(4)));
  EXPECT_EQ(std::move(back).commit()->local_hash().value(), 14643705804678351452u);
}

TEST(PartialTokenBlockTest, CommittedBlocksChain) {
  const SequenceHasher hasher;
  auto first = PartialTokenBlock::create(4, hasher).value();
  ASSERT_TRUE(first.add_tokens(tokens_from_to(1, 4)));
  const TokenBlock root = std::move(first).commit().value();
  EXPECT_EQ(copy(root.tokens()), tokens_from_to(1, 4));
  EXPECT_EQ(root.block_size(), 4u);
  EXPECT_EQ(root.position(), 0u);
  EXPECT_FALSE(root.parent().has_value());
  EXPECT_EQ(root.root(), root.sequence_hash());

  auto next = PartialTokenBlock::after(root, hasher);
  EXPECT_EQ(next.parent(), root.sequence_hash());
  EXPECT_EQ(next.root(), root.sequence_hash());
  EXPECT_EQ(next.position(), 1u);
  EXPECT_EQ(next.block_size(), 4u);
  ASSERT_TRUE(next.add_tokens(tokens_from_to(5, 8)));
  const TokenBlock child = std::move(next).commit().value();
  EXPECT_EQ(child.sequence_hash().chain(), 4945711292740353085u);
  EXPECT_EQ(child.parent(), root.sequence_hash());
  EXPECT_EQ(child.root(), root.sequence_hash());
}

TEST(PartialTokenBlockTest, AHasherOfAnotherKindIsRefusedAtCommit) {
  auto first = PartialTokenBlock::create(1).value();
  ASSERT_TRUE(first.add_token(Token(1)));
  const TokenBlock root = std::move(first).commit().value();
  auto next = PartialTokenBlock::after(root, SequenceHasher(HashScheme::keyed128({1}), Salt()));
  ASSERT_TRUE(next.add_token(Token(2)));
  auto refused = std::move(next).commit();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().guard.size(), 1u);
}

}  // namespace
}  // namespace ashlar::tokens
