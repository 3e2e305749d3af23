#include "tiers/volume/volume_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tiers/volume.h"
#include "support/block_images.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;
using tokens::NamespaceFingerprint;
using tokens::SequenceHash;

VolumeObject example() {
  return {.hash = SequenceHash::make(7, 8, 9).value(),
          .keys = NamespaceFingerprint::from_bits(1, 2),
          .salt = NamespaceFingerprint::from_bits(3, 4),
          .scheme_fingerprint = 5,
          .checksum = transfer::BlockChecksum(6),
          .shard = {{1, 2}, {3, 4}, 5, 6},
          .block_size = 16,
          .planes = 2,
          .dtype = layout::Dtype::kF8E4M3,
          .payload_bytes = 4096,
          .shapes = 11,
          .prefix_key = 12,
          .prefix = tokens::PrefixDigest::known(13, 14),
          .parent = SequenceHash::make(7, 7, 15).value(),
          .root = SequenceHash::root(16),
          .local = tokens::LocalHash(17),
          .metadata = 18,
          .group = 19,
          .priority = 20};
}

TEST(VolumeObjectTest, ComesBackFromItsBytes) {
  const auto bytes = example().encode();
  const Result<VolumeObject> back = VolumeObject::decode(bytes);
  ASSERT_TRUE(back) << back.error();
  EXPECT_EQ(*back, example());
  EXPECT_TRUE(example().expect(*back));
}

TEST(VolumeObjectTest, HasTheDocumentedBytes) {
  const auto bytes = example().encode();
  const auto number = [&](std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t i = 8; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
    return value;
  };
  EXPECT_EQ(std::memcmp(bytes.data(), "ASHLAROB", 8), 0);
  EXPECT_EQ(number(8), 3u | std::uint64_t{256} << 32);
  EXPECT_EQ(number(16), example().hash.hi());
  EXPECT_EQ(number(24), example().hash.lo());
  EXPECT_EQ(number(32), 1u);
  EXPECT_EQ(number(56), 4u);
  EXPECT_EQ(number(64), 5u);
  EXPECT_EQ(number(72), 6u);
  EXPECT_EQ(number(80), 1u | std::uint64_t{2} << 32);
  EXPECT_EQ(number(96), 16u | std::uint64_t{2} << 32);
  EXPECT_EQ(number(104), 1u);
  EXPECT_EQ(number(112), 4096u);
  EXPECT_EQ(number(120), 5u | std::uint64_t{6} << 32);
  EXPECT_EQ(number(128), 11u);
  EXPECT_EQ(number(136), 12u);
  EXPECT_EQ(number(144), example().prefix.hi());
  EXPECT_EQ(number(152), 14u);
  EXPECT_EQ(number(160), example().parent.hi());
  EXPECT_EQ(number(176), example().root->hi());
  EXPECT_EQ(number(192), 17u);
  EXPECT_EQ(number(200), 18u | std::uint64_t{19} << 32 | std::uint64_t{20} << 48 | std::uint64_t{3} << 56);
}

TEST(VolumeObjectTest, EveryDamagedByteIsNoticed) {
  const auto good = example().encode();
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] ^= std::byte{0x40};
    const Result<VolumeObject> decoded = VolumeObject::decode(bad);
    ASSERT_FALSE(decoded) << at;
    EXPECT_NE(decoded.error().code(), ErrorCode::kInternal);
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(VolumeObject::decode(std::span(good).first(size)));
}

TEST(VolumeObjectTest, NoBytesAreTooStrange) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random.below(300));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    if (bytes.size() >= 8 && random.below(2) == 0) std::memcpy(bytes.data(), "ASHLAROB", 8);
    EXPECT_FALSE(VolumeObject::decode(bytes));
  }
}

TEST(VolumeObjectTest, AnotherBlockIsNotTakenForThisOne) {
  const auto expect_differs = [](auto&& change, const char* what) {
    VolumeObject other = example();
    change(other);
    const Result<void> same = example().expect(other);
    ASSERT_FALSE(same) << what;
    EXPECT_EQ(same.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(same.error().message(), HasSubstr(what));
  };
  expect_differs([](VolumeObject& o) { o.hash = SequenceHash::root(1); }, "name");
  expect_differs([](VolumeObject& o) { o.keys = {}; }, "namespace");
  expect_differs([](VolumeObject& o) { o.scheme_fingerprint = 6; }, "hash scheme");
  expect_differs([](VolumeObject& o) { o.shard.heads.first = 0; },
                 "it belongs to rank 5 of 6 (layers 1 to 2, heads 0 to 3), not to rank 5 of 6 (layers 1 to "
                 "2, heads 3 to 6)");
  expect_differs([](VolumeObject& o) { o.shard.rank = 4; }, "it belongs to rank 4 of 6");
  expect_differs([](VolumeObject& o) { o.shapes = 12; }, "shape");
  expect_differs([](VolumeObject& o) { o.dtype = layout::Dtype::kU8; }, "shape");
  expect_differs([](VolumeObject& o) { o.payload_bytes = 1; }, "size");
  expect_differs([](VolumeObject& o) { o.salt = NamespaceFingerprint::from_bits(3, 5); }, "salt");
  expect_differs([](VolumeObject& o) { o.prefix_key = 1; }, "prefix key");
  expect_differs([](VolumeObject& o) { o.prefix = tokens::PrefixDigest::known(1, 1); }, "prefix digest");
  VolumeObject unknown = example();
  unknown.salt = {};
  unknown.prefix = {};
  unknown.checksum = transfer::BlockChecksum(9);
  EXPECT_TRUE(example().expect(unknown));
}

TEST(VolumeObjectTest, KeysAreGoodAndDiffer) {
  EXPECT_TRUE(check_key(example().key()));
  VolumeObject other = example();
  other.shard.heads.first = 9;
  EXPECT_NE(other.key(), example().key());
  other = example();
  other.scheme_fingerprint = 1;
  EXPECT_NE(other.key(), example().key());
}

TEST(VolumeKeyTest, StrangeKeysAreRefused) {
  for (const char* good : {"a", "a/b", "A-Z_0.9/x"}) EXPECT_TRUE(check_key(good)) << good;
  for (const char* bad : {"", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a b", "a\n", "a~b", "ü"})
    EXPECT_FALSE(check_key(bad)) << bad;
  EXPECT_FALSE(check_key(std::string(513, 'a')));
}

TEST(VolumeObjectTest, AnotherVersionIsNotTakenForDamage) {
  for (const int version : {1, 2, 4}) {
    auto bytes = example().encode();
    bytes[8] = static_cast<std::byte>(version);
    EXPECT_EQ(VolumeObject::decode(bytes).error().code(), ErrorCode::kCorruption)
        << "its checksum is another's";
    const std::uint64_t checksum = XXH3_64bits(bytes.data(), 248);
    for (std::size_t i = 0; i < 8; ++i) bytes[248 + i] = static_cast<std::byte>(checksum >> (8 * i));
    EXPECT_EQ(VolumeObject::decode(bytes).error().code(), ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace ashlar::tiers
