// TokenSequence under random operations, beside a model that keeps a flat list and hashes it from the start
// each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/token_sequence.h"
#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

void expect_equal_to_model(const TokenSequence& sequence, const std::vector<Token>& model) {
  const std::uint32_t block_size = sequence.block_size();
  ASSERT_EQ(sequence.size(), model.size());
  ASSERT_EQ(sequence.empty(), model.empty());
  ASSERT_EQ(sequence.tokens(), model);
  ASSERT_EQ(sequence.blocks().size(), model.size() / block_size);
  ASSERT_FALSE(sequence.partial().is_full());

  std::optional<SequenceHash> parent;
  std::optional<SequenceHash> root;
  for (std::size_t i = 0; i < sequence.blocks().size(); ++i) {
    const TokenBlock& block = sequence.blocks()[i];
    const auto content = std::span(model).subspan(i * block_size, block_size);
    const BlockHashes hashes = sequence.hasher().hash_block(parent, content).value();
    ASSERT_TRUE(std::ranges::equal(block.tokens(), content));
    ASSERT_EQ(block.local_hash(), hashes.local);
    ASSERT_EQ(block.sequence_hash(), hashes.sequence);
    ASSERT_EQ(block.position(), i);
    ASSERT_EQ(block.parent(), parent);
    if (!root) root = hashes.sequence;
    ASSERT_EQ(block.root(), *root);
    parent = hashes.sequence;
  }
  ASSERT_EQ(sequence.partial().parent(), parent);
  ASSERT_EQ(sequence.partial().root(), root);
  ASSERT_EQ(sequence.partial().position(), sequence.blocks().size());
  ASSERT_TRUE(std::ranges::equal(sequence.partial().tokens(),
                                 std::span(model).subspan(sequence.blocks().size() * block_size)));
}

// One random operation on both.
void step(Random& random, TokenSequence& sequence, std::vector<Token>& model) {
  const std::uint32_t block_size = sequence.block_size();
  const std::size_t blocks_before = sequence.blocks().size();
  const std::size_t bound = std::size_t{block_size} * 6;
  switch (random.below(9)) {
    case 0:
    case 1:
    case 2: {
      const Token token(static_cast<std::uint32_t>(random.next()));
      const auto completed = sequence.append(token).value();
      model.push_back(token);
      const bool completes = model.size() % block_size == 0;
      ASSERT_EQ(completed, completes ? std::optional<std::size_t>(blocks_before) : std::nullopt);
      break;
    }
    case 3:
    case 4: {
      const auto tokens = random_tokens(random, random.below(bound));
      const BlockRange completed = sequence.extend(tokens).value();
      model.insert(model.end(), tokens.begin(), tokens.end());
      ASSERT_EQ(completed, (BlockRange{blocks_before, model.size() / block_size}));
      break;
    }
    case 5: {
      const std::size_t length = random.below(model.size() + 2);
      const auto truncated = sequence.truncate(length);
      ASSERT_EQ(truncated.has_value(), length <= model.size());
      model.resize(std::min(length, model.size()));
      break;
    }
    case 6: {
      const std::size_t count = random.below(std::min(bound, model.size()) + 2);
      const auto unwound = sequence.unwind(count);
      ASSERT_EQ(unwound.has_value(), count <= model.size());
      if (unwound) model.resize(model.size() - count);
      break;
    }
    case 7: {
      const auto popped = sequence.pop().value();
      ASSERT_EQ(popped, model.empty() ? std::nullopt : std::optional<Token>(model.back()));
      if (!model.empty()) model.pop_back();
      break;
    }
    default:
      if (random.chance(0.1)) {
        sequence.reset();
        model.clear();
      }
  }
}

class TokenSequenceModel : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(TokenSequenceModel, EqualsHashingFromTheStartAfterEveryOperation) {
  Random random(GetParam());
  const HashScheme schemes[] = {HashScheme::xxh3_chain(), HashScheme::xxh64_int64(),
                                HashScheme::keyed128({5})};
  for (const HashScheme& scheme : schemes) {
    SCOPED_TRACE(std::string(scheme.name()));
    auto sequence = TokenSequence::create(GetParam(), SequenceHasher(scheme, Salt("lora", "tenant"))).value();
    std::vector<Token> model;
    for (int i = 0; i < 150; ++i) {
      step(random, sequence, model);
      if (HasFatalFailure()) return;
      expect_equal_to_model(sequence, model);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BlockSizes, TokenSequenceModel,
                         ::testing::Values(1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 32, 61, 64, 100, 128, 255, 256,
                                           1000, 1024));

}  // namespace
}  // namespace ashlar::tokens
