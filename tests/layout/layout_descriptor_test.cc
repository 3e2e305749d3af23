#include "ashlar/layout/layout_descriptor.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::layout {
namespace {

LayoutDescriptor sample(const AxisOrder& order = order::kBlockFirstNhd,
                        Regions regions = Regions::kPerLayer) {
  LayoutConfig config{.block_count = 7,
                      .num_layers = 3,
                      .outer_dim = 2,
                      .block_size = 16,
                      .num_heads = 4,
                      .head_dim = 8,
                      .inner_dim = 32,
                      .dtype = Dtype::kF8E5M2,
                      .opaque = false,
                      .alignment = 512,
                      .layer_alignment = 256};
  LayoutDescriptor descriptor{.layout = Layout::create(config, order, regions).value()};
  descriptor.storage = StorageKind::kDevice;
  descriptor.device = 2;
  descriptor.block_set = 0x1122'3344'5566'7788u;
  descriptor.keys = tokens::NamespaceFingerprint::from_bits(0xAAu, 0xBBu);
  descriptor.scheme_fingerprint = 0xCC;
  descriptor.shard = {
      {5, descriptor.layout.config().num_layers}, {7, descriptor.layout.config().num_heads}, 3, 4};
  descriptor.plane = 1;
  for (std::uint32_t i = 0; i < descriptor.layout.region_count(); ++i)
    descriptor.regions.push_back({0x7000'0000'0000u + i * 0x100'0000u, descriptor.layout.region_bytes() + i});
  return descriptor;
}

// The bytes with a checksum that agrees with them again.
std::vector<std::byte> resealed(std::vector<std::byte> bytes) {
  if (bytes.size() < 8) return bytes;
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  for (std::size_t i = 0; i < 8; ++i)
    bytes[bytes.size() - 8 + i] = static_cast<std::byte>(sum >> (8 * i) & 0xFF);
  return bytes;
}

ErrorCode code_of(const std::vector<std::byte>& bytes) {
  const Result<LayoutDescriptor> result = LayoutDescriptor::deserialize(bytes);
  return result ? ErrorCode::kInternal : result.error().code();
}

TEST(LayoutDescriptorTest, ComesBackAsItWas) {
  for (const order::NamedOrder& named : order::kAll)
    for (const Regions regions : {Regions::kOne, Regions::kPerLayer}) {
      if (regions == Regions::kPerLayer && named.order[0] != Axis::kLayer) continue;
      const LayoutDescriptor descriptor = sample(named.order, regions);
      const Result<LayoutDescriptor> back = LayoutDescriptor::deserialize(descriptor.serialize());
      ASSERT_TRUE(back) << back.error();
      EXPECT_EQ(*back, descriptor) << named.name;
    }
}

// The format is a promise: these bytes must be read for ever.
TEST(LayoutDescriptorTest, HasTheBytesOfVersionTwo) {
  const std::vector<std::byte> bytes = sample().serialize();
  EXPECT_EQ(bytes.size(), 16u + 28 + 4 + 16 + 40 + 4 + 4 + 8 + 16 + 8 + 16 + 8 + 8 + 3 * 16 + 8);
  EXPECT_EQ(std::to_integer<char>(bytes[0]), 'A');
  EXPECT_EQ(std::to_integer<int>(bytes[8]), 2);
  EXPECT_EQ(std::to_integer<std::size_t>(bytes[12]), bytes.size());
  EXPECT_EQ(std::to_integer<int>(bytes[16]), 7);   // block_count
  EXPECT_EQ(std::to_integer<int>(bytes[44]), 2);   // f8_e5m2
  EXPECT_EQ(std::to_integer<int>(bytes[46]), 1);   // a region per layer
  EXPECT_EQ(std::to_integer<int>(bytes[104]), 2);  // device storage
  EXPECT_EQ(std::to_integer<int>(bytes[108]), 2);  // device 2
  EXPECT_EQ(std::to_integer<int>(bytes[112]), 0x88);
  EXPECT_EQ(std::to_integer<int>(bytes[136]), 0xCC);  // hash scheme
  EXPECT_EQ(std::to_integer<int>(bytes[144]), 5);     // first layer
  EXPECT_EQ(std::to_integer<int>(bytes[152]), 7);     // first head
  EXPECT_EQ(std::to_integer<int>(bytes[160]), 3);     // regions
  EXPECT_EQ(std::to_integer<int>(bytes[164]), 1);     // plane
  EXPECT_EQ(std::to_integer<int>(bytes[168]), 3);     // rank
  EXPECT_EQ(std::to_integer<int>(bytes[172]), 4);     // ranks
}

TEST(LayoutDescriptorTest, HasTheBytesOfVersionThree) {
  LayoutDescriptor descriptor = sample();
  const std::vector<std::byte> before = descriptor.serialize();
  descriptor.process = 0x99;
  std::vector<std::byte> bytes = descriptor.serialize();
  EXPECT_EQ(bytes.size(), before.size() + 8);
  EXPECT_EQ(std::to_integer<int>(bytes[8]), 3);
  EXPECT_EQ(std::to_integer<int>(bytes[176]), 0x99);
  EXPECT_TRUE(std::equal(bytes.begin() + 16, bytes.begin() + 176, before.begin() + 16));
  EXPECT_TRUE(std::equal(bytes.begin() + 184, bytes.end() - 8, before.begin() + 176));
  const Result<LayoutDescriptor> back = LayoutDescriptor::deserialize(bytes);
  ASSERT_TRUE(back) << back.error();
  EXPECT_EQ(*back, descriptor);
  bytes[176] = std::byte{0};
  EXPECT_EQ(code_of(resealed(bytes)), ErrorCode::kInvalidArgument);
}

TEST(LayoutDescriptorTest, AChildIsAnotherProcess) {
  const std::uint64_t own = LayoutDescriptor::this_process();
  EXPECT_NE(own, 0u);
  EXPECT_EQ(LayoutDescriptor::this_process(), own);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::uint64_t its = LayoutDescriptor::this_process();
    ::_exit(::write(ends[1], &its, sizeof its) == sizeof its ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  std::uint64_t its = 0;
  ASSERT_EQ(::read(ends[0], &its, sizeof its), static_cast<ssize_t>(sizeof its));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(its, 0u);
  EXPECT_NE(its, own);
  EXPECT_EQ(LayoutDescriptor::this_process(), own);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(LayoutDescriptorTest, VersionOneIsReadAsRankZeroOfOne) {
  LayoutDescriptor descriptor = sample();
  std::vector<std::byte> bytes = descriptor.serialize();
  bytes.erase(bytes.begin() + 168, bytes.begin() + 176);
  bytes[8] = std::byte{1};
  bytes[12] = static_cast<std::byte>(bytes.size());
  const Result<LayoutDescriptor> back = LayoutDescriptor::deserialize(resealed(bytes));
  ASSERT_TRUE(back) << back.error();
  descriptor.shard.rank = 0;
  descriptor.shard.ranks = 1;
  EXPECT_EQ(*back, descriptor);
}

TEST(LayoutDescriptorTest, ForeignBytesAreRefused) {
  EXPECT_EQ(code_of({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(std::vector<std::byte>(200)), ErrorCode::kInvalidArgument);
  std::vector<std::byte> bytes = sample().serialize();
  bytes[3] ^= std::byte{1};
  EXPECT_EQ(code_of(resealed(bytes)), ErrorCode::kInvalidArgument);
}

TEST(LayoutDescriptorTest, ANewerVersionIsUnsupported) {
  std::vector<std::byte> bytes = sample().serialize();
  for (const int version : {0, 4}) {
    bytes[8] = static_cast<std::byte>(version);
    EXPECT_EQ(code_of(resealed(bytes)), ErrorCode::kUnsupported);
  }
}

TEST(LayoutDescriptorTest, EveryCutAndEveryChangedBitIsSeen) {
  const std::vector<std::byte> bytes = sample().serialize();
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(LayoutDescriptor::deserialize(std::span(bytes).first(length))) << length;
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(code_of(longer), ErrorCode::kCorruption);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> changed = bytes;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(LayoutDescriptor::deserialize(changed)) << bit;
  }
}

// Bytes that somebody made on purpose, checksum included: what is accepted holds together.
TEST(LayoutDescriptorTest, HostileBytesNeverMakeALayoutThatDoesNotHold) {
  Random random(7);
  const std::vector<std::byte> unowned = sample().serialize();
  LayoutDescriptor owned = sample();
  owned.process = 0x99;
  const std::vector<std::byte> good = owned.serialize();
  std::size_t accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::vector<std::byte> bytes = round % 2 == 0 ? good : unowned;
    for (std::uint64_t changes = 1 + random.below(6); changes-- > 0;) {
      const std::size_t at = 10 + random.below(bytes.size() - 18);
      const std::uint64_t kind = random.below(4);
      bytes[at] = kind == 0   ? std::byte{0xFF}
                  : kind == 1 ? std::byte{0}
                  : kind == 2 ? bytes[at] ^ (std::byte{1} << random.below(8))
                              : static_cast<std::byte>(random.below(256));
    }
    if (random.below(10) == 0) bytes.resize(random.below(bytes.size() + 1));
    bytes = resealed(std::move(bytes));
    const Result<LayoutDescriptor> result = LayoutDescriptor::deserialize(bytes);
    if (!result) continue;
    ++accepted;
    ASSERT_TRUE(result->validate());
    ASSERT_TRUE(result->layout.config().validate());
    ASSERT_LE(result->layout.region_bytes(), kMaxLayoutBytes);
    const LayoutConfig& config = result->layout.config();
    const Place last =
        result->layout.place({config.block_count - 1, config.num_layers - 1, config.outer_dim - 1,
                              config.block_size - 1, config.num_heads - 1});
    ASSERT_LE(last.offset + config.head_bytes(), result->layout.region_bytes());
    ASSERT_EQ(result->serialize(), bytes);
  }
  EXPECT_GT(accepted, 100u);
}

TEST(LayoutDescriptorTest, MemoryMustFitTheLayout) {
  const auto says = [](const LayoutDescriptor& descriptor, const char* words) {
    const Result<void> result = descriptor.validate();
    return !result && result.error().message().find(words) != std::string::npos;
  };
  LayoutDescriptor descriptor = sample();
  EXPECT_TRUE(descriptor.validate());
  descriptor.regions.pop_back();
  EXPECT_TRUE(says(descriptor, "2 regions for a layout of 3"));
  descriptor = sample();
  descriptor.regions[1].bytes = descriptor.layout.region_bytes() - 1;
  EXPECT_TRUE(says(descriptor, "region 1 has"));
  descriptor = sample();
  descriptor.regions[2].address += 8;
  EXPECT_TRUE(says(descriptor, "no multiple of the alignment 512"));
  descriptor = sample();
  descriptor.regions[0].address = ~std::uint64_t{0} - 511;
  EXPECT_TRUE(says(descriptor, "beyond the last address"));
  descriptor = sample();
  descriptor.device = -1;
  EXPECT_TRUE(says(descriptor, "device storage"));
  descriptor.storage = StorageKind::kDisk;
  EXPECT_TRUE(descriptor.validate());
  descriptor.device = 0;
  EXPECT_TRUE(says(descriptor, "disk storage with device 0"));
  descriptor = sample();
  descriptor.shard.rank = 4;
  EXPECT_TRUE(says(descriptor, "rank 4 of 4"));
}

}  // namespace
}  // namespace ashlar::layout
