#include "ashlar/tokens/sequence_hasher.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "ashlar/base/random.h"
#include "tokens/token_lists.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

constexpr HashScheme::Key kKey = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13, 14, 15, 16};

// Hashes block by block, each with the one before it as its parent.
std::vector<BlockHashes> hash_one_by_one(const SequenceHasher& hasher, BlockBefore parent,
                                         std::span<const Token> tokens, std::size_t block_size) {
  std::vector<BlockHashes> hashes;
  for (std::size_t i = 0; i + block_size <= tokens.size(); i += block_size) {
    hashes.push_back(hasher.hash_block(parent, tokens.subspan(i, block_size)).value());
    parent = hashes.back();
  }
  return hashes;
}

TEST(SequenceHasherTest, Xxh3ChainGivesTheVectorsOfTheField) {
  const SequenceHasher hasher;
  const auto hashes = hash_one_by_one(hasher, std::nullopt, tokens_from_to(1, 12), 4);
  ASSERT_EQ(hashes.size(), 3u);
  EXPECT_EQ(hashes[0].local.value(), 14643705804678351452u);
  EXPECT_EQ(hashes[0].sequence.chain(), 14643705804678351452u);
  EXPECT_EQ(hashes[1].local.value(), 16777012769546811212u);
  EXPECT_EQ(hashes[1].sequence.chain(), 4945711292740353085u);
  EXPECT_EQ(hashes[2].local.value(), 483935686894639516u);
  EXPECT_EQ(hashes[2].sequence.chain(), 12583592247330656132u);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(hashes[i].sequence.position(), i);
  EXPECT_EQ(hashes[0].sequence.parent_fragment(), 0u);
  EXPECT_EQ(hashes[1].sequence.parent_fragment(), hashes[0].sequence.fragment_for_child());
  EXPECT_EQ(hasher.local_hash(tokens_from_to(0, 15)).value(), 15310707395893867146u);
}

TEST(SequenceHasherTest, SaltsGiveTheVectorsOfTheField) {
  const auto tokens = tokens_from_to(1, 4);
  EXPECT_EQ(SequenceHasher(Salt("adapter-a", "")).local_hash(tokens).value(), 11381080598872079209u);
  EXPECT_EQ(SequenceHasher(Salt("", "tenant-a")).local_hash(tokens).value(), 5738685477468498325u);
  EXPECT_EQ(SequenceHasher(Salt("adapter-a", "tenant-a")).local_hash(tokens).value(), 9967753091837871098u);
}

TEST(SequenceHasherTest, Xxh64Int64GivesItsVectors) {
  const SequenceHasher hasher(HashScheme::xxh64_int64(), Salt());
  const auto hashes = hash_one_by_one(hasher, std::nullopt, tokens_from_to(1, 8), 4);
  EXPECT_EQ(hashes[0].sequence.chain(), 8356527653647720045u);
  EXPECT_EQ(hashes[0].local.value(), 8356527653647720045u);
  EXPECT_EQ(hashes[1].sequence.chain(), 610383040053763902u);
  EXPECT_EQ(hashes[1].local, hasher.local_hash(tokens_from_to(5, 8)));
}

TEST(SequenceHasherTest, Xxh64Int64SaltStandsWhereThePreviousHashWould) {
  const Salt salt("", "tenant-a");
  const SequenceHasher hasher(HashScheme::xxh64_int64(), salt);
  const std::vector<std::uint64_t> input = {salt.seed(), 1, 2, 3, 4};
  EXPECT_EQ(hasher.hash_block(std::nullopt, tokens_from_to(1, 4))->sequence.chain(),
            XXH64(input.data(), input.size() * sizeof(input[0]), 0));
}

TEST(SequenceHasherTest, Xxh64Int64HashesLongBlocksAsOneInput) {
  const SequenceHasher hasher(HashScheme::xxh64_int64(), Salt());
  for (const std::uint32_t count : {63u, 64u, 65u, 128u, 1024u}) {
    std::vector<std::int64_t> input;
    for (std::uint32_t i = 0; i < count; ++i) input.push_back(std::numeric_limits<std::uint32_t>::max() - i);
    std::vector<Token> tokens;
    for (const std::int64_t value : input) tokens.emplace_back(static_cast<std::uint32_t>(value));
    EXPECT_EQ(hasher.local_hash(tokens).value(), XXH64(input.data(), input.size() * sizeof(input[0]), 0));
  }
}

