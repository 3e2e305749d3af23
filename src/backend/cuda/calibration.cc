// Both ways move the same shuffled pieces; the best of four runs counts. The kernel hardly depends on the
// piece size, so it is timed once per direction, the copy engines from large pieces down until they lose.
#include "backend/cuda/calibration.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "backend/cuda/copy_issuer.h"
#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kSmallest = std::uint64_t{64} << 10;
constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;  // of the kernel
// Over the link the engines always win from twice this size on; inside the device they may never.
constexpr std::uint64_t kLargestOverLink = std::uint64_t{512} << 10;
constexpr std::uint64_t kLargestOnDevice = std::uint64_t{4} << 20;
constexpr int kRuns = 4;
// How much slower the copy engines may be and still be preferred: they leave the multiprocessors free.
constexpr double kPreferEngines = 1.03;

// Resources of the measurement.
class Bench {
 public:
  ~Bench() {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (device_[0] != nullptr) cudaFree(device_[0]);
    if (device_[1] != nullptr) cudaFree(device_[1]);
    if (host_ != nullptr) cudaFreeHost(host_);
  }
  Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  cudaError_t open() {
    cudaError_t status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (status == cudaSuccess) status = cudaEventCreate(&start_);
    if (status == cudaSuccess) status = cudaEventCreate(&end_);
    for (void*& memory : device_)
      if (status == cudaSuccess) status = cudaMalloc(&memory, kBytes);
    if (status == cudaSuccess) status = cudaMallocHost(&host_, kBytes);
    return status;
  }

  std::byte* device(int which) const { return static_cast<std::byte*>(device_[which]); }
  std::byte* host() const { return static_cast<std::byte*>(host_); }

  cudaError_t time_kernel(std::byte* to, const std::byte* from, std::uint32_t blocks, float* best) {
    const auto count = static_cast<std::uint32_t>(kBytes / kPiece);
    auto job = std::make_unique<LargeCopyJob>();
    job->shape.piece_bytes = job->shape.from_block_stride = job->shape.to_block_stride = kPiece;
    job->shape.pieces = job->shape.pairs = count;
    job->shape.patterns = 1;
    job->shape.width = 16;
    job->words[0] = reinterpret_cast<std::uintptr_t>(from);
    job->words[1] = reinterpret_cast<std::uintptr_t>(to);
    for (std::uint32_t i = 0; i < count; ++i) job->words[2 + i] = i | std::uint64_t{shuffled(i, count)} << 32;
    return time([&] { return launch_copy(*job, blocks, stream_); }, best);
  }

  cudaError_t time_engines(std::byte* to, const std::byte* from, std::uint64_t piece, float* best) {
    const auto count = static_cast<std::uint32_t>(kBytes / piece);
    CopyBatch batch;
    for (std::uint32_t i = 0; i < count; ++i)
      batch.add(to + shuffled(i, count) * piece, from + i * piece, piece);
    return time([&] { return batch.issue(stream_); }, best);
  }

 private:
  // Counts are powers of two, so an odd factor visits every place once.
  static std::uint32_t shuffled(std::uint32_t i, std::uint32_t count) { return i * 5 % count; }

  template <class Issue>
  cudaError_t time(Issue&& issue, float* best) {
    *best = std::numeric_limits<float>::max();
    for (int run = 0; run <= kRuns; ++run) {
      float milliseconds = 0;
      cudaError_t status = cudaEventRecord(start_, stream_);
      if (status == cudaSuccess) status = issue();
      if (status == cudaSuccess) status = cudaEventRecord(end_, stream_);
      if (status == cudaSuccess) status = cudaEventSynchronize(end_);
      if (status == cudaSuccess) status = cudaEventElapsedTime(&milliseconds, start_, end_);
      if (status != cudaSuccess) return status;
      if (run > 0) *best = std::min(*best, milliseconds);  // the first warms up
    }
    return cudaSuccess;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* device_[2] = {};
  void* host_ = nullptr;
};

cudaError_t find_switch(Bench& bench, std::byte* to, const std::byte* from, std::uint32_t blocks,
                        std::uint64_t largest, std::uint64_t* found) {
  float kernel = 0;
  cudaError_t status = bench.time_kernel(to, from, blocks, &kernel);
  *found = 2 * largest;
  for (std::uint64_t piece = largest; status == cudaSuccess && piece >= kSmallest; piece /= 2) {
    float engines = 0;
    status = bench.time_engines(to, from, piece, &engines);
    if (static_cast<double>(engines) > static_cast<double>(kernel) * kPreferEngines) break;
    *found = piece;
  }
  return status;
}

}  // namespace

Result<SwitchPoints> measure_switch_points(int device, std::uint32_t blocks, std::uint32_t device_blocks) {
  const DeviceScope scope(device);
  Bench bench;
  SwitchPoints points;
  cudaError_t status = bench.open();
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return kUsualSwitchPoints;
  }
  if (status == cudaSuccess)
    status = find_switch(bench, bench.host(), bench.device(0), std::max(1u, blocks / 4), kLargestOverLink,
                         &points.to_host);
  if (status == cudaSuccess)
    status = find_switch(bench, bench.device(0), bench.host(), blocks, kLargestOverLink, &points.to_device);
  if (status == cudaSuccess)
    status = find_switch(bench, bench.device(1), bench.device(0), device_blocks, kLargestOnDevice,
                         &points.on_device);
  points.packed_run = kUsualSwitchPoints.packed_run;
  if (status != cudaSuccess) return cuda_error(status, "the copies of device %d cannot be measured", device);
  return points;
}

}  // namespace ashlar::backend::cuda
