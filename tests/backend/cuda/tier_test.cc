// KvBlockManager with G1 in the memory of a GPU: blocks go down to page-locked memory and a file, and come
// back.
#include <cuda_runtime.h>

#include <functional>
#include <future>
#include <vector>

#include "ashlar/backend/cuda/event_fences.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "backend/cuda/gpu_fixture.h"
#include "support/scratch_folder.h"

namespace ashlar::backend::cuda {
namespace {

using events::G1;
using tiers::KvBlockManager;
using tokens::SequenceHash;

class GpuTiers : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    transfer::TransferEngineOptions engine;
    engine.executors = {CudaExecutor::create().value(), transfer::MemcpyExecutor::create().value(),
                        transfer::FileExecutor::create().value()};
    auto locker = CudaPageLocker::create().value();
    tiers::KvOptions options{
        .model = {.block_count = 1,
                  .num_layers = 4,
                  .outer_dim = 2,
                  .block_size = 16,
                  .num_heads = 2,
                  .head_dim = 64,
                  .inner_dim = 128,
                  .dtype = layout::Dtype::kBF16,
                  .alignment = 4096},
        .block_size = 16,
        .keys = tokens::NamespaceFingerprint::from_bits(1, 2),
        .g1 = {.block_count = 16,
               .order = layout::order::kBlockSecondNhd,
               .allocator = std::make_shared<DeviceAllocator>()},
        .g2 = tiers::TierShape{.block_count = 24,
                               .allocator = std::make_shared<storage::PinnedAllocator>(locker)},
        .g3 = tiers::DiskShape{.block_count = 64, .paths = {folder_.file("g3")}},
        .read_back_after_write = true,
        .executor =
            std::shared_ptr<transfer::Executor>(transfer::TransferEngine::create(std::move(engine)).value())};
    auto made = KvBlockManager::create(std::move(options));
    ASSERT_TRUE(made) << made.error();
    kv_ = *std::move(made);
  }

  static std::vector<SequenceHash> sequence(std::uint64_t number, std::size_t blocks) {
    std::vector<SequenceHash> hashes = {SequenceHash::root(number * 1000 + 1)};
    while (hashes.size() < blocks)
      hashes.push_back(hashes.back().child(number * 1000 + 1 + hashes.size()).value());
    return hashes;
  }
  static std::byte byte_of(const SequenceHash& hash, std::uint64_t i) {
    return static_cast<std::byte>(hash.chain() * 131 + i * 7 + (i >> 8));
  }
  // All of G1 on the host, changed or looked at, and put back.
  void with_bytes(const std::function<void(std::vector<std::byte>&)>& fn, bool put) {
    const transfer::BlockSet& set = *kv_->g1_blocks();
    std::vector<std::byte> bytes(set.planes()[0].layout.region_bytes());
    std::byte* const device = set.address(0, {0, 0});
    ASSERT_EQ(cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDefault), cudaSuccess);
    fn(bytes);
    if (!put) return;
    ASSERT_EQ(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
  }
  template <class F>
  void each_byte(std::vector<std::byte>& bytes, std::uint32_t slot, F&& fn) {
    const layout::Layout& layout = kv_->g1_blocks()->planes()[0].layout;
    std::uint64_t i = 0;
    for (std::uint32_t l = 0; l < 4; ++l)
      for (std::uint32_t o = 0; o < 2; ++o)
        for (std::uint32_t t = 0; t < 16; ++t)
          for (std::uint32_t h = 0; h < 2; ++h)
            for (std::uint64_t b = 0; b < 128; ++b)
              fn(bytes[layout.place({slot, l, o, t, h}).offset + b], i++);
  }
  void compute(const std::vector<SequenceHash>& hashes, const tiers::RegisterOptions& how = {}) {
    auto fresh = kv_->get_mutable_blocks(hashes.size()).value();
    with_bytes(
        [&](std::vector<std::byte>& bytes) {
          for (std::size_t i = 0; i < hashes.size(); ++i)
            each_byte(bytes, fresh[i].block_id().value(),
                      [&](std::byte& byte, std::uint64_t at) { byte = byte_of(hashes[i], at); });
        },
        true);
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    const auto registered = kv_->register_blocks(std::move(complete), how).value();
  }
  bool right(const tiers::OnboardTable& table, const std::vector<SequenceHash>& hashes) {
    bool good = true;
    with_bytes(
        [&](std::vector<std::byte>& bytes) {
          for (std::size_t i = 0; i < table.size(); ++i)
            each_byte(bytes, table[i].block_id().value(), [&](const std::byte& byte, std::uint64_t at) {
              good &= byte == byte_of(hashes[i], at);
            });
        },
        false);
    return good;
  }
  // The GPU's memory is full of something else.
  void overwrite_free_blocks() {
    auto all = kv_->get_mutable_blocks(kv_->g1().available_blocks()).value();
    with_bytes(
        [&](std::vector<std::byte>& bytes) {
          for (const auto& block : all)
            each_byte(bytes, block.block_id().value(),
                      [](std::byte& byte, std::uint64_t) { byte = std::byte{0x77}; });
        },
        true);
  }

  ScratchFolder folder_;
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_F(GpuTiers, BlocksComeBackFromHostMemoryAndFromTheDisk) {
  const auto hashes = sequence(1, 10);
  compute(hashes);
  kv_->drain();
  for (const bool also_host : {false, true}) {
    if (also_host) kv_->reset(events::kTierId<events::G2>).value();
    overwrite_free_blocks();
    const auto table = kv_->onboard(hashes);
    ASSERT_EQ(table.size(), 10u);
    EXPECT_TRUE(right(table, hashes));
  }
  EXPECT_EQ(kv_->status().g3->onboarded, 10u);
  EXPECT_EQ(kv_->status().g3->damaged, 0u);
}

TEST_F(GpuTiers, LayerByLayer) {
  const auto hashes = sequence(2, 8);
  compute(hashes);
  kv_->drain();
  overwrite_free_blocks();
  const auto handle = kv_->onboard_async(hashes, {.by_layer = true}).value();
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    const auto ids = handle.wait_layer(layer).value();
    ASSERT_EQ(ids.size(), 8u);
    bool good = true;
    with_bytes(
        [&](std::vector<std::byte>& bytes) {
          for (std::size_t i = 0; i < ids.size(); ++i)
            each_byte(bytes, ids[i].value(), [&](const std::byte& byte, std::uint64_t at) {
              if (at / (2 * 16 * 2 * 128) == layer) good &= byte == byte_of(hashes[i], at);
            });
        },
        false);
    EXPECT_TRUE(good) << layer;
  }
  EXPECT_EQ(handle.wait()->size(), 8u);
}

TEST_F(GpuTiers, AnOffloadWaitsForAnEvent) {
  auto fences = EventFences::create().value();
  std::promise<void> opened;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_TRUE(fences->after(event)) << "nothing was recorded yet";
  auto computing = std::make_unique<std::future<void>>(opened.get_future());
  ASSERT_EQ(
      cudaLaunchHostFunc(
          stream, [](void* future) { static_cast<std::future<void>*>(future)->wait(); }, computing.get()),
      cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  const auto hashes = sequence(3, 4);
  compute(hashes, {.after = {fences->after(event).value()}});
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->blocked, 4u);
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
  opened.set_value();
  while (kv_->status().to_g2->arrived < 4) std::this_thread::yield();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
  EXPECT_FALSE(EventFences::create(99));
}

}  // namespace
}  // namespace ashlar::backend::cuda
