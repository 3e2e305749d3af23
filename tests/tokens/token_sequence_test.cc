#include "ashlar/tokens/token_sequence.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

TEST(TokenSequenceTest, BlockSizesOutOfRangeAreRefusedWithTheValue) {
  for (const std::uint32_t block_size : {0u, 65537u}) {
    const auto sequence = TokenSequence::create(block_size);
    ASSERT_FALSE(sequence);
    EXPECT_EQ(sequence.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(sequence.error().message().find(std::to_string(block_size)), std::string::npos);
    EXPECT_FALSE(TokenSequence::create(tokens_from_to(1, 4), block_size));
  }
}

TEST(TokenSequenceTest, CutsTokensIntoHashedBlocksAndARest) {
  const auto sequence = TokenSequence::create(tokens_from_to(1, 14), 4).value();
  EXPECT_EQ(sequence.size(), 14u);
  ASSERT_EQ(sequence.blocks().size(), 3u);
  EXPECT_EQ(sequence.blocks()[0].sequence_hash().chain(), 14643705804678351452u);
  EXPECT_EQ(sequence.blocks()[1].sequence_hash().chain(), 4945711292740353085u);
  EXPECT_EQ(sequence.blocks()[2].sequence_hash().chain(), 12583592247330656132u);
  EXPECT_EQ(sequence.partial().size(), 2u);
  EXPECT_EQ(sequence.partial().parent(), sequence.blocks()[2].sequence_hash());
  EXPECT_EQ(sequence.partial().root(), sequence.blocks()[0].sequence_hash());
  EXPECT_EQ(sequence.tokens(), tokens_from_to(1, 14));
}

TEST(TokenSequenceTest, PlainIntegersAreTokens) {
  const std::vector<std::uint32_t> values = {1, 2, 3, 4, 5};
  auto sequence = TokenSequence::create(values, 4).value();
  EXPECT_EQ(sequence.extend(values).value(), (BlockRange{1, 2}));
  EXPECT_EQ(sequence.blocks()[0].sequence_hash().chain(), 14643705804678351452u);
  EXPECT_EQ(sequence.token_at(5), Token(1));
}

TEST(TokenSequenceTest, AppendTellsWhichBlockItCompleted) {
  auto sequence = TokenSequence::create(2).value();
  EXPECT_EQ(sequence.append(Token(1)).value(), std::nullopt);
  EXPECT_EQ(sequence.append(Token(2)).value(), 0u);
  EXPECT_EQ(sequence.append(Token(3)).value(), std::nullopt);
  EXPECT_EQ(sequence.append(Token(4)).value(), 1u);
}

TEST(TokenSequenceTest, ExtendTellsWhichBlocksItCompleted) {
  auto sequence = TokenSequence::create(4).value();
  EXPECT_EQ(sequence.extend(tokens_from_to(1, 3)).value(), (BlockRange{0, 0}));
  EXPECT_EQ(sequence.extend(tokens_from_to(4, 13)).value(), (BlockRange{0, 3}));
  EXPECT_TRUE(sequence.extend(std::span<const Token>()).value().empty());
  EXPECT_EQ(sequence.extend(tokens_from_to(14, 16)).value(), (BlockRange{3, 4}));
  EXPECT_EQ(sequence.sequence_hashes(), TokenSequence::create(tokens_from_to(1, 16), 4)->sequence_hashes());
}

TEST(TokenSequenceTest, TruncateReturnsTheTokensOfACutBlockToThePartialBlock) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 14), 4).value();
  ASSERT_TRUE(sequence.truncate(6));
  EXPECT_EQ(sequence.blocks().size(), 1u);
  EXPECT_EQ(sequence.tokens(), tokens_from_to(1, 6));
  EXPECT_EQ(sequence.partial().parent(), sequence.blocks()[0].sequence_hash());
  ASSERT_TRUE(sequence.extend(tokens_from_to(7, 8)));
  EXPECT_EQ(sequence.blocks()[1].sequence_hash().chain(), 4945711292740353085u);
  ASSERT_TRUE(sequence.truncate(0));
  EXPECT_TRUE(sequence.empty());
  EXPECT_FALSE(sequence.partial().parent().has_value());
  EXPECT_FALSE(sequence.partial().root().has_value());
}

TEST(TokenSequenceTest, ShorteningByMoreThanThereIsChangesNothing) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 5), 4).value();
  EXPECT_EQ(sequence.truncate(6).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence.unwind(6).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence.tokens(), tokens_from_to(1, 5));
  ASSERT_TRUE(sequence.unwind(5));
  EXPECT_EQ(sequence.pop().value(), std::nullopt);
}

TEST(TokenSequenceTest, PopCrossesBlockBoundaries) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 5), 2).value();
  for (std::uint32_t last = 5; last > 0; --last) EXPECT_EQ(sequence.pop().value(), Token(last));
  EXPECT_TRUE(sequence.empty());
}

TEST(TokenSequenceTest, TokensAreReadAcrossBlocks) {
  const auto sequence = TokenSequence::create(tokens_from_to(0, 13), 4).value();
  for (std::uint32_t i = 0; i < 14; ++i) EXPECT_EQ(sequence.token_at(i), Token(i));
  EXPECT_EQ(sequence.tokens_at(2, 13).value(), tokens_from_to(2, 12));
  EXPECT_TRUE(sequence.tokens_at(14, 14).value().empty());
  EXPECT_EQ(sequence.tokens_at(3, 2).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence.tokens_at(3, 15).error().code(), ErrorCode::kInvalidArgument);
}

TEST(TokenSequenceDeathTest, ReadingPastTheEndStops) {
  const auto sequence = TokenSequence::create(tokens_from_to(1, 2), 4).value();
  EXPECT_DEATH(sequence.token_at(2), "token 2 of a sequence of 2");
}

TEST(TokenSequenceTest, HashesAreWrittenIntoASpanAsFarAsTheyFit) {
  const auto sequence = TokenSequence::create(tokens_from_to(1, 12), 4).value();
  const auto hashes = sequence.sequence_hashes();
  ASSERT_EQ(hashes.size(), 3u);
  std::vector<SequenceHash> two(2);
  EXPECT_EQ(sequence.sequence_hashes(two), 2u);
  EXPECT_EQ(two[1], hashes[1]);
  std::vector<SequenceHash> four(4);
  EXPECT_EQ(sequence.sequence_hashes(four), 3u);
}

TEST(TokenSequenceTest, PartsContinueTheSequence) {
  auto sequence = TokenSequence::create(tokens_from_to(1, 6), 4).value();
  auto [blocks, partial] = std::move(sequence).into_parts();
  ASSERT_EQ(blocks.size(), 1u);
  ASSERT_TRUE(partial.add_tokens(tokens_from_to(7, 8)));
  EXPECT_EQ(std::move(partial).commit()->sequence_hash().chain(), 4945711292740353085u);
}

TEST(TokenSequenceTest, CopiesAreIndependent) {
  auto original = TokenSequence::create(tokens_from_to(1, 6), 4).value();
  auto twin = original;
  ASSERT_TRUE(twin.extend(tokens_from_to(7, 9)));
  EXPECT_EQ(original.tokens(), tokens_from_to(1, 6));
  ASSERT_TRUE(original.truncate(1));
  EXPECT_EQ(twin.tokens(), tokens_from_to(1, 9));
}

}  // namespace
}  // namespace ashlar::tokens
