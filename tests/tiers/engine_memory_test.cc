// G1 in the tensors of an engine: whatever their arrangement, blocks go down to every tier and come back with
// every byte of every plane.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "support/engine_tensors.h"
#include "support/fake_device.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using ::testing::HasSubstr;
using tokens::SequenceHash;

constexpr std::uint32_t kEngineBlocks = 8;

layout::LayoutConfig kv_plane(layout::Dtype dtype, std::uint32_t outer = 2) {
  return {.num_layers = 3,
          .outer_dim = outer,
          .block_size = 4,
          .num_heads = 2,
          .head_dim = 24,
          .inner_dim = 48,
          .dtype = dtype};
}

layout::LayoutConfig scale_plane(std::uint32_t heads) {
  layout::LayoutConfig config = kv_plane(layout::Dtype::kF32);
  config.num_heads = config.inner_dim = heads;
  config.head_dim = 1;
  return config;
}

struct Arrangement {
  std::string name;
  std::vector<EnginePlane> planes;
  bool as_block_set = false;
};

std::vector<Arrangement> arrangements() {
  using layout::Dtype;
  const EnginePlane bf16{.config = kv_plane(Dtype::kBF16)};
  EnginePlane kv_apart = bf16;
  kv_apart.axes = TensorAxes::kKvBlockTokenHead;
  EnginePlane hnd = bf16;
  hnd.axes = TensorAxes::kBlockKvHeadToken;
  EnginePlane one_tensor = bf16;
  one_tensor.tensor_per_layer = false;
  EnginePlane roomy = bf16;
  roomy.extra_blocks = 3;
  roomy.gap = 40;
  EnginePlane roomy_apart = kv_apart;
  roomy_apart.extra_blocks = 5;
  EnginePlane roomy_one_tensor = roomy;
  roomy_one_tensor.tensor_per_layer = false;
  const EnginePlane k{.config = kv_plane(Dtype::kBF16, 1)};
  const EnginePlane fp8{.config = kv_plane(Dtype::kF8E4M3), .axes = TensorAxes::kKvBlockTokenHead};
  const EnginePlane per_head{.config = scale_plane(2)};
  const EnginePlane for_all{.config = scale_plane(1), .tensor_per_layer = false};
  return {{"BlockKvPerLayer", {bf16}},
          {"KvBlockPerLayer", {kv_apart}},
          {"HeadsBeforeTokens", {hnd}},
          {"OneTensor", {one_tensor}},
          {"GapsAndExtraBlocks", {roomy}},
          {"KvBlockWithExtraBlocks", {roomy_apart}},
          {"OneTensorWithGaps", {roomy_one_tensor}},
          {"KAndVInTensorsOfTheirOwn", {k, k}},
          {"Fp8WithScales", {fp8, per_head, for_all}},
          {"Fp8WithScalesAsBlockSet", {fp8, per_head, for_all}, true},
          {"BlockKvPerLayerAsBlockSet", {bf16}, true}};
}

// The set that an engine might make itself.
std::shared_ptr<const transfer::BlockSet> block_set(const std::vector<EnginePlane>& planes,
                                                    const std::vector<PlaneMemory>& memory) {
  std::vector<transfer::Plane> out;
  for (std::size_t p = 0; p < planes.size(); ++p) {
    layout::LayoutConfig config = planes[p].config;
    config.block_count = kEngineBlocks;
    const auto layout = layout::Layout::create(
                            config, memory[p].order.value_or(layout::order::kBlockFirstNhd),
                            planes[p].tensor_per_layer ? layout::Regions::kPerLayer : layout::Regions::kOne)
                            .value();
    out.push_back({layout, layout::Shard::whole(config), {}});
    for (const storage::ExternalMemory& region : memory[p].regions)
      out.back().regions.push_back({storage::ExternalStorage::create(region).value(), 0});
  }
  return transfer::BlockSet::create(std::move(out)).value();
}

KvOptions engine_options(const std::vector<EnginePlane>& planes) {
  KvOptions options{.model = planes[0].config,
                    .block_size = 4,
                    .keys = tokens::NamespaceFingerprint::from_bits(5, 6),
                    .g1 = {.block_count = kEngineBlocks},
                    .g2 = TierShape{.block_count = 12, .order = layout::order::kUniversalTp}};
  for (std::size_t p = 1; p < planes.size(); ++p) options.scales.push_back(planes[p].config);
  return options;
}

