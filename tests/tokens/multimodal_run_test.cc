#include "ashlar/tokens/multimodal_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_sequence.h"
#include "tokens/token_lists.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

using Runs = std::vector<MultimodalRun>;

// The frames of a block, written down slot by slot.
std::vector<std::uint8_t> frames_of(std::span<const Token> tokens, std::uint64_t offset, const Runs& runs) {
  std::vector<std::uint8_t> bytes;
  const auto push = [&bytes](std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const MultimodalRun* inside = nullptr;
    for (const MultimodalRun& run : runs) {
      if (offset + i >= run.offset && offset + i < run.offset + run.length) inside = &run;
    }
    push(inside != nullptr ? 1 : 0, 1);
    push(inside != nullptr ? offset + i - inside->offset : tokens[i].value(), 4);
    push(inside != nullptr ? inside->mm_hash : 0, 8);
  }
  return bytes;
}

TEST(MultimodalRunTest, FramedBlockGivesTheVector) {
  const std::vector<Token> tokens = {Token(1), Token(2), Token(77), Token(77)};
  const Runs runs = {{.mm_hash = 0xAA, .offset = 2, .length = 2}};
  EXPECT_EQ(SequenceHasher().local_hash(tokens, 0, runs).value(), 8157832854318084192u);
}

TEST(MultimodalRunTest, PlaceholderIdsDoNotCountAndItemsDo) {
  const Runs runs = {{.mm_hash = 0xAA, .offset = 2, .length = 2}};
  const Runs other = {{.mm_hash = 0xAB, .offset = 2, .length = 2}};
  const std::vector<Token> a = {Token(1), Token(2), Token(77), Token(77)};
  const std::vector<Token> b = {Token(1), Token(2), Token(78), Token(79)};
  const SequenceHasher hasher;
  EXPECT_EQ(hasher.local_hash(a, 0, runs), hasher.local_hash(b, 0, runs));
  EXPECT_NE(hasher.local_hash(a, 0, runs), hasher.local_hash(a, 0, other));
  EXPECT_NE(hasher.local_hash(a, 0, runs), hasher.local_hash(a));
}

TEST(MultimodalRunTest, FramesEqualTheEncodingWrittenOut) {
  Random random(41);
  const SequenceHasher hasher(Salt("lora", ""));
  for (int round = 0; round < 300; ++round) {
    const auto tokens = random_tokens(random, 1 + random.below(300));
    const std::uint64_t offset = random.below(100);
    Runs runs;
    for (std::uint64_t at = random.below(50); at < offset + tokens.size() + 50; at += random.below(60)) {
      runs.push_back({random.next(), at, static_cast<std::uint32_t>(1 + random.below(60))});
      at += runs.back().length;
    }
    const bool touched = !runs_touching(runs, offset, offset + tokens.size()).empty();
    const auto bytes = frames_of(tokens, offset, runs);
    const LocalHash expected =
        touched ? LocalHash(XXH3_64bits_withSeed(bytes.data(), bytes.size(), hasher.salt().seed()))
                : hasher.local_hash(tokens);
    ASSERT_EQ(hasher.local_hash(tokens, offset, runs), expected);
  }
}

TEST(MultimodalRunTest, RunsAreFoundByTheTokensTheyTouch) {
  const Runs runs = {{1, 4, 4}, {2, 8, 1}, {3, 20, 10}};
  EXPECT_EQ(runs_touching(runs, 0, 4).size(), 0u);
  EXPECT_EQ(runs_touching(runs, 0, 5).size(), 1u);
  EXPECT_EQ(runs_touching(runs, 7, 9).size(), 2u);
  EXPECT_EQ(runs_touching(runs, 9, 20).size(), 0u);
  EXPECT_EQ(runs_touching(runs, 25, 26).size(), 1u);
  EXPECT_EQ(runs_touching(runs, 30, 99).size(), 0u);
  EXPECT_EQ(runs_touching(runs, 0, 99).size(), 3u);
  EXPECT_EQ(runs_touching({}, 0, 99).size(), 0u);
}

