// G1 of one process to G1 of another on the same GPU, over CUDA IPC, beside a device copy of the same bytes
// in one process; and the same blocks copied inside one process. Shares are medians of interleaved runs. Exit
// status 1 when a target was missed.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <vector>

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_ipc.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "far_side.h"
#include "transfer_measure.h"

namespace {

using namespace ashlar;
using namespace ashlar::bench;

constexpr std::uint64_t kGpuRegion = std::uint64_t{4} << 30;
constexpr double kGpuTarget = 0.8;
// Copies in flight at once: what one waits for on the host, another hides.
constexpr int kRepeats = 8;
constexpr transfer::QueueLimits kGpuLimits = {.bytes = std::uint64_t{64} << 30};

std::shared_ptr<transfer::RemoteTransport> gpu_transport() {
  return transfer::LoopbackTransport::create(
             {.copies = {.limits = kGpuLimits},
              .devices = backend::cuda::CudaIpc::create().value(),
              .device_executor = backend::cuda::CudaExecutor::create({.limits = kGpuLimits}).value()})
      .value();
}

std::shared_ptr<storage::Storage> gpu_memory() {
  backend::cuda::DeviceAllocator allocator;
  return allocator.allocate(kGpuRegion, 4096).value();
}

double gpu_speed(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return kRepeats * static_cast<double>(kGpuRegion) / spent.count() / 1e9;
}

bool compare(const std::string& what, const std::function<void()>& ours, const std::function<void()>& limit,
             double target) {
  std::vector<double> speeds[2];
  std::vector<double> ratios;
  ours();
  limit();
  for (std::size_t pair = 0; pair < kTransferPairs; ++pair) {
    const bool first = pair % 2 == 0;
    if (first) speeds[0].push_back(gpu_speed(ours));
    speeds[1].push_back(gpu_speed(limit));
    if (!first) speeds[0].push_back(gpu_speed(ours));
    ratios.push_back(speeds[0].back() / speeds[1].back());
  }
  const Spread ratio = spread_of(ratios);
  const bool met = ratio.median >= target;
  std::printf("  %-14s ours %7.1f GB/s   device copy %7.1f GB/s   share %.2f (%.2f..%.2f)  %s\n",
              what.c_str(), spread_of(speeds[0]).median, spread_of(speeds[1]).median, ratio.median, ratio.min,
              ratio.max,
              target == 0 ? ""
              : met       ? "ok"
                          : "MISSED");
  return met;
}

}  // namespace

int main(int argc, char** argv) {
  if (!backend::cuda::device_count()) {
    std::puts("no GPU here; nothing was measured");
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "--own") return own_memory(*gpu_transport(), gpu_memory());
  FarSide far(gpu_transport(), {"--own"}, {.kind = StorageKind::kDevice, .bytes = kGpuRegion, .device = 0});
  const std::shared_ptr<storage::Storage> here = gpu_memory();
  const std::shared_ptr<storage::Storage> there = gpu_memory();
  const std::shared_ptr<transfer::Executor> local =
      backend::cuda::CudaExecutor::create({.limits = kGpuLimits}).value();
  const auto device_copy = [&] {
    for (int k = 0; k < kRepeats; ++k)
      if (cudaMemcpyAsync(there->address(), here->address(), kGpuRegion, cudaMemcpyDeviceToDevice) !=
          cudaSuccess)
        std::abort();
    if (cudaDeviceSynchronize() != cudaSuccess) std::abort();
  };
  std::puts("G1 to G1 of another process, 4 GiB in blocks at random places, planned before");
  bool met = true;
  for (const std::uint64_t bytes :
       {std::uint64_t{64} << 10, std::uint64_t{256} << 10, std::uint64_t{1} << 20, std::uint64_t{4} << 20}) {
    const layout::Layout layout = block_pieces(bytes, static_cast<std::uint32_t>(kGpuRegion / bytes));
    const auto theirs = set_over(layout, far.memory());
    const auto mine = set_over(layout, here);
    const std::vector<std::uint32_t> from = shuffled(layout.config().block_count, 1);
    const std::vector<std::uint32_t> to = shuffled(layout.config().block_count, 2);
    const transfer::TransferPlan get = plan(theirs, from, mine, to).value();
    const transfer::TransferPlan put = plan(mine, from, theirs, to).value();
    const transfer::TransferPlan inside = plan(mine, from, set_over(layout, there), to).value();
    const auto run = [](transfer::Executor& executor, const transfer::TransferPlan& planned) {
      std::vector<transfer::Transfer> running;
      for (int k = 0; k < kRepeats; ++k) running.push_back(executor.submit({.plan = planned}).value());
      for (const transfer::Transfer& one : running)
        if (const auto done = one.wait(); !done) give_up(done.error());
    };
    const double target = bytes >= (std::uint64_t{256} << 10) ? kGpuTarget : 0;
    compare("inside " + size_text(bytes), [&] { run(*local, inside); }, device_copy, 0);
    met &= compare("get " + size_text(bytes), [&] { run(far.executor(), get); }, device_copy, target);
    met &= compare("put " + size_text(bytes), [&] { run(far.executor(), put); }, device_copy, target);
  }
  return met ? 0 : 1;
}