// The tensors of an engine on a device, with their copy on the host, where the test looks at them.
class DeviceTensors {
 public:
  explicit DeviceTensors(EngineTensors& host) : host_(host) {
    for (std::size_t p = 0; p < host_.planes(); ++p)
      for (std::size_t i = 0; i < host_.tensor_count(p); ++i)
        tensors_.push_back({p, i, device_->allocate(host_.tensor(p, i).size())});
    put();
  }
  std::vector<PlaneMemory> memory() const {
    return host_.memory([&](std::size_t plane, std::size_t i) {
      return std::ranges::find_if(tensors_,
                                  [&](const Tensor& one) { return one.plane == plane && one.number == i; })
          ->memory;
    });
  }
  std::shared_ptr<transfer::Executor> executor() const {
    return std::shared_ptr<transfer::Executor>(
        transfer::TransferEngine::create({.executors = {std::make_shared<FakeDeviceExecutor>(device_),
                                                        transfer::MemcpyExecutor::create().value(),
                                                        transfer::FileExecutor::create().value()}})
            .value());
  }
  void put() {
    for (const Tensor& one : tensors_)
      std::ranges::copy(host_.tensor(one.plane, one.number), device_->driver(one.memory.address));
  }
  void get() {
    for (const Tensor& one : tensors_)
      std::copy_n(device_->driver(one.memory.address), one.memory.bytes,
                  host_.tensor(one.plane, one.number).begin());
  }

 private:
  struct Tensor {
    std::size_t plane;
    std::size_t number;
    storage::ExternalMemory memory;
  };
  EngineTensors& host_;
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::vector<Tensor> tensors_;
};

