// Every way of moving bytes, against the element-wise model.
#include <string>
#include <thread>

#include "ashlar/storage/external_storage.h"
#include "backend/cuda/gpu_fixture.h"
#include "storage/pinned_storage.h"

namespace ashlar::backend::cuda {
namespace {

namespace order = layout::order;
using layout::Regions;
using transfer::BlockSet;

struct Way {
  const char* name;
  SwitchPoints points;
};

class EveryWay : public GpuTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) executor_ = make({.packing_bytes = 1 << 20, .switch_points = GetParam().points});
  }
  // Device to memory of `allocator` and back.
  void both_ways(const layout::Layout& on_device, const layout::Layout& other,
                 storage::Allocator& allocator) {
    move(*executor_, allocate(on_device, device_), kFrom, allocate(other, allocator), kTo);
    move(*executor_, allocate(other, allocator), kFrom, allocate(on_device, device_), kTo);
  }

  std::unique_ptr<CudaExecutor> executor_;
};

INSTANTIATE_TEST_SUITE_P(, EveryWay,
                         ::testing::Values(Way{"Kernel", kAlwaysKernel}, Way{"Engines", kAlwaysEngines},
                                           Way{"Packed", kAlwaysPacked}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(EveryWay, EveryPairOfLayouts) {
  for (const auto& one : order::kAll)
    for (const auto& two : order::kAll) {
      SCOPED_TRACE(std::string(one.name) + " and " + std::string(two.name));
      const Shape shape;
      both_ways(layout_of(shape, one.order), layout_of(shape, two.order), *pinned_);
      both_ways(layout_of(shape, one.order), layout_of(shape, two.order), device_);
      if (::testing::Test::HasFailure()) return;
    }
}

TEST_P(EveryWay, EveryLayoutAlignedAndFromPageableMemory) {
  for (const auto& named : order::kAll) {
    SCOPED_TRACE(std::string(named.name));
    const Shape aligned{.alignment = 512};
    both_ways(layout_of(aligned, named.order), layout_of(Shape{}, order::kFullyContiguousNhd), *pinned_);
    both_ways(layout_of(aligned, named.order), layout_of(Shape{}, order::kFullyContiguousHnd), system_);
    both_ways(layout_of(Shape{}, named.order), layout_of(aligned, order::kBlockFirstHnd), system_);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(EveryWay, RegionsPerLayer) {
  for (const auto& named : order::kAll) {
    if (named.order[0] != layout::Axis::kLayer) continue;
    SCOPED_TRACE(std::string(named.name));
    const layout::Layout layers = layout_of(Shape{}, named.order, Regions::kPerLayer);
    both_ways(layers, layout_of(Shape{}, order::kFullyContiguousNhd), *pinned_);
    both_ways(layers, layout_of(Shape{}, order::kBlockSecondHnd, Regions::kPerLayer), *pinned_);
    both_ways(layers, layout_of(Shape{}, order::kUniversalTp), system_);
  }
}

TEST_P(EveryWay, OddSizes) {
  for (const Shape& shape : {Shape{.tokens = 3, .heads = 3, .head_dim = 3, .dtype = layout::Dtype::kU8},
                             Shape{.tokens = 5, .heads = 1, .head_dim = 1, .dtype = layout::Dtype::kF8E4M3},
                             Shape{.tokens = 7, .heads = 3, .head_dim = 5, .dtype = layout::Dtype::kBF16},
                             Shape{.tokens = 3, .heads = 5, .head_dim = 3, .dtype = layout::Dtype::kF32},
                             Shape{.tokens = 16, .heads = 8, .head_dim = 80, .dtype = layout::Dtype::kBF16},
                             Shape{.tokens = 33, .heads = 3, .head_dim = 129, .dtype = layout::Dtype::kU8},
                             Shape{.layers = 2, .tokens = 17, .heads = 2, .head_dim = 576},
                             Shape{.tokens = 3, .heads = 3, .head_dim = 7, .dtype = layout::Dtype::kF64}}) {
    SCOPED_TRACE(shape.head_dim);
    for (storage::Allocator* other :
         std::initializer_list<storage::Allocator*>{pinned_.get(), &device_, &system_}) {
      both_ways(layout_of(shape, order::kBlockFirstNhd), layout_of(shape, order::kFullyContiguousHnd),
                *other);
      both_ways(layout_of(shape, order::kBlockFirstNhd), layout_of(shape, order::kFullyContiguousNhd),
                *other);
    }
  }
}

TEST_P(EveryWay, PartsOfLayersAndHeads) {
  const Shape shape{.layers = 5, .heads = 6};
  for (const auto& named : {order::kAll[0], order::kAll[3], order::kAll[6], order::kAll[10]}) {
    SCOPED_TRACE(std::string(named.name));
    for (storage::Allocator* other :
         std::initializer_list<storage::Allocator*>{pinned_.get(), &device_, &system_}) {
      const transfer::PlanSelection part{.layers = layout::Range{1, 3}, .heads = layout::Range{2, 3}};
      const auto on_device = allocate(layout_of(shape, named.order), device_);
      move(*executor_, on_device, kFrom, allocate(layout_of(shape, order::kBlockSecondNhd), *other), kTo,
           part);
      move(*executor_, allocate(layout_of(shape, order::kBlockSecondNhd), *other), kFrom, on_device, kTo,
           part);
    }
  }
}

// 3 ranks hold the cache on the device, 2 ranks take it over, each from those that have its heads.
TEST_P(EveryWay, RanksOfDifferentNumber) {
  const layout::Range layers{0, 3};
  constexpr std::uint32_t kHeads = 6;
  const auto ranks = [&](std::uint32_t count, const layout::AxisOrder& axes, storage::Allocator& allocator) {
    std::vector<std::shared_ptr<const BlockSet>> sets;
    for (std::uint32_t i = 0; i < count; ++i) {
      const transfer::PlaneShape plane{layout_of(Shape{.heads = kHeads / count}, axes),
                                       *layout::Shard::tensor_rank(i, count, kHeads, layers)};
      sets.push_back(*BlockSet::allocate(std::span(&plane, 1), allocator));
    }
    return sets;
  };
  const auto sources = ranks(3, order::kBlockFirstNhd, device_);
  const auto targets = ranks(2, order::kFullyContiguousHnd, *pinned_);
  std::vector<layout::Shard> shards;
  std::vector<Mirror> held;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    shards.push_back(sources[i]->planes()[0].shard);
    held.emplace_back(sources[i]).scramble(100 + i);
    held.back().put();
  }
  for (const auto& target : targets) {
    Mirror expected(target);
    Mirror seen(target);
    expected.put();
    const auto parts = transfer::cover(target->planes()[0].shard, shards);
    ASSERT_TRUE(parts) << parts.error();
    for (const transfer::ShardSource& part : *parts) {
      const transfer::PlanSelection selection{part.layers, part.heads};
      copy_elements(held[part.source], kFrom, expected, kTo, selection);
      const auto plan = transfer::plan(sources[part.source], kFrom, target, kTo, selection);
      ASSERT_TRUE(plan) << plan.error();
      const auto running = executor_->submit({.plan = *plan});
      ASSERT_TRUE(running) << running.error();
      ASSERT_TRUE(running->wait());
    }
    seen.fetch();
    EXPECT_TRUE(seen == expected);
  }
}

TEST_P(EveryWay, PlanesTravelTogether) {
  const auto with_scales = [&](const layout::AxisOrder& axes, std::uint32_t scale_heads,
                               storage::Allocator& allocator) {
    const Shape values{.head_dim = 16, .dtype = layout::Dtype::kF8E4M3};
    const Shape scales{.heads = scale_heads, .head_dim = 1, .dtype = layout::Dtype::kF32};
    const std::vector<transfer::PlaneShape> planes = {transfer::PlaneShape::whole(layout_of(values, axes)),
                                                      transfer::PlaneShape::whole(layout_of(scales, axes))};
    return *BlockSet::allocate(planes, allocator);
  };
  for (const std::uint32_t scale_heads : {1u, 2u})
    for (storage::Allocator* other :
         std::initializer_list<storage::Allocator*>{pinned_.get(), &device_, &system_}) {
      const auto on_device = with_scales(order::kBlockFirstNhd, scale_heads, device_);
      move(*executor_, on_device, kFrom, with_scales(order::kFullyContiguousHnd, scale_heads, *other), kTo);
      move(*executor_, with_scales(order::kFullyContiguousHnd, scale_heads, *other), kFrom, on_device, kTo);
    }
}

TEST_P(EveryWay, ManyBlocksInRunsAndAlone) {
  const Shape shape{.blocks = 5000, .layers = 2, .tokens = 2, .heads = 1, .head_dim = 8};
  std::vector<std::uint32_t> from;
  std::vector<std::uint32_t> to;
  for (std::uint32_t i = 0; i < 4600; ++i) {
    from.push_back(i < 2000 ? i : 4999 - (i - 2000));
    to.push_back(i + 200);
  }
  const auto on_device = allocate(layout_of(shape, order::kFullyContiguousNhd), device_);
  for (storage::Allocator* other : std::initializer_list<storage::Allocator*>{pinned_.get(), &system_})
    for (const layout::AxisOrder& axes : {order::kFullyContiguousNhd, order::kBlockFirstHnd}) {
      move(*executor_, on_device, from, allocate(layout_of(shape, axes), *other), to);
      move(*executor_, allocate(layout_of(shape, axes), *other), from, on_device, to);
    }
}

// More than the slots for packing hold, in pieces of several sizes.
TEST_P(EveryWay, MoreThanTheBuffersHold) {
  const Shape shape{.blocks = 40, .layers = 8, .tokens = 16, .heads = 4, .head_dim = 64};  // 128 KiB a block
  std::vector<std::uint32_t> from;
  std::vector<std::uint32_t> to;
  for (std::uint32_t i = 0; i < 37; ++i) {
    from.push_back((i * 11) % 40);
    to.push_back((i * 7 + 3) % 40);
  }
  for (const layout::AxisOrder& axes : {order::kBlockFirstNhd, order::kUniversalTp, order::kLhbnc})
    for (const layout::AxisOrder& other :
         {order::kFullyContiguousNhd, order::kFullyContiguousHnd, order::kBlockSecondNhd})
      for (storage::Allocator* memory : std::initializer_list<storage::Allocator*>{pinned_.get(), &system_}) {
        move(*executor_, allocate(layout_of(shape, axes), device_), from,
             allocate(layout_of(shape, other), *memory), to);
        move(*executor_, allocate(layout_of(shape, other), *memory), from,
             allocate(layout_of(shape, axes), device_), to);
      }
}

TEST_P(EveryWay, NoBlocksAreDoneAtOnce) {
  const auto from = allocate(layout_of(Shape{}, order::kBlockFirstNhd), device_);
  for (storage::Allocator* other : std::initializer_list<storage::Allocator*>{pinned_.get(), &system_}) {
    const auto plan =
        transfer::plan(from, {}, allocate(layout_of(Shape{}, order::kBlockFirstNhd), *other), {});
    ASSERT_TRUE(plan);
    const auto running = executor_->submit({.plan = *plan});
    ASSERT_TRUE(running);
    const transfer::TransferResult result = running->wait();
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->stats.bytes, 0u);
  }
}

class CudaExecutorTest : public GpuTest {};

TEST_F(CudaExecutorTest, MeasuresWhereTheEnginesBegin) {
  const auto executor = make({});
  for (const std::uint64_t point : {executor->switch_points().to_host, executor->switch_points().to_device,
                                    executor->switch_points().on_device}) {
    EXPECT_GE(point, 32u << 10);
    EXPECT_LE(point, 8u << 20);
  }
}

// Large pieces in one plane, small ones in the other: both ways in one transfer.
TEST_F(CudaExecutorTest, PlanesTakeTheWayThatFitsTheirPieces) {
  const auto executor = make({.switch_points = SwitchPoints{64 << 10, 64 << 10, 64 << 10}});
  const auto set = [&](const layout::AxisOrder& axes, storage::Allocator& allocator) {
    const Shape values{.layers = 2, .tokens = 64, .heads = 8, .head_dim = 128};  // 128 KiB each of K and V
    const Shape scales{.layers = 2, .tokens = 64, .heads = 8, .head_dim = 1, .dtype = layout::Dtype::kF32};
    const std::vector<transfer::PlaneShape> planes = {transfer::PlaneShape::whole(layout_of(values, axes)),
                                                      transfer::PlaneShape::whole(layout_of(scales, axes))};
    return *BlockSet::allocate(planes, allocator);
  };
  const auto stats = move(*executor, set(order::kBlockSecondNhd, device_), kFrom,
                          set(order::kFullyContiguousNhd, *pinned_), kTo);
  // 4 blocks, 2 layers, K and V by the engines; the scales with one launch.
  EXPECT_EQ(stats.operations, 4u * 2 * 2 + 1);
}

TEST_F(CudaExecutorTest, WholeBlocksOnTheHostArePacked) {
  const auto executor = make({.switch_points = SwitchPoints{kFar, kFar, kFar, 512}});
  const Shape shape;  // 768 bytes a block
  const auto on_device = allocate(layout_of(shape, order::kBlockFirstNhd), device_);
  const auto whole = allocate(layout_of(shape, order::kFullyContiguousHnd), *pinned_);
  const auto apart = allocate(layout_of(shape, order::kBlockSecondNhd), *pinned_);
  const std::uint64_t bytes = 4 * whole->block_bytes();
  EXPECT_EQ(move(*executor, on_device, {0, 1, 2, 3}, whole, {0, 5, 2, 3}).staged_bytes, bytes);
  // One launch; blocks 2 and 3 lie side by side at both ends and are one copy.
  EXPECT_EQ(move(*executor, on_device, {0, 1, 2, 3}, whole, {0, 5, 2, 3}).operations, 1u + 3);
  EXPECT_EQ(move(*executor, whole, kFrom, on_device, kTo).staged_bytes, bytes);
  EXPECT_EQ(move(*executor, on_device, kFrom, apart, kTo).staged_bytes, 0u);
  const auto without = make({.packing_bytes = 0, .switch_points = SwitchPoints{kFar, kFar, kFar, 512}});
  EXPECT_EQ(move(*without, on_device, kFrom, whole, kTo).staged_bytes, 0u);
}

TEST_F(CudaExecutorTest, MemoryThatIsNotLockedIsStaged) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  const layout::Layout layout = layout_of(Shape{}, order::kFullyContiguousNhd);
  const auto on_device = allocate(layout_of(Shape{}, order::kBlockFirstHnd), device_);
  storage::PinnedAllocator unlocked;
  const auto plain = allocate(layout, unlocked);
  EXPECT_EQ(plain->kind(), StorageKind::kPinned);
  EXPECT_EQ(move(*executor, on_device, kFrom, plain, kTo).staged_bytes, 4 * plain->block_bytes());
  EXPECT_EQ(move(*executor, plain, kFrom, on_device, kTo).staged_bytes, 4 * plain->block_bytes());
  // Somebody's memory, said to be pinned, which it is not.
  auto owner = std::make_shared<std::vector<std::byte>>(layout.region_bytes());
  const auto external = *storage::ExternalStorage::create(
      {.kind = StorageKind::kPinned, .address = owner->data(), .bytes = owner->size(), .owner = owner});
  const auto lie = *BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{external, 0}}}});
  EXPECT_EQ(move(*executor, on_device, kFrom, lie, kTo).staged_bytes, 4 * plain->block_bytes());
  EXPECT_EQ(move(*executor, on_device, kFrom, allocate(layout, *pinned_), kTo).staged_bytes, 0u);
}

