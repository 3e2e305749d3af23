#include "ashlar/tokens/engine_hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

TEST(SglangHash, ChainsWholeDigests) {
  const SglangDigest first = sglang_hash_block({}, tokens_from_to(1, 16));
  EXPECT_EQ(hex_of(first), "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07");
  EXPECT_EQ(sglang_external_name(first), 8635429971592222890);
  const SglangDigest second = sglang_hash_block(first, tokens_from_to(17, 32));
  EXPECT_EQ(hex_of(second), "1170426cf2449cebf4d17f087ce5bb43b6a910ce91b3f40922868e913e8ee91d");
  EXPECT_EQ(sglang_external_name(second), 1256577331724852459);
}

TEST(SglangHash, TakesTokensOfEveryWidthAndAnyNumberOfThem) {
  std::vector<Token> tokens = {Token(0), Token(0x80000000), Token(0xFFFFFFFF)};
  for (const Token token : tokens_from_to(0, 199)) tokens.push_back(token);
  EXPECT_EQ(hex_of(sglang_hash_block({}, tokens)),
            "e65f2ba948d67e7d64a704e1685c46abf2feb49d3ff3f9586dd701466501036e");
}

TEST(SglangHash, NamesAreSigned) {
  SglangDigest digest{};
  digest[0] = 0xFF;
  EXPECT_EQ(sglang_external_name(digest), -(std::int64_t{1} << 56));
  digest.fill(0xFF);
  EXPECT_EQ(sglang_external_name(digest), -1);
}

}  // namespace
}  // namespace ashlar::tokens