class EngineMemoryTest : public ::testing::TestWithParam<Arrangement> {
 protected:
  VolumeDescriptor volume(const std::string& kind) const {
    const std::string path = folder_.file("volume." + kind);
    if (kind == "directory") {
      std::filesystem::create_directories(path);
    } else if (!std::filesystem::exists(path)) {
      std::ofstream(path).close();
      std::filesystem::resize_file(path, 4 << 20);
      provision_file_volume(path, {.slot_bytes = 16384}).value();
    }
    return {.name = "v", .kind = kind, .location = path, .options = {{"sync", "false"}}};
  }
  void open(const std::string& volume_kind, bool on_device) {
    kv_.reset();
    device_.reset();
    engine_ = std::make_unique<EngineTensors>(GetParam().planes, kEngineBlocks);
    KvOptions options = engine_options(GetParam().planes);
    std::vector<PlaneMemory> memory = engine_->memory();
    if (on_device) {
      device_ = std::make_unique<DeviceTensors>(*engine_);
      memory = device_->memory();
      options.executor = device_->executor();
    }
    if (GetParam().as_block_set) {
      options.g1 = {.blocks = block_set(GetParam().planes, memory)};
    } else {
      options.g1.memory = memory;
    }
    options.g3 = DiskShape{.block_count = 40,
                           .paths = {folder_.file("g3.0"), folder_.file("g3.1")},
                           .survive_power_loss = false};
    options.g4 = VolumeShape{.block_count = 40, .volumes = {volume(volume_kind)}};
    options.read_back_after_write = true;
    auto made = KvBlockManager::create(std::move(options));
    ASSERT_TRUE(made) << made.error();
    kv_ = *std::move(made);
  }
  void compute(const std::vector<SequenceHash>& hashes) {
    auto fresh = kv_->get_mutable_blocks(hashes.size()).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      engine_->compute(fresh[i].block_id().value(), hashes[i]);
      complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    }
    if (device_) device_->put();
    const auto stored = kv_->register_blocks(std::move(complete)).value();
    ASSERT_TRUE(kv_->drain());
  }
  void overwrite() {
    ASSERT_TRUE(kv_->reset(kG1));
    engine_->scribble();
    if (device_) device_->put();
  }
  // Everything in G1 is gone; the blocks come back from below.
  void expect_back(const std::vector<SequenceHash>& hashes) {
    overwrite();
    const OnboardTable table = kv_->onboard(hashes);
    ASSERT_EQ(table.size(), hashes.size());
    if (device_) device_->get();
    for (std::size_t i = 0; i < hashes.size(); ++i)
      EXPECT_TRUE(engine_->has(table[i].block_id().value(), hashes[i])) << "block " << i;
  }
  void expect_back_by_layer(const std::vector<SequenceHash>& hashes) {
    overwrite();
    const OnboardHandle handle = kv_->onboard_async(hashes, {.by_layer = true}).value();
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      const auto ids = handle.wait_layer(layer).value();
      ASSERT_EQ(ids.size(), hashes.size());
      if (device_ && layer < 2) continue;  // the copy on the host is made of all layers
      if (device_) device_->get();
      for (std::size_t i = 0; i < ids.size(); ++i)
        EXPECT_TRUE(engine_->has(ids[i].value(), hashes[i], layer)) << "block " << i << ", layer " << layer;
    }
    EXPECT_EQ(handle.wait()->size(), hashes.size());
  }

  ScratchFolder folder_;
  std::unique_ptr<EngineTensors> engine_;
  std::unique_ptr<DeviceTensors> device_;  // null: the tensors are on the host
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_P(EngineMemoryTest, EveryTierCarriesEveryByte) {
  struct Place {
    const char* volume;
    bool on_device;
  };
  std::uint64_t number = 0;
  for (const auto& [kind, on_device] :
       {Place{"directory", false}, Place{"file", false}, Place{"directory", true}, Place{"file", true}}) {
    SCOPED_TRACE(::testing::Message() << kind << (on_device ? ", device" : ", host"));
    const auto hashes = KvWorkload::sequence(++number, 5);
    open(kind, on_device);
    ASSERT_FALSE(HasFatalFailure());
    compute(hashes);
    expect_back(hashes);
    expect_back_by_layer(hashes);
    EXPECT_EQ(kv_->status().g2->onboarded, 10u);
    ASSERT_TRUE(kv_->reset(kG2));
    expect_back(hashes);
    EXPECT_EQ(kv_->status().g3->onboarded, 5u);
    ASSERT_TRUE(kv_->reset(kG2));
    ASSERT_TRUE(kv_->reset(kG3));
    expect_back(hashes);
    EXPECT_EQ(kv_->status().g4->onboarded, 5u);
    ASSERT_TRUE(kv_->offload_to(kG3, hashes).value().wait());
    EXPECT_TRUE(engine_->rest_is_untouched());

    open(kind, on_device);  // with new tensors
    ASSERT_FALSE(HasFatalFailure());
    expect_back(hashes);
    EXPECT_EQ(kv_->status().g3->onboarded, 5u);
    ASSERT_TRUE(kv_->reset(kG2));
    ASSERT_TRUE(kv_->reset(kG3));
    expect_back(hashes);
    EXPECT_EQ(kv_->status().g4->onboarded, 5u);
    EXPECT_EQ(kv_->status().g3->damaged + kv_->status().g4->damaged, 0u);
    EXPECT_TRUE(engine_->rest_is_untouched());
    kv_->check_invariants();
    // The last byte of the last plane counts.
    const std::uint32_t id = kv_->onboard(hashes)[4].block_id().value();
    engine_->last_byte(id) ^= std::byte{1};
    EXPECT_FALSE(engine_->has(id, hashes[4]));
  }
}

INSTANTIATE_TEST_SUITE_P(Arrangements, EngineMemoryTest, ::testing::ValuesIn(arrangements()),
                         [](const auto& info) { return info.param.name; });

// As an engine restarts with another attention backend: what one arrangement stored, another reads.
TEST(EngineMemory, AnotherArrangementReadsTheSameFile) {
  const ScratchFolder folder;
  const auto hashes = KvWorkload::sequence(1, 6);
  bool first = true;
  for (const Arrangement& arrangement : arrangements()) {
    if (arrangement.planes.size() != 1) continue;
    SCOPED_TRACE(arrangement.name);
    EngineTensors engine(arrangement.planes, kEngineBlocks);
    KvOptions options = engine_options(arrangement.planes);
    options.g1.memory = engine.memory();
    options.g3 = DiskShape{.block_count = 16, .paths = {folder.file("g3")}, .survive_power_loss = false};
    const auto kv = KvBlockManager::create(options).value();
    if (first) {
      auto fresh = kv->get_mutable_blocks(hashes.size()).value();
      block::BlockList<block::CompleteBlock<G1>> complete;
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        engine.compute(fresh[i].block_id().value(), hashes[i]);
        complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
      }
      const auto stored = kv->register_blocks(std::move(complete)).value();
      ASSERT_TRUE(kv->drain());
      first = false;
      continue;
    }
    const OnboardTable table = kv->onboard(hashes);
    ASSERT_EQ(table.size(), hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i)
      EXPECT_TRUE(engine.has(table[i].block_id().value(), hashes[i])) << "block " << i;
  }
}