// A thread that never called CUDA has no context; what it asks must not make locked memory look pageable.
TEST_F(CudaExecutorTest, AFreshThreadKnowsLockedMemory) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  const layout::Layout layout = layout_of(Shape{}, order::kFullyContiguousNhd);
  const auto from = allocate(layout, *pinned_);
  const auto to = allocate(layout, device_);
  transfer::TransferResult result = make_error(ErrorCode::kInternal, "not run");
  std::thread([&] {
    result = executor->submit({.plan = *transfer::plan(from, kFrom, to, kTo)})->wait();
  }).join();
  ASSERT_TRUE(result) << result.error();
  EXPECT_EQ(result->stats.staged_bytes, 0u);
}

TEST_F(CudaExecutorTest, LargePiecesOfPageableMemory) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  const Shape shape{.layers = 2, .tokens = 64, .heads = 8, .head_dim = 1024};  // 2 MiB pieces
  const auto on_device = allocate(layout_of(shape, order::kBlockSecondNhd), device_);
  const auto host = allocate(layout_of(shape, order::kFullyContiguousNhd), system_);
  move(*executor, on_device, kFrom, host, kTo);
  move(*executor, host, kFrom, on_device, kTo);
}

// Address misaligned by region offsets, so that a whole region moves byte by byte.
TEST_F(CudaExecutorTest, RegionsThatBeginAnywhere) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  const layout::Layout layout =
      layout_of(Shape{.tokens = 16, .heads = 4, .head_dim = 64}, order::kFullyContiguousNhd);
  for (const std::uint64_t offset : {1, 2, 4, 8, 12}) {
    const auto memory = *DeviceStorage::create(0, layout.region_bytes() + offset);
    const auto set = *BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{memory, offset}}}});
    move(*executor, set, kFrom, allocate(layout, *pinned_), kTo);
    move(*executor, allocate(layout, *pinned_), kFrom, set, kTo);
  }
}

