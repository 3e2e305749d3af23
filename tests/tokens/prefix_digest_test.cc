// Prefix digests: what enters them, what keeps them apart, and where they are not known.
#include "ashlar/tokens/prefix_digest.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/colliding_tokens.h"

namespace ashlar::tokens {
namespace {

std::vector<Token> drawn_tokens(Random& random, std::size_t count) {
  std::vector<Token> drawn;
  for (std::size_t i = 0; i < count; ++i)
    drawn.emplace_back(static_cast<std::uint32_t>(random.below(50'000)));
  return drawn;
}

std::vector<SequenceHasher> hashers_of_every_kind() {
  std::vector<SequenceHasher> hashers;
  for (const HashScheme& scheme :
       {HashScheme::xxh3_chain(), HashScheme::xxh64_int64(), HashScheme::keyed128({1, 2, 3})}) {
    for (const Salt& salt : {Salt(), Salt("adapter", ""), Salt("", "tenant"), Salt("", "adapter")}) {
      hashers.emplace_back(scheme, salt);
    }
  }
  return hashers;
}

std::set<std::pair<std::uint64_t, std::uint64_t>> distinct(std::span<const BlockHashes> blocks) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> found;
  for (const BlockHashes& block : blocks) found.emplace(block.prefix.hi(), block.prefix.lo());
  return found;
}

TEST(PrefixDigestTest, OnlyKnownDigestsDisagree) {
  const PrefixDigest one = PrefixDigest::known(1, 2);
  const PrefixDigest other = PrefixDigest::known(1, 3);
  EXPECT_TRUE(one.is_known());
  EXPECT_FALSE(PrefixDigest().is_known());
  EXPECT_EQ(PrefixDigest::from_bits(one.hi(), one.lo()), one);
  EXPECT_TRUE(one.agrees_with(one));
  EXPECT_FALSE(one.agrees_with(other));
  EXPECT_TRUE(one.agrees_with(PrefixDigest()));
  EXPECT_TRUE(PrefixDigest().agrees_with(one));
}

TEST(PrefixDigestTest, EveryTokenEverySaltAndTheOrderEnter) {
  Random random(1);
  for (const std::uint32_t block_size : {1u, 4u, 16u, 17u, 64u, 300u}) {
    std::vector<BlockHashes> seen;
    const std::vector<Token> text = drawn_tokens(random, 3 * block_size);
    for (const SequenceHasher& hasher : hashers_of_every_kind()) {
      std::vector<BlockHashes> out(3);
      ASSERT_TRUE(hasher.hash_blocks(std::nullopt, text, block_size, out));
      for (const BlockHashes& block : out) ASSERT_TRUE(block.prefix.is_known());
      if (!hasher.scheme().is_keyed() && hasher.scheme().kind() != HashScheme::Kind::kXxh3Chain) {
        // One rule for all schemes without a key of their own.
        std::vector<BlockHashes> same(3);
        ASSERT_TRUE(SequenceHasher(HashScheme(), hasher.salt()).hash_blocks({}, text, block_size, same));
        for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(out[i].prefix, same[i].prefix);
        continue;
      }
      seen.insert(seen.end(), out.begin(), out.end());
    }
    const SequenceHasher hasher;
    for (std::size_t at = 0; at < text.size(); ++at) {
      std::vector<Token> changed = text;
      changed[at] = Token(changed[at].value() ^ 1);
      std::vector<BlockHashes> out(3);
      ASSERT_TRUE(hasher.hash_blocks(std::nullopt, changed, block_size, out));
      // The change is in this block's digest and in all after it.
      for (std::size_t i = at / block_size; i < 3; ++i) seen.push_back(out[i]);
    }
    EXPECT_EQ(distinct(seen).size(), seen.size()) << "blocks of " << block_size;
  }
}

TEST(PrefixDigestTest, PromptsThatCollideInTheirNamesHaveOtherDigests) {
  for (const std::uint32_t block_size : {4u, 8u, 16u, 32u}) {
    std::vector<std::vector<BlockHashes>> prompts;
    for (const std::uint32_t variant : {0u, 1u}) {
      std::vector<Token> text = testing::colliding_block(block_size, 7, variant);
      for (std::uint32_t i = 0; i < 3; ++i) {
        const auto more = testing::colliding_block(block_size, i, 0);  // the same tokens
        text.insert(text.end(), more.begin(), more.end());
      }
      prompts.emplace_back(4);
      ASSERT_TRUE(SequenceHasher().hash_blocks(std::nullopt, text, block_size, prompts.back()));
    }
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(prompts[0][i].sequence, prompts[1][i].sequence) << "blocks of " << block_size;
      EXPECT_FALSE(prompts[0][i].prefix.agrees_with(prompts[1][i].prefix))
          << "also where the block is the same";
    }
  }
}

TEST(PrefixDigestTest, WhatStandsForAnItemEntersAndItsPlaceholdersDoNot) {
  for (const HashScheme& scheme :
       {HashScheme::xxh3_chain(), HashScheme::xxh64_int64(), HashScheme::keyed128({1, 2, 3})}) {
    const SequenceHasher hasher(scheme, Salt());
    const auto last_of = [&](std::uint32_t placeholder, std::uint64_t item, std::uint64_t offset) {
      std::vector<Token> text;
      for (std::uint32_t i = 0; i < 200; ++i)
        text.emplace_back(i >= offset && i < offset + 90 ? placeholder : i);
      const MultimodalRun run{item, offset, 90};
      return TokenSequence::create(std::span<const Token>(text), 100, hasher, {&run, 1})
          ->blocks()
          .back()
          .prefix_digest();
    };
    const PrefixDigest one = last_of(151'655, 0xAA, 50);
    EXPECT_TRUE(one.is_known());
    EXPECT_EQ(last_of(999'999, 0xAA, 50), one);
    EXPECT_NE(last_of(151'655, 0xAB, 50), one);
    EXPECT_NE(last_of(151'655, 0xAA, 51), one);
  }
}

TEST(PrefixDigestTest, AfterABlockThatIsKnownByNameAloneNothingIsKnown) {
  Random random(2);
  const std::vector<Token> text = drawn_tokens(random, 32);
  for (const SequenceHasher& hasher : hashers_of_every_kind()) {
    const BlockHashes first = hasher.hash_block(std::nullopt, std::span(text).first(4)).value();
    std::vector<BlockHashes> out(7);
    ASSERT_TRUE(hasher.hash_blocks(first.sequence, std::span(text).subspan(4), 4, out));
    for (const BlockHashes& block : out) EXPECT_FALSE(block.prefix.is_known());
    std::vector<BlockHashes> known(7);
    ASSERT_TRUE(hasher.hash_blocks(first, std::span(text).subspan(4), 4, known));
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(known[i].sequence, out[i].sequence);
      EXPECT_TRUE(known[i].prefix.is_known());
    }
  }
}

TEST(PrefixDigestTest, AWrongNameBeforeABlockDoesNotChangeItsDigest) {
  Random random(3);
  const std::vector<Token> text = drawn_tokens(random, 8);
  const std::vector<Token> others = drawn_tokens(random, 4);
  for (const SequenceHasher& hasher : hashers_of_every_kind()) {
    const BlockHashes first = hasher.hash_block(std::nullopt, std::span(text).first(4)).value();
    const BlockHashes second = hasher.hash_block(first, std::span(text).last(4)).value();
    const SequenceHash forged = hasher.hash_block(std::nullopt, others)->sequence;
    const BlockHashes after = hasher.hash_block({forged, first.prefix}, std::span(text).last(4)).value();
    EXPECT_NE(after.sequence, second.sequence);
    EXPECT_EQ(after.prefix, second.prefix);
  }
}

TEST(PrefixDigestTest, BelongsToItsKey) {
  const std::vector<Token> text(16, Token(42));
  const auto digest = [&](const SequenceHasher& hasher) {
    return hasher.hash_block(std::nullopt, text)->prefix;
  };
  const SequenceHasher one(HashScheme(), Salt(), PrefixKey({1}));
  const SequenceHasher same(HashScheme(), Salt(), PrefixKey({1}));
  const SequenceHasher other(HashScheme(), Salt(), PrefixKey({2}));
  EXPECT_EQ(one, same);
  EXPECT_NE(one, other);
  EXPECT_NE(one, SequenceHasher());
  EXPECT_EQ(digest(one), digest(same));
  EXPECT_NE(digest(one), digest(other));
  EXPECT_NE(digest(one), digest(SequenceHasher()));
  EXPECT_EQ(digest(SequenceHasher()), digest(SequenceHasher(Salt())));
  // The same in every version: digests are kept where processes share a key.
  EXPECT_EQ(digest(one), PrefixDigest::from_bits(0x9f0b5226af0fa426u, 0x19798de10b1e5615u));
}

TEST(PrefixDigestTest, UnderAnotherKeyThatOfATokenBlockIsUnknown) {
  Random random(4);
  const std::vector<Token> tokens = drawn_tokens(random, 11);
  const PrefixKey one(PrefixKey::Bytes{1});
  const PrefixKey two(PrefixKey::Bytes{2});
  const auto blocks_of = [&](const SequenceHasher& hasher) {
    TokenSequence sequence = TokenSequence::create(std::span(tokens).first(8), 4, hasher).value();
    for (const Token token : std::span(tokens).subspan(8)) EXPECT_TRUE(sequence.append(token));
    PartialTokenBlock last = std::move(sequence).into_parts().partial;
    EXPECT_TRUE(last.add_token(Token(7)));
    TokenSequence again = TokenSequence::create(std::span(tokens).first(8), 4, hasher).value();
    std::vector<TokenBlock> out(again.blocks().begin(), again.blocks().end());
    out.push_back(std::move(last).commit().value());
    return out;
  };
  for (const TokenBlock& block : blocks_of(SequenceHasher({}, {}, one))) {
    EXPECT_EQ(block.prefix_digest_under(one), block.prefix_digest());
    EXPECT_EQ(block.prefix_digest_under(two), PrefixDigest());
  }
  for (const TokenBlock& block : blocks_of(SequenceHasher(HashScheme::keyed128({1, 2, 3}), {}, one)))
    EXPECT_EQ(block.prefix_digest_under(two), block.prefix_digest()) << "the scheme's key made it";
}

TEST(PrefixDigestTest, ASequenceHasThoseOfItsTokensHoweverItCameAbout) {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    const auto block_size = static_cast<std::uint32_t>(random.between(1, 20));
    auto sequence = TokenSequence::create(block_size).value();
    for (int step = 0; step < 10; ++step) {
      if (random.chance(0.3)) {
        ASSERT_TRUE(sequence.truncate(random.below(sequence.size() + 1)));
      } else if (random.chance(0.5)) {
        ASSERT_TRUE(sequence.extend(std::span<const Token>(drawn_tokens(random, random.below(60)))));
      } else {
        ASSERT_TRUE(sequence.append(Token(static_cast<std::uint32_t>(random.below(9)))));
      }
    }
    std::vector<BlockHashes> expected(sequence.blocks().size());
    ASSERT_TRUE(sequence.hasher().hash_blocks(std::nullopt, sequence.tokens(), block_size, expected));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(sequence.blocks()[i].prefix_digest(), expected[i].prefix);
    }
  }
}

}  // namespace
}  // namespace ashlar::tokens
