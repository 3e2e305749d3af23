// G1 in tensors that an engine allocated on a GPU, one per layer, with planes of scales: they go down to
// page-locked memory and a file, and come back.
#include <cuda_runtime.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "backend/cuda/gpu_fixture.h"
#include "support/engine_tensors.h"
#include "support/scratch_folder.h"

namespace ashlar::backend::cuda {
namespace {

using events::G1;
using tokens::SequenceHash;

constexpr std::uint32_t kGpuBlocks = 16;

// The tensors of `host`, on the GPU.
class GpuTensors {
 public:
  explicit GpuTensors(EngineTensors& host) : host_(host) {
    for (std::size_t p = 0; p < host_.planes(); ++p)
      for (std::size_t i = 0; i < host_.tensor_count(p); ++i) {
        void* tensor = nullptr;
        EXPECT_EQ(cudaMalloc(&tensor, host_.tensor(p, i).size()), cudaSuccess);
        tensors_.push_back({p, i, std::shared_ptr<void>(tensor, [](void* gone) { cudaFree(gone); })});
      }
    put();
  }
  std::vector<tiers::PlaneMemory> memory() {
    return host_.memory([&](std::size_t plane, std::size_t i) {
      for (const Tensor& tensor : tensors_)
        if (tensor.plane == plane && tensor.number == i)
          return storage::ExternalMemory{.kind = StorageKind::kDevice,
                                         .address = static_cast<std::byte*>(tensor.bytes.get()),
                                         .bytes = host_.tensor(plane, i).size(),
                                         .device = 0,
                                         .owner = tensor.bytes};
      return storage::ExternalMemory{};
    });
  }
  void put() {
    for (const Tensor& tensor : tensors_) {
      const std::vector<std::byte>& from = host_.tensor(tensor.plane, tensor.number);
      EXPECT_EQ(cudaMemcpy(tensor.bytes.get(), from.data(), from.size(), cudaMemcpyDefault), cudaSuccess);
    }
  }
  void get() {
    for (const Tensor& tensor : tensors_) {
      std::vector<std::byte>& to = host_.tensor(tensor.plane, tensor.number);
      EXPECT_EQ(cudaMemcpy(to.data(), tensor.bytes.get(), to.size(), cudaMemcpyDefault), cudaSuccess);
    }
  }

 private:
  struct Tensor {
    std::size_t plane;
    std::size_t number;
    std::shared_ptr<void> bytes;
  };
  EngineTensors& host_;
  std::vector<Tensor> tensors_;
};

class GpuEngineMemory : public GpuTest {
 protected:
  static layout::LayoutConfig plane(layout::Dtype dtype, std::uint32_t heads, std::uint32_t head_dim) {
    return {.num_layers = 4,
            .outer_dim = 2,
            .block_size = 16,
            .num_heads = heads,
            .head_dim = head_dim,
            .inner_dim = heads * head_dim,
            .dtype = dtype};
  }
  tiers::KvOptions options(const std::vector<EnginePlane>& planes, GpuTensors& tensors) const {
    transfer::TransferEngineOptions engine;
    engine.executors = {CudaExecutor::create().value(), transfer::MemcpyExecutor::create().value(),
                        transfer::FileExecutor::create().value()};
    tiers::KvOptions options{.model = planes[0].config,
                             .block_size = 16,
                             .keys = tokens::NamespaceFingerprint::from_bits(1, 2),
                             .g1 = {.block_count = kGpuBlocks, .memory = tensors.memory()},
                             .g2 = tiers::TierShape{.block_count = 24,
                                                    .allocator = std::make_shared<storage::PinnedAllocator>(
                                                        CudaPageLocker::create().value())},
                             .g3 = tiers::DiskShape{.block_count = 64, .paths = {folder_.file("g3")}},
                             .executor = std::shared_ptr<transfer::Executor>(
                                 transfer::TransferEngine::create(std::move(engine)).value())};
    for (std::size_t p = 1; p < planes.size(); ++p) options.scales.push_back(planes[p].config);
    return options;
  }
  static std::vector<SequenceHash> sequence(std::size_t blocks) {
    std::vector<SequenceHash> hashes = {SequenceHash::root(77)};
    while (hashes.size() < blocks) hashes.push_back(hashes.back().child(77 + hashes.size()).value());
    return hashes;
  }

  ScratchFolder folder_;
};

TEST_F(GpuEngineMemory, TensorsPerLayerWithScales) {
  using layout::Dtype;
  const EnginePlane bf16{.config = plane(Dtype::kBF16, 2, 64)};
  EnginePlane roomy = bf16;
  roomy.extra_blocks = 3;
  roomy.gap = 64;
  const EnginePlane fp8{.config = plane(Dtype::kF8E4M3, 2, 64), .axes = TensorAxes::kKvBlockTokenHead};
  const EnginePlane per_head{.config = plane(Dtype::kF32, 2, 1)};
  const EnginePlane for_all{.config = plane(Dtype::kF32, 1, 1), .tensor_per_layer = false};
  for (const std::vector<EnginePlane>& planes :
       std::vector<std::vector<EnginePlane>>{{bf16}, {roomy}, {fp8, per_head, for_all}}) {
    SCOPED_TRACE(planes.size());
    std::filesystem::remove(folder_.file("g3"));
    EngineTensors host(planes, kGpuBlocks);
    GpuTensors gpu(host);
    auto made = tiers::KvBlockManager::create(options(planes, gpu));
    ASSERT_TRUE(made) << made.error();
    std::unique_ptr<tiers::KvBlockManager> kv = *std::move(made);
    const auto hashes = sequence(10);
    {
      auto fresh = kv->get_mutable_blocks(hashes.size()).value();
      block::BlockList<block::CompleteBlock<G1>> complete;
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        host.compute(fresh[i].block_id().value(), hashes[i]);
        complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
      }
      gpu.put();
      const auto stored = kv->register_blocks(std::move(complete)).value();
    }
    ASSERT_TRUE(kv->drain());
    for (int from = 2; from <= 4; ++from) {  // G2, G3, and G3 after a restart
      SCOPED_TRACE(from);
      if (from == 4) {
        kv.reset();
        kv = tiers::KvBlockManager::create(options(planes, gpu)).value();
      }
      ASSERT_TRUE(kv->reset(events::kTierId<G1>));
      if (from == 3) {
        ASSERT_TRUE(kv->reset(events::kTierId<events::G2>));
      }
      host.scribble();
      gpu.put();
      const auto table = kv->onboard(hashes);
      ASSERT_EQ(table.size(), hashes.size());
      gpu.get();
      for (std::size_t i = 0; i < hashes.size(); ++i)
        EXPECT_TRUE(host.has(table[i].block_id().value(), hashes[i])) << "block " << i;
      EXPECT_EQ(kv->status().g3->onboarded, from == 2 ? 0u : 10u);
    }
    EXPECT_TRUE(host.rest_is_untouched());
  }
}

}  // namespace
}  // namespace ashlar::backend::cuda