TEST_F(CudaExecutorTest, RefusesWhatItCannotReach) {
  const auto executor = make({.switch_points = kAlwaysKernel});
  const layout::Layout layout = layout_of(Shape{}, order::kFullyContiguousNhd);
  const auto one = allocate(layout, *pinned_);
  const auto two = allocate(layout, system_);
  EXPECT_FALSE(executor->handles(*one, *two));
  EXPECT_EQ(executor->submit({.plan = *transfer::plan(one, kFrom, two, kTo)}).error().code(),
            ErrorCode::kUnsupported);
  // Host memory that claims to be the device's would kill the context if a kernel touched it.
  Bytes bytes(layout.region_bytes());
  const auto external =
      *storage::ExternalStorage::create({.kind = StorageKind::kDevice,
                                         .address = reinterpret_cast<std::byte*>(bytes.data()),
                                         .bytes = bytes.size(),
                                         .device = 0});
  const auto lie = *BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{external, 0}}}});
  EXPECT_TRUE(executor->handles(*lie, *one));
  const auto refused = executor->submit({.plan = *transfer::plan(lie, kFrom, one, kTo)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(executor->counters().submitted, 0u);
}

TEST_F(CudaExecutorTest, TooMuchDeviceMemoryIsRefusedWithNumbers) {
  const Result<DeviceInfo> info = describe_device(0);
  ASSERT_TRUE(info);
  const std::uint64_t wanted = info->total_bytes + (1 << 20);
  const auto storage = DeviceStorage::create(0, wanted);
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error().code(), ErrorCode::kCapacity);
  for (const std::uint64_t number : {wanted, info->total_bytes})
    EXPECT_NE(storage.error().message().find(std::to_string(number)), std::string::npos) << storage.error();
  EXPECT_NE(storage.error().message().find("are free"), std::string::npos) << storage.error();
  EXPECT_TRUE(DeviceStorage::create(0, 4096)) << "an error of before was told again";
  EXPECT_EQ(DeviceStorage::create(1000, 4096).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(CudaExecutorTest, DeviceMemoryIsAlignedAsAsked) {
  for (const std::uint64_t alignment : {256ull, 4096ull, 2ull << 20}) {
    const auto storage = DeviceStorage::create(0, 100, alignment);
    ASSERT_TRUE(storage) << storage.error();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*storage)->address()) % alignment, 0u);
    EXPECT_EQ((*storage)->device(), 0);
  }
}

}  // namespace
}  // namespace ashlar::backend::cuda
