#include "ashlar/transfer/block_checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ashlar/storage/allocator.h"
#include "ashlar/storage/external_storage.h"
#include "support/block_images.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::transfer {
namespace {

using layout::Layout;
using layout::LayoutConfig;
namespace order = layout::order;
using tokens::NamespaceFingerprint;
using tokens::SequenceHash;

const ChecksumKey kName = {SequenceHash::root(0x1234), NamespaceFingerprint::from_bits(5, 6)};

std::shared_ptr<const BlockSet> numbered(std::span<const PlaneShape> shapes) {
  storage::SystemAllocator memory;
  auto set = BlockSet::allocate(shapes, memory).value();
  BlockImage image(*set, 0xEE);  // padding
  image.number(*set);
  image.store(*set);
  return set;
}
std::shared_ptr<const BlockSet> numbered(const Layout& layout) {
  const PlaneShape shape = PlaneShape::whole(layout);
  return numbered(std::span(&shape, 1));
}

TEST(BlockChecksumTest, IsTheSameInEveryLayout) {
  for (const std::uint32_t head_dim : {2u, 3u, 1024u}) {
    LayoutConfig config = small_shape(4, 3, 4);
    config.head_dim = head_dim;
    config.inner_dim = head_dim * 4;
    std::set<std::uint64_t> values;
    for (const Layout& layout : every_layout(config))
      values.insert(checksum_block(*numbered(layout), 2, kName)->value());
    EXPECT_EQ(values.size(), 1u);
  }
}

// The value is in files: it must not change. docs/transfers.md describes the bytes; this is a second writing
// of them.
TEST(BlockChecksumTest, CoversTheDocumentedBytes) {
  const LayoutConfig config = small_shape(4, 3, 4);
  const auto set = numbered(Layout::create(config, order::kUniversalTp).value());
  std::vector<std::uint8_t> bytes;
  const auto put = [&](const void* data, std::size_t count) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    bytes.insert(bytes.end(), from, from + count);
  };
  const auto put_number = [&](std::uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  put("ashrblk2", 8);
  put(kName.hash.to_bytes().data(), 16);
  put(kName.keys.to_bytes().data(), 16);
  for (const std::uint64_t value : {0u, 1u}) put_number(value);
  for (const std::uint64_t value : {3u, 2u, 3u, 4u, 4u, 3u, 0u, 0u}) put_number(value);
  for (std::uint32_t layer = 0; layer < 3; ++layer)
    for (std::uint32_t outer = 0; outer < 2; ++outer)
      for (std::uint32_t token = 0; token < 3; ++token)
        for (std::uint32_t head = 0; head < 4; ++head)
          put(set->address(0, set->planes()[0].layout.place({2, layer, outer, token, head})), 4);
  EXPECT_EQ(checksum_block(*set, 2, kName)->value(), XXH3_64bits(bytes.data(), bytes.size()));
  EXPECT_EQ(checksum_block(*set, 2, kName)->value(), 15473300839088719907u);
}

TEST(BlockChecksumTest, EveryByteCounts) {
  const auto set = numbered(Layout::create(small_shape(4, 3, 4), order::kBlockSecondHnd).value());
  const BlockChecksum before = *checksum_block(*set, 2, kName);
  BlockImage::for_each_position(small_shape(4, 3, 4), [&](const layout::Position& position) {
    std::byte* at = set->address(0, set->planes()[0].layout.place(position));
    at[1] ^= std::byte{0x10};
    const BlockChecksum now = *checksum_block(*set, 2, kName);
    EXPECT_EQ(now != before, position.block == 2);
    at[1] ^= std::byte{0x10};
  });
  EXPECT_EQ(*checksum_block(*set, 2, kName), before);
}

TEST(BlockChecksumTest, IsBoundToNameNamespaceShardAndShape) {
  const auto set = numbered(Layout::create(small_shape(4, 3, 4), order::kFullyContiguousNhd).value());
  const BlockChecksum good = *checksum_block(*set, 2, kName);
  EXPECT_NE(*checksum_block(*set, 2, {SequenceHash::root(0x1235), kName.keys}), good);
  EXPECT_NE(*checksum_block(*set, 2, {kName.hash, NamespaceFingerprint::from_bits(5, 7)}), good);
  const Plane& plane = set->planes()[0];
  const auto other_rank = BlockSet::create({{plane.layout, {{0, 3}, {4, 4}}, plane.regions}}).value();
  EXPECT_NE(*checksum_block(*other_rank, 2, kName), good);
  // The same heads, on another rank.
  const auto replica = BlockSet::create({{plane.layout, {{0, 3}, {0, 4}, 1, 2}, plane.regions}}).value();
  EXPECT_NE(*checksum_block(*replica, 2, kName), good);
  // The same bytes, read as 4 layers of 3 heads.
  const auto other_shape =
      BlockSet::create({{Layout::create(small_shape(4, 4, 3), order::kFullyContiguousNhd).value(),
                         {{0, 4}, {0, 3}},
                         plane.regions}})
          .value();
  EXPECT_NE(*checksum_block(*other_shape, 2, kName), good);
}

TEST(BlockChecksumTest, CoversScales) {
  LayoutConfig scales = small_shape(4, 3, 4);
  scales.head_dim = 1;
  scales.inner_dim = 4;
  const std::vector<PlaneShape> shapes = {
      PlaneShape::whole(Layout::create(small_shape(4, 3, 4), order::kFullyContiguousNhd).value()),
      PlaneShape::whole(Layout::create(scales, order::kLbhnc).value())};
  const auto set = numbered(shapes);
  const BlockChecksum before = *checksum_block(*set, 1, kName);
  *set->address(1, set->planes()[1].layout.place({.block = 1, .layer = 2})) ^= std::byte{1};
  EXPECT_NE(*checksum_block(*set, 1, kName), before);
}

TEST(BlockChecksumTest, DoesNotDependOnWhatAHeadForAllIsCalled) {
  LayoutConfig scales = small_shape(4, 3, 1);
  const auto with_head = [&](std::uint32_t name) {
    const std::vector<PlaneShape> shapes = {
        {Layout::create(small_shape(4, 3, 4), order::kFullyContiguousNhd).value(), {{0, 3}, {4, 4}}},
        {Layout::create(scales, order::kLbhnc).value(), {{0, 3}, {name, 1}}}};
    return numbered(shapes);
  };
  EXPECT_EQ(*checksum_block(*with_head(0), 1, kName), *checksum_block(*with_head(5), 1, kName));
}

TEST(BlockChecksumTest, OpaqueContentIsTakenAsItLies) {
  LayoutConfig config = small_shape(4, 3, 4);
  config.opaque = true;
  const auto a = numbered(Layout::create(config, order::kLbhnc).value());
  const auto b = numbered(Layout::create(config, order::kBlhnc).value());
  EXPECT_EQ(*checksum_block(*a, 2, kName), *checksum_block(*b, 2, kName));
}

TEST(BlockChecksumTest, AMismatchNamesBlockAndTier) {
  const auto set = numbered(Layout::create(small_shape(4, 3, 4), order::kLbhnc).value());
  const BlockChecksum good = *checksum_block(*set, 2, kName);
  EXPECT_TRUE(verify_block(*set, 2, kName, good, events::StorageTier::kDisk));
  *set->address(0, set->planes()[0].layout.place({.block = 2})) ^= std::byte{1};
  const Result<void> bad = verify_block(*set, 2, kName, good, events::StorageTier::kDisk);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(bad.error().message(),
              ::testing::HasSubstr("block " + kName.hash.to_string() + " from the disk tier"));
}

TEST(BlockChecksumTest, WhatTheHostCannotReadIsRefused) {
  const Layout layout = Layout::create(small_shape(4, 3, 4), order::kLbhnc).value();
  std::vector<std::byte> mine(layout.region_bytes());
  const std::shared_ptr<storage::Storage> device =
      storage::ExternalStorage::create(
          {.kind = StorageKind::kDevice, .address = mine.data(), .bytes = mine.size(), .device = 0})
          .value();
  const auto set = BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{device, 0}}}}).value();
  EXPECT_EQ(checksum_block(*set, 2, kName).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(checksum_block(*numbered(layout), 4, kName).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ashlar::transfer