TEST(MultimodalRunTest, WrongRunsAreRefused) {
  const std::uint64_t end = 100;
  const Runs valid = {{1, 10, 5}, {2, 15, 5}, {3, 99, 1}};
  EXPECT_TRUE(validate_runs(valid, 10, end));
  EXPECT_TRUE(validate_runs({}, 0, 0));
  const Runs wrong[] = {
      {{1, 10, 0}},                             // empty
      {{1, 20, 5}, {2, 10, 5}},                 // not sorted
      {{1, 10, 5}, {2, 14, 5}},                 // overlapping
      {{1, 9, 5}},                              // before the first token
      {{1, 99, 2}},                             // past the last token
      {{1, 101, 1}},                            // past the last token
      {{1, ~std::uint64_t{0}, 4'000'000'000}},  // wraps around
  };
  for (const Runs& runs : wrong) {
    const auto valid_runs = validate_runs(runs, 10, end);
    ASSERT_FALSE(valid_runs) << runs[0].offset;
    EXPECT_EQ(valid_runs.error().code(), ErrorCode::kInvalidArgument);
  }
}

class MultimodalSequence : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlockSize = 4;
  const std::vector<Token> tokens_ = tokens_from_to(1, 22);
  const Runs runs_ = {{.mm_hash = 0xAA, .offset = 6, .length = 5},
                      {.mm_hash = 0xBB, .offset = 20, .length = 2}};
  const SequenceHasher hasher_{Salt("lora", "")};
};

TEST_F(MultimodalSequence, BlocksTouchedByARunAreFramedAndOthersAreNot) {
  const auto sequence = TokenSequence::create(tokens_, kBlockSize, hasher_, runs_).value();
  ASSERT_EQ(sequence.blocks().size(), 5u);
  for (const TokenBlock& block : sequence.blocks()) {
    const bool touched = block.position() == 1 || block.position() == 2;
    EXPECT_EQ(block.local_hash() != hasher_.local_hash(block.tokens()), touched) << block.position();
    EXPECT_EQ(block.sequence_hash(), hasher_.hash_block(block.parent(), block.tokens(), runs_)->sequence);
  }
  EXPECT_EQ(sequence.runs().size(), 2u);
}

TEST_F(MultimodalSequence, TheRunInThePartialBlockCountsWhenItFills) {
  auto sequence = TokenSequence::create(tokens_, kBlockSize, hasher_, runs_).value();
  EXPECT_EQ(sequence.append(Token(23)).value(), std::nullopt);
  EXPECT_EQ(sequence.append(Token(24)).value(), 5u);
  const auto all = tokens_from_to(1, 24);
  EXPECT_EQ(sequence.blocks()[5].local_hash(), hasher_.local_hash(std::span(all).subspan(20), 20, runs_));
  // Later blocks are plain again.
  ASSERT_TRUE(sequence.extend(tokens_from_to(25, 28)));
  EXPECT_EQ(sequence.blocks()[6].local_hash(), hasher_.local_hash(tokens_from_to(25, 28)));
}

TEST_F(MultimodalSequence, ExtendingInPiecesEqualsCreatingAtOnce) {
  const auto whole = TokenSequence::create(tokens_, kBlockSize, hasher_, runs_).value();
  auto pieces = TokenSequence::create(kBlockSize, hasher_).value();
  ASSERT_TRUE(pieces.extend(std::span(tokens_).first(6)));
  ASSERT_TRUE(pieces.extend(std::span(tokens_).subspan(6, 7), std::span(runs_).first(1)));
  ASSERT_TRUE(pieces.extend(std::span(tokens_).subspan(13), std::span(runs_).subspan(1)));
  EXPECT_EQ(pieces.sequence_hashes(), whole.sequence_hashes());
  EXPECT_EQ(pieces.tokens(), whole.tokens());
}

TEST_F(MultimodalSequence, ShorteningIsUnsupportedAndChangesNothing) {
  auto sequence = TokenSequence::create(tokens_, kBlockSize, hasher_, runs_).value();
  const auto hashes = sequence.sequence_hashes();
  EXPECT_EQ(sequence.truncate(3).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(sequence.unwind(1).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(sequence.pop().error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(sequence.size(), tokens_.size());
  EXPECT_EQ(sequence.sequence_hashes(), hashes);
  auto parts = std::move(sequence).into_parts();
  EXPECT_EQ(parts.partial.pop_token().error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(parts.partial.pop_tokens(1).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(parts.partial.size(), 2u);
}

TEST_F(MultimodalSequence, ResetForgetsTheRuns) {
  auto sequence = TokenSequence::create(tokens_, kBlockSize, hasher_, runs_).value();
  sequence.reset();
  EXPECT_TRUE(sequence.runs().empty());
  ASSERT_TRUE(sequence.extend(tokens_));
  EXPECT_EQ(sequence.sequence_hashes(),
            TokenSequence::create(tokens_, kBlockSize, hasher_)->sequence_hashes());
  EXPECT_TRUE(sequence.pop());
}

TEST_F(MultimodalSequence, WrongRunsAreRefusedAndNothingIsAdded) {
  auto sequence = TokenSequence::create(tokens_, kBlockSize, hasher_, runs_).value();
  const Runs before_the_new_tokens = {{1, 21, 2}};
  const Runs past_the_end = {{1, 25, 2}};
  for (const Runs& runs : {before_the_new_tokens, past_the_end}) {
    EXPECT_EQ(sequence.extend(tokens_from_to(1, 4), runs).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(sequence.size(), tokens_.size());
    EXPECT_EQ(sequence.runs().size(), 2u);
  }
  EXPECT_EQ(TokenSequence::create(tokens_, kBlockSize, hasher_, past_the_end).error().code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ashlar::tokens
