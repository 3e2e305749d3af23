#include "ashlar/tokens/sglang_hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokens/hex.h"

namespace ashlar::tokens {
namespace {

std::string hex(const Sha256::Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) append_hex(text, byte, 2);
  return text;
}

std::vector<Token> range(std::uint32_t first, std::uint32_t last) {
  std::vector<Token> tokens;
  for (std::uint32_t i = first; i <= last; ++i) tokens.emplace_back(i);
  return tokens;
}

TEST(SglangHash, ChainsWholeDigests) {
  const Sha256::Digest first = sglang_hash_block({}, range(1, 16));
  EXPECT_EQ(hex(first), "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07");
  EXPECT_EQ(sglang_external_name(first), 8635429971592222890);
  const Sha256::Digest second = sglang_hash_block(first, range(17, 32));
  EXPECT_EQ(hex(second), "1170426cf2449cebf4d17f087ce5bb43b6a910ce91b3f40922868e913e8ee91d");
  EXPECT_EQ(sglang_external_name(second), 1256577331724852459);
}

TEST(SglangHash, TakesTokensOfEveryWidthAndAnyNumberOfThem) {
  std::vector<Token> tokens = {Token(0), Token(0x80000000), Token(0xFFFFFFFF)};
  for (const Token token : range(0, 199)) tokens.push_back(token);
  EXPECT_EQ(hex(sglang_hash_block({}, tokens)),
            "e65f2ba948d67e7d64a704e1685c46abf2feb49d3ff3f9586dd701466501036e");
}

TEST(SglangHash, NamesAreSigned) {
  Sha256::Digest digest{};
  digest[0] = 0xFF;
  EXPECT_EQ(sglang_external_name(digest), -(std::int64_t{1} << 56));
  digest.fill(0xFF);
  EXPECT_EQ(sglang_external_name(digest), -1);
}

}  // namespace
}  // namespace ashlar::tokens
