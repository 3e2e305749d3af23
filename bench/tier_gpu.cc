#include "tier_gpu.h"

#include <cuda_runtime.h>

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "tier_setup.h"

namespace ashlar::bench {

int run_gpu_tiers() {
  namespace cuda = backend::cuda;
  if (const auto count = cuda::device_count(); !count) {
    std::printf("no GPU: %s\n", count.error().to_string().c_str());
    return 0;
  }
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  const auto need = [](cudaError_t status) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
    std::exit(1);
  };
  const auto pinned = std::make_shared<storage::PinnedAllocator>(cuda::CudaPageLocker::create().value());
  const auto device = std::make_shared<cuda::DeviceAllocator>();
  const std::shared_ptr<transfer::Executor> executor = cuda::CudaExecutor::create().value();
  void* plain_device = nullptr;
  void* plain_host = nullptr;
  cudaStream_t stream = nullptr;
  need(cudaMalloc(&plain_device, kGib));
  need(cudaHostAlloc(&plain_host, kGib, cudaHostAllocDefault));
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto contiguous = [&](bool to_host) {
    need(cudaMemcpyAsync(to_host ? plain_host : plain_device, to_host ? plain_device : plain_host, kGib,
                         cudaMemcpyDefault, stream));
    need(cudaStreamSynchronize(stream));
  };
  bool met = true;
  for (const std::uint64_t bytes :
       {std::uint64_t{256} << 10, std::uint64_t{1} << 20, std::uint64_t{4} << 20}) {
    const auto blocks = static_cast<std::uint32_t>(kGib / bytes);
    std::printf("G1 on a GPU, %u blocks of %s; the limit is one contiguous copy\n", blocks,
                size_text(bytes).c_str());
    TierSetup setup({.bytes = bytes,
                     .blocks = blocks,
                     .disk = false,
                     .volume = false,
                     .g1 = device,
                     .g2 = pinned,
                     .executor = executor});
    const auto nothing = [] {};
    met &= print_duel(
        "G1 to G2, offload",
        duel_prepared(
            kGib, [&] { setup.clear(1); }, [&] { setup.offload(1); }, nothing, [&] { contiguous(true); }),
        0.95);
    met &= print_duel(
        "G2 to G1, onboard",
        duel_prepared(
            kGib, [&] { setup.clear(0); }, [&] { setup.onboard(); }, nothing, [&] { contiguous(false); }),
        0.95);
  }
  cudaFree(plain_device);
  cudaFreeHost(plain_host);
  cudaStreamDestroy(stream);
  return met ? 0 : 1;
}

}  // namespace ashlar::bench
