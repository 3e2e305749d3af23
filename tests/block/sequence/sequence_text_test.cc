#include "block/sequence/sequence_text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "support/block_fixture.h"

namespace ashlar::block::detail {
namespace {

using support::value_of;
using tokens::SequenceHash;
using tokens::Token;

TEST(SequenceTextTest, EveryPositionThereIsHasItsName) {
  constexpr std::size_t kPositions = std::size_t{SequenceHash::kMaxPosition} + 1;
  constexpr std::size_t kLeft = 10;    // positions without a name yet
  constexpr std::size_t kBehind = 30;  // blocks behind the last position
  SequenceText text;
  text.rules = std::make_shared<const TextRules>(TextRules{tokens::SequenceHasher(), {}, 1});
  text.tokens.assign(kPositions + kBehind, Token(7));
  text.hashes.reserve(kPositions);
  text.hashes.resize(kPositions - kLeft);
  text.hashes.back() = value_of(SequenceHash::make(kPositions - kLeft - 1, 5, 6));

  const std::span<const SequenceHash> names = text.names(text.full_blocks());
  ASSERT_EQ(names.size(), kPositions);
  EXPECT_EQ(names.back().position(), SequenceHash::kMaxPosition);
  for (std::size_t i = kPositions - kLeft; i < kPositions; ++i)
    EXPECT_EQ(names[i], value_of(text.rules->hasher.hash_block(names[i - 1], text.block(i), {})).sequence);
  EXPECT_EQ(text.names(text.full_blocks()).size(), kPositions);  // and no more are found later
}

}  // namespace
}  // namespace ashlar::block::detail