TEST(EngineMemory, IsReleasedWithTheManagerAndNotBefore) {
  const std::vector<EnginePlane> planes = {{.config = kv_plane(layout::Dtype::kBF16)}};
  const auto owner = std::make_shared<int>(0);
  const EngineTensors engine(planes, kEngineBlocks);
  KvOptions options = engine_options(planes);
  options.g1.memory = engine.memory();
  for (storage::ExternalMemory& region : options.g1.memory[0].regions) region.owner = owner;
  auto kv = KvBlockManager::create(std::move(options)).value();
  options = {};
  EXPECT_GT(owner.use_count(), 1);
  kv.reset();
  EXPECT_EQ(owner.use_count(), 1);
}

class EngineMemoryErrors : public ::testing::Test {
 protected:
  EngineMemoryErrors() : engine_(planes_, kEngineBlocks) {
    options_ = engine_options(planes_);
    options_.g1.memory = engine_.memory();
  }
  static void expect_refused(const KvOptions& options, const std::string& says,
                             ErrorCode code = ErrorCode::kInvalidArgument) {
    const auto made = KvBlockManager::create(options);
    ASSERT_FALSE(made) << says;
    EXPECT_EQ(made.error().code(), code) << made.error();
    EXPECT_THAT(made.error().message(), HasSubstr(says));
  }
  storage::ExternalMemory& region(std::size_t plane, std::size_t i) {
    return options_.g1.memory[plane].regions[i];
  }

  const std::vector<EnginePlane> planes_ = {
      {.config = kv_plane(layout::Dtype::kF8E4M3), .axes = TensorAxes::kKvBlockTokenHead},
      {.config = scale_plane(2)}};
  EngineTensors engine_;
  KvOptions options_;
};

TEST_F(EngineMemoryErrors, CountsOfPlanesAndRegions) {
  options_.g1.memory.pop_back();
  expect_refused(options_, "g1.memory has 1 planes; it needs 2");
  options_.g1.memory = engine_.memory();
  options_.g1.memory[1].regions.pop_back();
  expect_refused(options_,
                 "g1.memory[1] has 2 regions; it needs one for all layers, or one for each of the 3");
  options_.g1.memory[1].regions.clear();
  expect_refused(options_, "g1.memory[1] has 0 regions");
}

TEST_F(EngineMemoryErrors, Sizes) {
  // 8 blocks of 2 x 4 x 2 x 24 bytes.
  region(0, 2).bytes = 3071;
  expect_refused(options_,
                 "g1.memory[0].regions[2] has 3071 bytes; 8 blocks need exactly 3072, with 192 from");
  // A tensor with more blocks has V elsewhere.
  region(0, 2).bytes = 4096;
  expect_refused(options_, "give strides where the memory has gaps or more blocks");
  options_.g1.memory = engine_.memory();
  options_.g1.memory[0].order.reset();
  options_.g1.memory[0].strides = layout::Strides{.block = 384, .outer = 192, .token = 48, .head = 24};
  EXPECT_TRUE(KvBlockManager::create(options_));
  region(0, 1).bytes = 3071;
  expect_refused(options_, "g1.memory[0].regions[1] has 3071 bytes; 8 blocks need at least 3072");
  region(0, 1).bytes = 0;
  expect_refused(options_, "g1.memory[0].regions[1]: external memory needs an address and a size");
}

TEST_F(EngineMemoryErrors, OrdersAndStrides) {
  options_.g1.memory[0].strides = layout::Strides{.block = 384, .outer = 192, .token = 48, .head = 24};
  expect_refused(options_, "g1.memory[0] has an order and strides");
  options_.g1.memory[0].order.reset();
  options_.g1.memory[0].strides->block = 200;
  expect_refused(options_, "g1.memory[0]: the block stride is 200, but 384 bytes lie between two neighbours");
  options_.g1.memory[0].strides->block = 384;
  options_.g1.memory[0].strides->layer = 4096;
  expect_refused(options_, "g1.memory[0]: layers in regions of their own have no stride; it is 4096");
}