TEST(SequenceHasherTest, CachedSecretEqualsTheSeededHash) {
  Random random(21);
  const auto tokens = random_tokens(random, 2048);
  for (const Salt& salt : {Salt(), Salt("lora", ""), Salt("lora", "tenant")}) {
    const SequenceHasher hasher(salt);
    for (std::size_t count = 1; count <= tokens.size(); ++count) {
      ASSERT_EQ(hasher.local_hash(std::span(tokens).first(count)).value(),
                XXH3_64bits_withSeed(tokens.data(), count * sizeof(Token), salt.seed()))
          << count << " tokens";
    }
  }
}

class EveryScheme : public ::testing::TestWithParam<HashScheme> {};

TEST_P(EveryScheme, ABatchEqualsBlockByBlock) {
  Random random(22);
  const SequenceHasher hasher(GetParam(), Salt("lora", "tenant"));
  const BlockHashes parent = hasher.hash_block(std::nullopt, tokens_from_to(1, 3)).value();
  for (const std::uint32_t block_size : {1u, 2u, 4u, 16u, 32u, 33u, 64u, 100u, 256u, 1024u}) {
    for (const std::size_t blocks : {0u, 1u, 2u, 65u}) {
      const auto tokens = random_tokens(random, blocks * block_size + random.below(block_size));
      for (const BlockBefore& before : {BlockBefore(), BlockBefore(parent), BlockBefore(parent.sequence)}) {
        std::vector<BlockHashes> out(blocks + 1);
        EXPECT_EQ(hasher.hash_blocks(before, tokens, block_size, out).value(), blocks);
        EXPECT_EQ(out.back(), BlockHashes());
        out.pop_back();
        EXPECT_EQ(out, hash_one_by_one(hasher, before, tokens, block_size));
        std::vector<BlockHashes> names(blocks);
        EXPECT_EQ(hasher.hash_names(before.name, tokens, block_size, names).value(), blocks);
        for (std::size_t i = 0; i < blocks; ++i) {
          EXPECT_EQ(names[i].local, out[i].local);
          EXPECT_EQ(names[i].sequence, out[i].sequence);
        }
      }
    }
  }
}

