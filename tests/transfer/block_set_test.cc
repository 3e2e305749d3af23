#include "ashlar/transfer/block_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ashlar/storage/disk_storage.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/transfer/host_executors.h"
#include "storage/system_storage.h"
#include "support/block_images.h"
#include "support/scratch_folder.h"

namespace ashlar::transfer {
namespace {

using layout::Layout;
using layout::LayoutConfig;
using layout::Range;
namespace order = layout::order;
using ::testing::HasSubstr;

Layout layout_of(const LayoutConfig& config, const layout::AxisOrder& axes = order::kFullyContiguousNhd) {
  return Layout::create(config, axes).value();
}

std::shared_ptr<storage::Storage> memory_of(std::uint64_t bytes) {
  return storage::SystemStorage::create({.bytes = bytes}).value();
}

void expect_refused(const auto& result, ErrorCode code, const char* says) {
  ASSERT_FALSE(result) << says;
  EXPECT_EQ(result.error().code(), code) << result.error();
  EXPECT_THAT(result.error().message(), HasSubstr(says));
}

TEST(BlockSetTest, WhatDoesNotFitIsNamed) {
  const Layout layout = layout_of(small_shape(6, 3, 4));
  const layout::Shard whole = layout::Shard::whole(layout.config());
  const std::uint64_t bytes = layout.region_bytes();
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  expect_refused(BlockSet::create({}), kBad, "at least one plane");
  expect_refused(BlockSet::create({{layout, whole, {}}}), kBad, "storage for 0 regions");
  expect_refused(BlockSet::create({{layout, whole, {{nullptr, 0}}}}), kBad, "has no storage");
  expect_refused(BlockSet::create({{layout, whole, {{memory_of(bytes - 1), 0}}}}), kBad, "needs ");
  expect_refused(BlockSet::create({{layout, whole, {{memory_of(bytes), 1}}}}), kBad, "from 1 on");
  expect_refused(BlockSet::create({{layout, whole, {{memory_of(bytes), ~std::uint64_t{0}}}}}), kBad,
                 "needs ");
  expect_refused(BlockSet::create({{layout, {{0, 2}, {0, 4}}, {{memory_of(bytes), 0}}}}), kBad, "2 layers");
  LayoutConfig aligned = layout.config();
  aligned.alignment = 4096;
  const Layout sectors = layout_of(aligned);
  expect_refused(BlockSet::create({{sectors, whole, {{memory_of(sectors.region_bytes() + 512), 512}}}}), kBad,
                 "not a multiple of its alignment 4096");
  const Layout other = layout_of(small_shape(5, 3, 4));
  expect_refused(
      BlockSet::create({{layout, whole, {{memory_of(bytes), 0}}}, {other, whole, {{memory_of(bytes), 0}}}}),
      kBad, "plane 1 has 5 blocks");
  const Layout two_heads = layout_of(small_shape(6, 3, 2));
  expect_refused(
      BlockSet::create({{layout, whole, {{memory_of(bytes), 0}}},
                        {two_heads, layout::Shard::whole(two_heads.config()), {{memory_of(bytes), 0}}}}),
      kBad, "plane 1 has 2 heads");
  const Layout per_layer =
      Layout::create(small_shape(6, 3, 4), order::kBlockFirstNhd, layout::Regions::kPerLayer).value();
  std::vector<std::byte> mine(per_layer.region_bytes());
  const std::shared_ptr<storage::Storage> pinned =
      storage::ExternalStorage::create(
          {.kind = StorageKind::kPinned, .address = mine.data(), .bytes = mine.size()})
          .value();
  const auto system = memory_of(per_layer.region_bytes());
  expect_refused(BlockSet::create({{per_layer, whole, {{system, 0}, {system, 0}, {pinned, 0}}}}), kBad,
                 "of one kind");
}

TEST(BlockSetTest, RegionsDoNotShareBytes) {
  const Layout per_layer =
      Layout::create(small_shape(6, 3, 4), order::kBlockFirstNhd, layout::Regions::kPerLayer).value();
  const layout::Shard whole = layout::Shard::whole(per_layer.config());
  const std::uint64_t bytes = per_layer.region_bytes();
  const auto memory = memory_of(3 * bytes);
  EXPECT_TRUE(BlockSet::create({{per_layer, whole, {{memory, 0}, {memory, bytes}, {memory, 2 * bytes}}}}));
  expect_refused(BlockSet::create({{per_layer, whole, {{memory, 0}, {memory, 0}, {memory, 2 * bytes}}}}),
                 ErrorCode::kInvalidArgument, "two regions of the set overlap");
  expect_refused(BlockSet::create({{per_layer, whole, {{memory, 0}, {memory, 8}, {memory, 2 * bytes}}}}),
                 ErrorCode::kInvalidArgument, "two regions of the set overlap");
}

// Values and scales of a block as neighbours: the regions cross, the bytes do not.
TEST(BlockSetTest, PlanesMayInterleave) {
  LayoutConfig values = small_shape(6, 1, 4);
  LayoutConfig scales = small_shape(6, 1, 1);
  scales.block_size = 1;
  scales.head_dim = 1;
  scales.inner_dim = 1;
  const std::uint64_t stride = values.block_bytes() + scales.block_bytes();
  const auto spread = [&](const LayoutConfig& config) {
    layout::Strides strides = Layout::create(config, order::kFullyContiguousNhd).value().strides();
    strides.block = stride;
    return Layout::create(config, strides).value();
  };
  const auto memory = memory_of(7 * stride);
  const auto set_at = [&](std::uint64_t offset) {
    return BlockSet::create({{spread(values), layout::Shard::whole(values), {{memory, 0}}},
                             {spread(scales), layout::Shard::whole(scales), {{memory, offset}}}});
  };
  EXPECT_TRUE(set_at(values.block_bytes())) << set_at(values.block_bytes()).error();
  expect_refused(set_at(values.block_bytes() - 2), ErrorCode::kInvalidArgument, "overlap");
}

TEST(BlockSetTest, DescribesItselfForOthers) {
  const Layout layout =
      Layout::create(small_shape(6, 3, 4), order::kBlockFirstNhd, layout::Regions::kPerLayer).value();
  storage::SystemAllocator memory;
  const auto set = BlockSet::allocate(layout, memory).value();
  const layout::LayoutDescriptor descriptor = set->describe(0, 7, {});
  EXPECT_TRUE(descriptor.validate());
  const auto back = layout::LayoutDescriptor::deserialize(descriptor.serialize());
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, descriptor);
  EXPECT_EQ(descriptor.regions.size(), 3u);
  EXPECT_EQ(descriptor.regions[1].address, reinterpret_cast<std::uintptr_t>(set->address(0, {1, 0})));
}

TEST(BlockSetTest, IsSeenThroughItsDescriptors) {
  storage::SystemAllocator memory;
  LayoutConfig scales = small_shape(6, 3, 1);
  const std::vector<PlaneShape> shapes = {
      {Layout::create(small_shape(6, 3, 4), order::kBlockFirstNhd, layout::Regions::kPerLayer).value(),
       {{2, 3}, {4, 4}}},
      {layout_of(scales), {{2, 3}, {0, 1}}}};
  const auto set = BlockSet::allocate(shapes, memory).value();
  BlockImage image(*set, 0);
  image.number(*set);
  image.store(*set);
  std::vector<layout::LayoutDescriptor> descriptors;
  for (std::size_t i = 0; i < 2; ++i)
    descriptors.push_back(
        layout::LayoutDescriptor::deserialize(set->describe(i, 9, {}, 5).serialize()).value());
  const auto view = BlockSet::view(descriptors, set);
  ASSERT_TRUE(view) << view.error();
  EXPECT_EQ((*view)->planes()[0].shard, set->planes()[0].shard);
  EXPECT_TRUE(BlockImage::of(**view) == image);
  std::swap(descriptors[0], descriptors[1]);
  expect_refused(BlockSet::view(descriptors), ErrorCode::kInvalidArgument, "descriptor 0 is of plane 1");
  std::swap(descriptors[0], descriptors[1]);
  descriptors[1].scheme_fingerprint = 6;
  expect_refused(BlockSet::view(descriptors), ErrorCode::kInvalidArgument, "the same fingerprints");
  descriptors.pop_back();
  descriptors[0].regions[1] = descriptors[0].regions[0];
  expect_refused(BlockSet::view(descriptors), ErrorCode::kInvalidArgument, "overlap");
}

TEST(BlockSetTest, DescriptorsOfOtherProcessesAreNotViewed) {
  storage::SystemAllocator memory;
  const auto set = BlockSet::allocate(layout_of(small_shape(6, 3, 4)), memory).value();
  layout::LayoutDescriptor one = set->describe(0, 9, {});
  EXPECT_EQ(one.process, layout::LayoutDescriptor::this_process());
  ASSERT_TRUE(BlockSet::view(std::span(&one, 1), set));
  ++one.process;
  expect_refused(BlockSet::view(std::span(&one, 1), set), ErrorCode::kInvalidArgument, "of another process");
  one.process = 0;  // as versions 1 and 2 say it
  expect_refused(BlockSet::view(std::span(&one, 1), set), ErrorCode::kInvalidArgument, "names no process");
}

class TransferPlanTest : public ::testing::Test {
 protected:
  std::shared_ptr<const BlockSet> set(const Layout& layout) {
    return BlockSet::allocate(layout, memory_).value();
  }
  // Values of a rank's heads with one scale per layer and K or V for all of them, or one per head.
  std::shared_ptr<const BlockSet> scaled(Range heads, bool one_for_all) {
    LayoutConfig scales = small_shape(4, 3, one_for_all ? 1 : heads.count);
    scales.block_size = 1;
    scales.head_dim = 1;
    scales.inner_dim = scales.num_heads;
    scales.dtype = layout::Dtype::kF32;
    LayoutConfig values = small_shape(4, 3, heads.count);
    values.dtype = layout::Dtype::kF8E4M3;
    const std::vector<PlaneShape> shapes = {{layout_of(values), {{0, 3}, heads}},
                                            {layout_of(scales), {{0, 3}, one_for_all ? Range{0, 1} : heads}}};
    return BlockSet::allocate(shapes, memory_).value();
  }
  void expect_copied(const std::shared_ptr<const BlockSet>& from, const std::shared_ptr<const BlockSet>& to) {
    BlockImage source(*from, 0);
    source.number(*from);
    source.store(*from);
    BlockImage expected(*to, 0xEE);
    expected.store(*to);
    copy_naively(*from, source, two_, *to, expected, two_);
    Result<TransferPlan> planned = plan(from, two_, to, two_);
    ASSERT_TRUE(planned) << planned.error();
    const auto executor = MemcpyExecutor::create().value();
    ASSERT_TRUE(executor->submit({.plan = *std::move(planned)}).value().wait());
    EXPECT_TRUE(BlockImage::of(*to) == expected);
  }

