#include "ashlar/tokens/hash_scheme.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace ashlar::tokens {
namespace {

constexpr HashScheme::Key kKeyA = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr HashScheme::Key kKeyB = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17};

TEST(HashSchemeTest, NamesFindTheirSchemes) {
  EXPECT_EQ(HashScheme::by_name("xxh3_chain").value(), HashScheme::xxh3_chain());
  EXPECT_EQ(HashScheme::by_name("xxh64_int64").value(), HashScheme::xxh64_int64());
  EXPECT_EQ(HashScheme::by_name("keyed128", kKeyA).value(), HashScheme::keyed128(kKeyA));
  for (const HashScheme& scheme :
       {HashScheme::xxh3_chain(), HashScheme::xxh64_int64(), HashScheme::keyed128(kKeyA)}) {
    const auto key =
        scheme.is_keyed() ? std::span<const std::uint8_t>(kKeyA) : std::span<const std::uint8_t>();
    EXPECT_EQ(HashScheme::by_name(scheme.name(), key).value(), scheme);
  }
  EXPECT_EQ(HashScheme(), HashScheme::xxh3_chain());
}

TEST(HashSchemeTest, AnUnknownNameIsNotFoundAndTheErrorListsTheNames) {
  const auto scheme = HashScheme::by_name("md5");
  ASSERT_FALSE(scheme);
  EXPECT_EQ(scheme.error().code(), ErrorCode::kNotFound);
  for (const char* part : {"md5", "xxh3_chain", "xxh64_int64", "keyed128"}) {
    EXPECT_NE(scheme.error().message().find(part), std::string::npos) << part;
  }
}

TEST(HashSchemeTest, KeyedSchemeWithoutAKeySaysSo) {
  const auto scheme = HashScheme::by_name("keyed128");
  ASSERT_FALSE(scheme);
  EXPECT_EQ(scheme.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(scheme.error().message().find("needs a key of 16 bytes"), std::string::npos);
}

TEST(HashSchemeTest, AKeyOfTheWrongSizeOrForAnUnkeyedSchemeIsRefused) {
  const std::vector<std::uint8_t> short_key(15, 1);
  EXPECT_EQ(HashScheme::by_name("keyed128", short_key).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(HashScheme::by_name("xxh3_chain", kKeyA).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(HashScheme::by_name("xxh64_int64", kKeyA).error().code(), ErrorCode::kInvalidArgument);
}

TEST(HashSchemeTest, FingerprintsDifferBetweenSchemesAndKeys) {
  std::set<std::uint64_t> fingerprints = {
      HashScheme::xxh3_chain().fingerprint(), HashScheme::xxh64_int64().fingerprint(),
      HashScheme::keyed128(kKeyA).fingerprint(), HashScheme::keyed128(kKeyB).fingerprint()};
  EXPECT_EQ(fingerprints.size(), 4u);
  EXPECT_EQ(HashScheme::keyed128(kKeyA).fingerprint(), HashScheme::keyed128(kKeyA).fingerprint());
}

TEST(HashSchemeTest, FingerprintsAreStable) {
  EXPECT_EQ(HashScheme::xxh3_chain().fingerprint(), 18035662216231602403u);
  EXPECT_EQ(HashScheme::xxh64_int64().fingerprint(), 14200131297116957147u);
  EXPECT_EQ(HashScheme::keyed128(kKeyA).fingerprint(), 4562872662367488332u);
}

TEST(HashSchemeTest, FingerprintDoesNotContainTheKey) {
  std::uint64_t halves[2];
  std::memcpy(halves, kKeyA.data(), sizeof(halves));
  EXPECT_NE(HashScheme::keyed128(kKeyA).fingerprint(), halves[0]);
  EXPECT_NE(HashScheme::keyed128(kKeyA).fingerprint(), halves[1]);
}

}  // namespace
}  // namespace ashlar::tokens