TEST_F(EngineMemoryErrors, Alignment) {
  options_.model.alignment = 64;
  options_.model.num_layers = options_.scales[0].num_layers = 1;
  std::vector<std::byte> tensor(4096);
  std::byte* const odd = tensor.data() + 64 - reinterpret_cast<std::uintptr_t>(tensor.data()) % 64 + 8;
  for (PlaneMemory& plane : options_.g1.memory) plane.regions.resize(1);
  region(0, 0).address = odd;
  expect_refused(options_, "which is not a multiple of the alignment 64");
  region(0, 0).address = odd - 8;
  EXPECT_TRUE(KvBlockManager::create(options_));
}

TEST_F(EngineMemoryErrors, Overlap) {
  region(0, 2).address = region(0, 1).address;
  expect_refused(options_,
                 "g1.memory: two regions of the set overlap in one storage (region 1 of plane 0 and ");
  options_.g1.memory = engine_.memory();
  region(1, 0).address = region(0, 0).address + 100;
  expect_refused(options_, "(region 0 of plane 0 and region 0 of plane 1: ");
  // G2 from the caller, too; in memory of its own.
  options_.g1.memory = engine_.memory();
  const EngineTensors host(planes_, 12);
  options_.g2->memory = host.memory();
  EXPECT_TRUE(KvBlockManager::create(options_));
  options_.g2->memory[0].regions[1].address = region(0, 1).address;
  options_.g2->memory[0].regions[1].bytes = region(0, 1).bytes;
  options_.g2->block_count = 8;
  for (std::size_t p = 0; p < 2; ++p)
    for (std::size_t l = 0; l < 3; ++l) options_.g2->memory[p].regions[l].bytes = region(p, l).bytes;
  expect_refused(options_, "g1 and g2 share memory");
}

TEST_F(EngineMemoryErrors, OneSourceOfMemory) {
  options_.g1.allocator = std::make_shared<storage::SystemAllocator>();
  expect_refused(options_, "g1 has its memory from 2 of allocator, memory and blocks");
}

TEST_F(EngineMemoryErrors, KindsOfMemory) {
  region(0, 1).kind = StorageKind::kDevice;
  expect_refused(options_, "g1.memory[0].regions[1]: device -1 does not fit device memory");
  region(0, 1).device = 0;
  expect_refused(options_, "g1.memory: the storage of a set is of one kind");
  for (PlaneMemory& plane : options_.g1.memory)
    for (storage::ExternalMemory& one : plane.regions) {
      one.kind = StorageKind::kDevice;
      one.device = 0;
    }
  expect_refused(options_, "does not copy between device memory (g1) and system memory (g2); set KvOptions::",
                 ErrorCode::kUnsupported);
  std::swap(options_.g1.memory, options_.g2->memory);
  options_.g1.block_count = options_.g2->block_count = 8;
  expect_refused(options_, "g2 is in memory that the host cannot read");
}

TEST_F(EngineMemoryErrors, BlockSetsOfAnotherModel) {
  options_.g1.memory.clear();
  options_.g1.blocks = block_set(planes_, engine_.memory());
  ASSERT_TRUE(KvBlockManager::create(options_));
  options_.g1.block_count = 7;
  expect_refused(options_, "g1.blocks has 8 blocks; g1.block_count is 7");
  options_.g1.block_count = 0;
  ASSERT_EQ(KvBlockManager::create(options_).value()->g1().total_blocks(), 8u);
  KvOptions other = options_;
  other.scales.clear();
  expect_refused(other, "g1.blocks has 2 planes; it needs 1");
  other = options_;
  other.model.head_dim = 12;
  other.model.inner_dim = 24;
  expect_refused(other, "plane 0 of g1.blocks has head_dim 24; model has 12");
  other = options_;
  other.scales[0].dtype = layout::Dtype::kF16;
  expect_refused(other, "plane 1 of g1.blocks has dtype f32; scales[0] has f16");
  other = options_;
  other.shard = layout::Shard::tensor_rank(1, 2, 4, {0, 3}).value();
  expect_refused(other, "plane 0 of g1.blocks belongs to rank 0 of 1");
}

}  // namespace
}  // namespace ashlar::tiers
