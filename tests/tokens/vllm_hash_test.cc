#include "ashlar/tokens/engine_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tokens/hex.h"
#include "tokens/token_lists.h"

namespace ashlar::tokens {
namespace {

// The hashes of one engine: of no block; of tokens 1..32, and of 33..64 behind them; of the first with a
// cache salt; of tokens of every width; and of the first with every extra key.
struct EngineVector {
  const char* algorithm;
  const char* seed;  // null: not set
  const char* none;
  const char* first;
  const char* second;
  const char* salted;
  const char* small;
  const char* extra;
};

constexpr EngineVector kEngineVectors[] = {
    {"sha256", "0", "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c",
     "2f310d760d759dff04c4d10761d61d07721dd5f28f17b0b2b1aca189072f77a2",
     "9d17f5948d173495ee6773162303d80ca38c5e936bc9ee1c40ec39fb3ab240c3",
     "5896d5749bf899f8984b51e9de22324cfb4a437883785b63d5605f76e4524d2e",
     "7ebcab2822a8fc596bb9c23b1acfa23fe4d5f01102b9b1f297fdf008f3e42d94",
     "4ace980974d0246b7a149a750199be09ab3b2d6996b787bbfc8c2a6da425138d"},
    {"sha256", nullptr, "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
     "647b02382fa9b9cde4d9582f5fb8b11f022c61f9842df2cf9cb0fb1a19ab6f9c",
     "85e9f56d16ef4ea9421735da7176f503da45621fb3b7bec49b47638184b32ba2", "", "", ""},
    {"sha256_cbor", "0", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
     "8cb56fff8ae2c77f3b5c2e61262b9b28e49e0d515055dff6ea5177deca580197",
     "8871a42524c7608b1450c48bcca7c452d3e4fec30758e2b4a673bff05cb86760",
     "0f14112a6920f2f65cd57f94c8fa0f90e647f10663e431985d310e731fbfb215",
     "ce0dfcb1c5048e48dabe64b7d6a2edb877f8384e34be2eeb596defb25813e893",
     "6ae870dc9d0b948480a63d5c129c2294e6cf1b4120020a7f6f877058f8ec4856"},
    {"sha256_cbor", nullptr, "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
     "b2a727d31d71531aa716681e4783e0219ad14445f650848ba95e744b6ac91bce",
     "0e511777fef56bf89905655aeeed8e662902ebfa6b08f4c53a69a32ed05d8f2e", "", "", ""},
    {"xxhash", "0", "6fb31cc38bba6066183f7f2104b9c051", "9f9a56c1f63454216b49413b7de236af",
     "d416ea406e99164ae4705a3413653025", "e20e0e6a5daea7b4594e83536096721c",
     "377ac0f5c61b480042c02109891479bf", "6fd8334a692fb061dd458ac828b48033"},
    {"xxhash_cbor", "0", "1ebe36576dcb573f26b99533a20aaeca", "6c1fabd2921f012ec268cf9a3503139c",
     "c62a145a255b2b14789c10698ad0b73d", "a78f0a015a74c5d58f2b69cddf926658",
     "5edd23a1a1a2e05db94e32cc7f70b669", "19efc8789a47d37544bbf5844f3570a4"},
};

std::string hex(const VllmDigest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest.bytes()) append_hex(text, byte, 2);
  return text;
}

VllmHasher hasher(const char* algorithm, const char* seed) {
  VllmHashOptions options{.algorithm = vllm_algorithm(algorithm).value()};
  if (seed != nullptr) options.hash_seed = seed;
  return VllmHasher::create(options).value();
}

TEST(VllmHash, EqualsTheEngine) {
  for (const EngineVector& vector : kEngineVectors) {
    SCOPED_TRACE(vector.algorithm);
    const VllmHasher ours = hasher(vector.algorithm, vector.seed);
    EXPECT_EQ(hex(ours.none_hash()), vector.none);
    const VllmDigest first = ours.hash_block({}, tokens_from_to(1, 32)).value();
    EXPECT_EQ(hex(first), vector.first);
    EXPECT_EQ(first, ours.hash_block(ours.none_hash(), tokens_from_to(1, 32)).value());
    EXPECT_EQ(hex(ours.hash_block(first, tokens_from_to(33, 64)).value()), vector.second);
    if (*vector.salted == 0) continue;
    EXPECT_EQ(hex(ours.hash_block({}, tokens_from_to(1, 32), {.cache_salt = "tenant-a"}).value()),
              vector.salted);
    const std::vector<Token> small = {Token(0),   Token(23),    Token(24),    Token(255),
                                      Token(256), Token(65535), Token(65536), Token(151643)};
    EXPECT_EQ(hex(ours.hash_block({}, small).value()), vector.small);
    const std::array<VllmExtraKeys::Multimodal, 1> items = {{{"img0", -3}}};
    const VllmExtraKeys extra{.lora = VllmExtraKeys::Lora{"adp", "/x/adp"},
                              .multimodal = items,
                              .cache_salt = "s",
                              .prompt_embeds = std::array<std::uint8_t, 32>{}};
    EXPECT_EQ(hex(ours.hash_block({}, tokens_from_to(1, 32), extra).value()), vector.extra);
  }
}

TEST(VllmHash, ExternalNamesAreTheLastEightBytes) {
  const auto name = [](const char* algorithm) {
    return external_name(hasher(algorithm, "0").hash_block({}, tokens_from_to(1, 32)).value());
  };
  EXPECT_EQ(name("sha256"), 12802785450610620322u);
  EXPECT_EQ(name("sha256_cbor"), 16884408276749910423u);
  EXPECT_EQ(name("xxhash"), 7730781959129020079u);
  EXPECT_EQ(name("xxhash_cbor"), 14008674902157235100u);
}

TEST(VllmHash, TuplesOfUpToThreeTokensHaveTheirOwnOpcodes) {
  const VllmHasher ours = hasher("sha256", "0");
  EXPECT_EQ(hex(ours.hash_block({}, {}).value()),
            "3e9c002a099c54156e3b037ae079072d2143cbb3fe4e4ac03a760b5435b1e618");
  EXPECT_EQ(hex(ours.hash_block({}, tokens_from_to(0, 0)).value()),
            "8a8ca157f153d0ded68e06e9dc141ac01badc8be407579fc7088ec5e2e2126f6");
  EXPECT_EQ(hex(ours.hash_block({}, tokens_from_to(0, 1)).value()),
            "2e23ebb229d606592a8f447428181e15fc7133cc7a46717796b152f075a864e7");
  EXPECT_EQ(hex(ours.hash_block({}, tokens_from_to(0, 2)).value()),
            "f745a11256fa434948f2a6aeaffa90551f03cf3e4ba2f950bcd67be0baabf9e3");
}

TEST(VllmHash, TokensBeyond31BitsAreLongNumbers) {
  const std::vector<Token> wide = {Token(0x7FFFFFFF), Token(0x80000000), Token(0xFFFFFFFF)};
  EXPECT_EQ(hex(hasher("sha256", "0").hash_block({}, wide).value()),
            "857ac83024f830aa00b3b9201f8bd8ab9e9e6196e043328c86dccdf4d9e7ff78");
}

TEST(VllmHash, TextOfAnyLengthIsPickledAsPythonDoes) {
  const VllmHasher ours = hasher("sha256", "0");
  const auto salted = [&ours](std::size_t length) {
    const std::string salt(length, 't');
    return hex(ours.hash_block({}, tokens_from_to(1, 32), {.cache_salt = salt}).value());
  };
  EXPECT_EQ(salted(0), "afb52a0782103a904cc096ae232f970ce8e26221ec98e2545d378a17c6406b8a");
  EXPECT_EQ(salted(255), "1ab16d59bf12f4028e5c7174ea540c5186c7d46875f296e23ae7d91192b6e455");
  EXPECT_EQ(salted(256), "2b52da53622b8399caaca00d4cca573e691c98cee72cabce5ea2f136b5932b21");
  EXPECT_EQ(salted(65535), "84c8082d381f8cd71a44f9f54ac3e20ec1c2bd6eff07977b4611eceb642d327b");
  EXPECT_EQ(salted(65536), "443e99c273478a3469767b3ed3a7af17c6e7ef2745b660ba8aed5317850dd33a");
  EXPECT_EQ(salted(70000), "05ac8d7678296777a22c090231663174199b3b002b03d61a8d5a60998dcbc729");
}

TEST(VllmHash, PicklesBeyond64KiBHaveSeveralFrames) {
  const VllmHasher ours = hasher("sha256", "0");
  const std::vector<Token> tokens = tokens_from_to(65536, 85535);
  EXPECT_EQ(hex(ours.hash_block({}, tokens).value()),
            "0e3f99f918ae6fd9382fca3f38283f5958fb5e377dac6b1dccee46f50bcf595a");
  const std::string salt(70000, 't');
  EXPECT_EQ(hex(ours.hash_block({}, tokens, {.cache_salt = salt}).value()),
            "d9086276cd62d6c74ac0fb9d582810024431eea79315eaef85d6386afe791846");
}

TEST(VllmHash, OffsetsOfItemsMayBeAnyNumber) {
  const VllmHasher ours = hasher("sha256", "0");
  const auto at = [&ours](std::int64_t offset) {
    const std::array<VllmExtraKeys::Multimodal, 1> items = {{{"img0", offset}}};
    return hex(ours.hash_block({}, tokens_from_to(1, 32), {.multimodal = items}).value());
  };
  EXPECT_EQ(at(std::numeric_limits<std::int64_t>::min()),
            "b3751e332ae28af00c0898b09897bd2af580d128ef48f816d121e76dda110452");
  EXPECT_EQ(at(-549755813889), "f1ae97d577f6d76c04c011730d234273b78902fad3bceacc9cfd582187bf5374");
  EXPECT_EQ(at(-2147483648), "34e72aa66e7ed2a79c7923b2eb669e5ccb846163e6dba880116135e640498c47");
  EXPECT_EQ(at(-1), "179d7b9fc235d9bbf29774c5254d1dd7ab7d5a51002e09fc03cd735bd48c25b8");
  EXPECT_EQ(at(2147483648), "2d5c7404814ce5098f259e6b653193cf91ab8e152c463245c4968a1dd4def556");
  EXPECT_EQ(at(std::numeric_limits<std::int64_t>::max()),
            "1b7a8760290dc776ca2e34f0569f7f1f132182f4abcf03732817726a495587bf");
}

TEST(VllmHash, ARepeatedTextIsNotComputableInPickle) {
  const std::array<VllmExtraKeys::Multimodal, 2> items = {{{"a", 0}, {"b", 3}}};
  const auto refused = [](const VllmExtraKeys& extra) {
    const Result<VllmDigest> hash = hasher("sha256", "0").hash_block({}, tokens_from_to(1, 32), extra);
    return !hash && hash.error().code() == ErrorCode::kUnsupported &&
           hash.error().message().find("not computable") == 0 &&
           hasher("sha256_cbor", "0").hash_block({}, tokens_from_to(1, 32), extra).has_value();
  };
  EXPECT_TRUE(refused({.multimodal = items}));  // the tag
  EXPECT_TRUE(refused({.lora = VllmExtraKeys::Lora{"x", "x"}}));
  EXPECT_TRUE(refused({.lora = VllmExtraKeys::Lora{"x", "/x"}, .cache_salt = "x"}));
  EXPECT_TRUE(refused({.cache_salt = "cache_salt"}));
  EXPECT_FALSE(refused({.multimodal = std::span(items).first(1), .cache_salt = "b"}));
}

TEST(VllmHash, AnEmbeddingThatEqualsTheParentIsNotComputableInPickle) {
  std::array<std::uint8_t, 32> bytes{};
  bytes[0] = 1;
  const VllmDigest parent = VllmDigest::from_bytes(bytes).value();
  const VllmExtraKeys extra{.prompt_embeds = bytes};
  EXPECT_EQ(hasher("sha256", "0").hash_block(parent, tokens_from_to(1, 4), extra).error().code(),
            ErrorCode::kUnsupported);
  EXPECT_TRUE(hasher("sha256_cbor", "0").hash_block(parent, tokens_from_to(1, 4), extra));
}

TEST(VllmHash, WithoutASeedXxhashIsNotComputable) {
  for (const VllmAlgorithm algorithm : {VllmAlgorithm::kXxhash, VllmAlgorithm::kXxhashCbor}) {
    const Result<VllmHasher> made = VllmHasher::create({.algorithm = algorithm});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), ErrorCode::kUnsupported);
    EXPECT_NE(made.error().message().find("random"), std::string::npos);
  }
}

TEST(VllmHash, WrongValuesAreRefused) {
  const VllmDigest sixteen = VllmDigest::from_bytes(std::array<std::uint8_t, 16>{}).value();
  EXPECT_EQ(hasher("sha256", "0").hash_block(sixteen, tokens_from_to(1, 4)).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(hasher("sha256", "0").hash_block({}, tokens_from_to(1, 4), {.cache_salt = "\xff"}).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(hasher("sha256", "0")
                .hash_block({}, tokens_from_to(1, 4), {.cache_salt = "\xed\xa0\x80"})
                .error()
                .code(),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(VllmHasher::create({.hash_seed = "\xc0\x80"}));
  EXPECT_FALSE(VllmDigest::from_bytes(std::array<std::uint8_t, 20>{}));
  EXPECT_EQ(vllm_algorithm("md5").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ashlar::tokens