TEST_P(EveryScheme, ABatchCrossesTheModesOfNames) {
  const SequenceHasher hasher(GetParam(), Salt());
  Random random(23);
  const auto tokens = random_tokens(random, 66'000);
  std::vector<BlockHashes> out(tokens.size());
  ASSERT_EQ(hasher.hash_blocks(std::nullopt, tokens, 1, out).value(), tokens.size());
  EXPECT_EQ(out, hash_one_by_one(hasher, std::nullopt, tokens, 1));
  for (const std::uint32_t position : {0u, 255u, 256u, 65'535u, 65'536u}) {
    EXPECT_EQ(out[position].sequence.position(), position);
  }
}

TEST_P(EveryScheme, PositionsPastTheLastAreRefusedAndNothingIsWritten) {
  const SequenceHasher hasher(GetParam(), Salt());
  const auto at = [&](std::uint32_t position) {
    return hasher.scheme().is_keyed() ? SequenceHash::make_keyed(position, 1, 2).value()
                                      : SequenceHash::make(position, 1, 2).value();
  };
  const auto tokens = tokens_from_to(1, 8);
  EXPECT_EQ(hasher.hash_block(at(SequenceHash::kMaxPosition), tokens).error().code(),
            ErrorCode::kInvalidArgument);
  std::vector<BlockHashes> out(8);
  EXPECT_EQ(hasher.hash_blocks(at(SequenceHash::kMaxPosition - 7), tokens, 1, out).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(out, std::vector<BlockHashes>(8));
  EXPECT_EQ(hasher.hash_blocks(at(SequenceHash::kMaxPosition - 8), tokens, 1, out).value(), 8u);
  EXPECT_EQ(out.back().sequence.position(), SequenceHash::kMaxPosition);
  EXPECT_EQ(hasher.hash_blocks(at(SequenceHash::kMaxPosition), {}, 1, out).value(), 0u);
}

TEST_P(EveryScheme, ParentsOfAnotherKindOfSchemeAreRefused) {
  const SequenceHasher hasher(GetParam(), Salt());
  const SequenceHash foreign =
      hasher.scheme().is_keyed() ? SequenceHash::root(1) : SequenceHash::make_keyed(0, 1, 2).value();
  EXPECT_EQ(hasher.hash_block(foreign, tokens_from_to(1, 4)).error().code(), ErrorCode::kInvalidArgument);
}

TEST_P(EveryScheme, BlockSizesOutOfRangeAreRefusedWithTheValue) {
  const SequenceHasher hasher(GetParam(), Salt());
  for (const std::uint32_t block_size : {0u, 65537u}) {
    const auto hashed = hasher.hash_blocks(std::nullopt, {}, block_size, {});
    ASSERT_FALSE(hashed);
    EXPECT_EQ(hashed.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(hashed.error().message().find(std::to_string(block_size)), std::string::npos);
  }
}

TEST_P(EveryScheme, SaltsSeparateLocalAndSequenceHashes) {
  const auto tokens = tokens_from_to(1, 4);
  std::set<std::uint64_t> locals;
  std::set<SequenceHash> roots;
  std::set<SequenceHash> children;
  const std::vector<Salt> salts = {
      Salt(),          Salt("a", ""),   Salt("", "a"),   Salt("a", "a"),
      Salt("ab", "c"), Salt("a", "bc"), Salt("abc", ""), Salt(std::string(1, '\0'), "")};
  for (const Salt& salt : salts) {
    const SequenceHasher hasher(GetParam(), salt);
    locals.insert(hasher.local_hash(tokens).value());
    const SequenceHash root = hasher.hash_block(std::nullopt, tokens)->sequence;
    roots.insert(root);
    children.insert(hasher.hash_block(root, tokens)->sequence);
  }
  EXPECT_EQ(locals.size(), salts.size());
  EXPECT_EQ(roots.size(), salts.size());
  EXPECT_EQ(children.size(), salts.size());
}

TEST_P(EveryScheme, HashersAreEqualWhenSchemeAndSaltAre) {
  EXPECT_EQ(SequenceHasher(GetParam(), Salt("a", "b")), SequenceHasher(GetParam(), Salt("a", "b")));
  EXPECT_FALSE(SequenceHasher(GetParam(), Salt("a", "b")) == SequenceHasher(GetParam(), Salt("b", "a")));
  EXPECT_FALSE(SequenceHasher(GetParam(), Salt()) == SequenceHasher(HashScheme::keyed128({1}), Salt()));
}

INSTANTIATE_TEST_SUITE_P(Schemes, EveryScheme,
                         ::testing::Values(HashScheme::xxh3_chain(), HashScheme::xxh64_int64(),
                                           HashScheme::keyed128(kKey)),
                         [](const auto& scheme) { return std::string(scheme.param.name()); });

TEST(SequenceHasherTest, DefaultHashersShareTheirState) {
  EXPECT_EQ(SequenceHasher(), SequenceHasher(HashScheme::xxh3_chain(), Salt()));
  EXPECT_EQ(SequenceHasher().scheme().name(), "xxh3_chain");
  EXPECT_TRUE(SequenceHasher().salt().empty());
}

TEST(KeyedSchemeTest, NamesNeverMeetAcrossKeysSaltsPositionsAndTokens) {
  std::unordered_set<SequenceHash> names;
  std::size_t made = 0;
  for (std::uint8_t key = 0; key < 6; ++key) {
    for (const Salt& salt : {Salt(), Salt("a", ""), Salt("", "a"), Salt("a", "b")}) {
      const SequenceHasher hasher(HashScheme::keyed128({key}), salt);
      std::optional<SequenceHash> parent;
      for (int block = 0; block < 50; ++block) {
        // The same tokens at every position, and one more block that differs in one token.
        const SequenceHash same = hasher.hash_block(parent, tokens_from_to(1, 4))->sequence;
        names.insert(same);
        names.insert(hasher.hash_block(parent, tokens_from_to(2, 5))->sequence);
        names.insert(hasher.hash_block(parent, tokens_from_to(1, 5))->sequence);
        made += 3;
        parent = same;
      }
    }
  }
  EXPECT_EQ(names.size(), made);
}

TEST(KeyedSchemeTest, NamesAreKeyedAndHoldTheirPosition) {
  const SequenceHasher hasher(HashScheme::keyed128(kKey), Salt());
  const auto hashes = hash_one_by_one(hasher, std::nullopt, tokens_from_to(1, 40), 4);
  for (std::uint32_t i = 0; i < hashes.size(); ++i) {
    EXPECT_TRUE(hashes[i].sequence.is_keyed());
    EXPECT_EQ(hashes[i].sequence.position(), i);
    EXPECT_NE(hashes[i].local.value(), hashes[i].sequence.chain());
  }
}

TEST(KeyedSchemeTest, NamesAreStable) {
  const SequenceHasher hasher(HashScheme::keyed128(kKey), Salt("adapter-a", "tenant-a"));
  const auto hashes = hash_one_by_one(hasher, std::nullopt, tokens_from_to(1, 8), 4);
  EXPECT_EQ(hashes[0].sequence.to_string(), "0:00ce5f3493804c525d74bb4eab");
  EXPECT_EQ(hashes[1].sequence.to_string(), "1:0d3f5a2377674089b450e7dc37");
  EXPECT_EQ(hashes[1].local.value(), 15105143736599241699u);
}

}  // namespace
}  // namespace ashlar::tokens
