// Blocks of every size that models use, up to the largest: the same names whichever way the tokens come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/partial_token_block.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/sanitizers.h"
#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<std::uint32_t> numbers_of(std::span<const Token> tokens) {
  std::vector<std::uint32_t> out;
  for (const Token token : tokens) out.push_back(token.value());
  return out;
}

// Block by block, from the definition.
std::vector<SequenceHash> one_by_one(const std::vector<Token>& tokens, std::uint32_t size,
                                     const SequenceHasher& hasher, std::span<const MultimodalRun> runs = {}) {
  std::vector<SequenceHash> out;
  BlockBefore before = {};
  for (std::size_t begin = 0; begin + size <= tokens.size(); begin += size) {
    const BlockHashes hashes =
        hasher.hash_block(before, std::span(tokens).subspan(begin, size), runs).value();
    out.push_back(hashes.sequence);
    before = hashes;
  }
  return out;
}

class TokenBlockSizesTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  const std::uint32_t size_ = GetParam();
  Random random_{5};
  const std::vector<Token> tokens_ = random_tokens(random_, 3 * std::size_t{GetParam()} + GetParam() / 2);
  const std::array<HashScheme, 3> schemes_ = {HashScheme(), HashScheme::xxh64_int64(),
                                              HashScheme::keyed128({1, 2, 3})};
};

TEST_P(TokenBlockSizesTest, NamesDoNotDependOnHowTheTokensCome) {
  for (const HashScheme& scheme : schemes_) {
    const SequenceHasher hasher(scheme, Salt("l", "t"));
    const std::vector<SequenceHash> expected = one_by_one(tokens_, size_, hasher);
    ASSERT_EQ(expected.size(), 3u);
    const auto whole = TokenSequence::create(std::span<const Token>(tokens_), size_, hasher).value();
    EXPECT_EQ(whole.sequence_hashes(), expected);
    const std::vector<std::uint32_t> numbers = numbers_of(tokens_);
    const auto converted =
        TokenSequence::create(std::span<const std::uint32_t>(numbers), size_, hasher).value();
    EXPECT_EQ(converted.sequence_hashes(), expected);
    EXPECT_EQ(converted.tokens(), tokens_);
    auto grown = TokenSequence::create(size_, hasher).value();
    for (const Token token : tokens_) ASSERT_TRUE(grown.append(token));
    EXPECT_EQ(grown.sequence_hashes(), expected);
    auto pieces = TokenSequence::create(size_, hasher).value();
    for (std::size_t at = 0; at < numbers.size();) {
      const std::size_t n = std::min<std::size_t>(numbers.size() - at, 1 + random_.below(2 * size_));
      ASSERT_TRUE(pieces.extend(std::span<const std::uint32_t>(numbers).subspan(at, n)));
      at += n;
    }
    EXPECT_EQ(pieces.sequence_hashes(), expected);
    EXPECT_EQ(pieces.blocks()[2].prefix_digest(), whole.blocks()[2].prefix_digest());
    ASSERT_TRUE(pieces.truncate(size_ + 1));
    ASSERT_TRUE(pieces.extend(std::span<const std::uint32_t>(numbers).subspan(size_ + 1)));
    EXPECT_EQ(pieces.sequence_hashes(), expected);
  }
}

TEST_P(TokenBlockSizesTest, ImagesMayCrossBlocks) {
  const std::vector<MultimodalRun> runs = {{.mm_hash = 7, .offset = size_ / 2, .length = size_}};
  const auto plain = TokenSequence::create(std::span<const Token>(tokens_), size_).value();
  const auto converted =
      TokenSequence::create(std::span<const std::uint32_t>(numbers_of(tokens_)), size_, {}, runs).value();
  EXPECT_EQ(converted.sequence_hashes(), one_by_one(tokens_, size_, {}, runs));
  EXPECT_NE(converted.sequence_hashes()[0], plain.sequence_hashes()[0]);
}

TEST_P(TokenBlockSizesTest, AFullPartialBlockKnowsItsName) {
  auto partial = PartialTokenBlock::create(size_).value();
  ASSERT_TRUE(partial.add_tokens(std::span(tokens_).first(size_ - 1)));
  EXPECT_EQ(partial.sequence_hash(), std::nullopt);
  ASSERT_TRUE(partial.add_token(tokens_[size_ - 1]));
  const std::optional<SequenceHash> name = partial.sequence_hash();
  EXPECT_EQ(name, one_by_one(tokens_, size_, {})[0]);
  EXPECT_EQ(std::move(partial).commit().value().sequence_hash(), name);
}

// On a stack of 128 KiB, where one block of 65,536 tokens has no room.
TEST_P(TokenBlockSizesTest, NothingLargeLiesOnTheStack) {
  if (ashlar::testing::kSanitized) GTEST_SKIP() << "sanitizers use more stack";
  struct Work {
    const std::vector<Token>* tokens;
    std::uint32_t size;
    bool done = false;
  } work{&tokens_, size_};
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{128} << 10), 0);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    auto& todo = *static_cast<Work*>(given);
    const std::vector<std::uint32_t> numbers = numbers_of(*todo.tokens);
    const std::vector<MultimodalRun> runs = {{.mm_hash = 7, .offset = 1, .length = todo.size}};
    for (const HashScheme& scheme : {HashScheme(), HashScheme::xxh64_int64(), HashScheme::keyed128({1})}) {
      const SequenceHasher hasher(scheme, {});
      auto text = TokenSequence::create(std::span<const std::uint32_t>(numbers), todo.size, hasher).value();
      auto images =
          TokenSequence::create(std::span<const std::uint32_t>(numbers), todo.size, hasher, runs).value();
      todo.done = text.truncate(1).has_value() && images.append(Token(1)).has_value();
    }
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
  EXPECT_TRUE(work.done);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TokenBlockSizesTest,
                         ::testing::Values(1, 16, 784, 1056, 1600, 4096, 4097, 65536),
                         ::testing::PrintToStringParamName());

TEST(TokenBlockSizes, LargerOnesAreRefusedWithTheLimit) {
  const auto refused = TokenSequence::create(65537);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("65537"));
  EXPECT_THAT(refused.error().message(), HasSubstr("65536"));
}

}  // namespace
}  // namespace ashlar::tokens