  storage::SystemAllocator memory_;
  std::vector<std::uint32_t> two_ = {0, 2};
};

TEST_F(TransferPlanTest, ABlockIsNotReadAndWrittenAtOnce) {
  const auto one = set(layout_of(small_shape(6, 3, 4)));
  const std::vector<std::uint32_t> apart = {1, 3};
  const std::vector<std::uint32_t> shared = {1, 2};
  EXPECT_TRUE(plan(one, two_, one, apart));
  expect_refused(plan(one, two_, one, shared), ErrorCode::kInvalidArgument,
                 "block 2 is source and destination");
  const Plane& plane = one->planes()[0];
  const auto same_memory = BlockSet::create({plane}).value();
  expect_refused(plan(one, two_, same_memory, apart), ErrorCode::kInvalidArgument, "share memory");
  // The same bytes under another storage.
  const std::shared_ptr<storage::Storage> alias =
      storage::ExternalStorage::create(
          {.address = plane.regions[0].storage->address() + 8, .bytes = plane.layout.region_bytes()})
          .value();
  const auto aliased = BlockSet::create({{plane.layout, plane.shard, {{alias, 0}}}}).value();
  expect_refused(plan(one, two_, aliased, apart), ErrorCode::kInvalidArgument, "share memory");
  const std::shared_ptr<storage::Storage> pinned =
      storage::ExternalStorage::create({.kind = StorageKind::kPinned,
                                        .address = plane.regions[0].storage->address() + 16,
                                        .bytes = plane.layout.region_bytes()})
          .value();
  const auto other_kind = BlockSet::create({{plane.layout, plane.shard, {{pinned, 0}}}}).value();
  expect_refused(plan(one, two_, other_kind, apart), ErrorCode::kInvalidArgument, "share memory");
  // One file, opened twice.
  const ScratchFolder folder;
  const std::shared_ptr<storage::Storage> file =
      storage::DiskStorage::create({.path = folder.file("x"), .bytes = plane.layout.region_bytes()}).value();
  const std::shared_ptr<storage::Storage> again =
      storage::DiskStorage::open({.path = folder.file("x")}).value();
  const auto on_file = BlockSet::create({{plane.layout, plane.shard, {{file, 0}}}}).value();
  const auto on_file_again = BlockSet::create({{plane.layout, plane.shard, {{again, 0}}}}).value();
  expect_refused(plan(on_file, two_, on_file_again, apart), ErrorCode::kInvalidArgument, "share memory");
}

TEST_F(TransferPlanTest, NothingAndNobodyAreRefused) {
  const auto one = set(layout_of(small_shape(6, 3, 4)));
  expect_refused(plan(nullptr, two_, one, two_), ErrorCode::kInvalidArgument, "a source and a destination");
  expect_refused(plan(one, two_, scaled({0, 4}, true), two_), ErrorCode::kInvalidArgument,
                 "1 planes at the source, 2");
}

TEST_F(TransferPlanTest, ScalesPerHeadAreCutWithTheirHeads) {
  expect_copied(scaled({0, 8}, false), scaled({2, 2}, false));
  expect_copied(scaled({2, 2}, false), scaled({0, 8}, false));
}

// A rank with one head: its one scale is that head's, whatever the shard calls it.
TEST_F(TransferPlanTest, TheScaleOfASingleHeadIsThatHeads) {
  const auto one_head = scaled({2, 1}, true);
  EXPECT_EQ(one_head->planes()[1].shard.heads, (Range{2, 1}));
  expect_copied(one_head, scaled({0, 8}, false));
  expect_copied(scaled({0, 8}, false), one_head);
}

TEST_F(TransferPlanTest, AScaleForAllHeadsGoesWithThemOrNotAtAll) {
  expect_copied(scaled({0, 4}, true), scaled({0, 4}, true));
  expect_copied(scaled({0, 8}, true), scaled({4, 4}, true));
  // Two ranks with a scale each cannot become one with a single scale.
  expect_refused(plan(scaled({4, 4}, true), two_, scaled({0, 8}, true), two_), ErrorCode::kUnsupported,
                 "plane 1 has one value for all heads");
  expect_refused(plan(scaled({0, 4}, true), two_, scaled({0, 4}, true), two_, {{}, Range{1, 2}}),
                 ErrorCode::kUnsupported, "plane 1 has one value for all heads");
  expect_refused(plan(scaled({0, 4}, true), two_, scaled({0, 4}, false), two_), ErrorCode::kInvalidArgument,
                 "plane 1");
}

}  // namespace
}  // namespace ashlar::transfer
