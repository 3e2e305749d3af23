// GPU transfers. Every figure stands beside plain copies of the same bytes, interleaved in the same run,
// medians of all runs:
//
//   pieces   pieces of one size, of blocks at random places on both sides: the executor, a pointer-list
//            kernel, cudaMemcpyBatchAsync, a loop of cudaMemcpyAsync, one contiguous copy
//   both     both directions at once
//   beside   slowdown of a compute-bound and a bandwidth-bound kernel while blocks are copied
//   host     processor time per GiB
//   orders   NHD to HND on the way
#include "transfer_gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "ashlar/base/random.h"
#include "ashlar/transfer/copy_plan.h"
#include "cpu_seconds.h"

namespace ashlar::bench {
namespace {

using backend::cuda::CudaExecutor;
using transfer::BlockSet;
using transfer::TransferPlan;
namespace order = layout::order;

constexpr double kGiB = 1024.0 * 1024 * 1024;

void need(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T need(Result<T> result) {
  if (result) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
  std::exit(1);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Settings {
  int runs = 9;
  double gib = 1;
  std::uint32_t blocks = backend::cuda::CudaOptions().copy_blocks;
  std::uint32_t device_blocks = backend::cuda::CudaOptions().device_copy_blocks;
  std::uint64_t packing_bytes = backend::cuda::CudaOptions().packing_bytes;
  std::string only;

  bool wants(std::string_view table) const { return only.empty() || only == table; }
  backend::cuda::CudaOptions options() const {
    return {.copy_blocks = blocks,
            .packing_bytes = packing_bytes,
            .device_copy_blocks = device_blocks,
            .limits = {.bytes = std::uint64_t{8} << 30}};
  }
};

// The executor under test, the allocators, a stream for the plain copies.
struct Machine {
  Machine() : pinned(need(backend::cuda::CudaPageLocker::create())) {
    need(cudaStreamCreateWithFlags(&to_host, cudaStreamNonBlocking), "stream");
    need(cudaStreamCreateWithFlags(&to_device, cudaStreamNonBlocking), "stream");
  }
  ~Machine() {
    cudaStreamDestroy(to_host);
    cudaStreamDestroy(to_device);
  }
  cudaStream_t stream(bool out) const { return out ? to_host : to_device; }

  backend::cuda::DeviceAllocator device;
  storage::PinnedAllocator pinned;
  cudaStream_t to_host = nullptr;
  cudaStream_t to_device = nullptr;
};

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> list(count);
  std::iota(list.begin(), list.end(), 0);
  Random random(seed);
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.next() % i]);
  return list;
}

// Blocks whose layers lie apart on the device and together on the host, so that a piece is a layer of a
// block.
struct Scattered {
  Scattered(Machine& machine, std::uint64_t piece, double gib) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(gib * kGiB);
    const auto layers = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / piece / 64, 4, 32));
    const layout::LayoutConfig config{.block_count = static_cast<std::uint32_t>(bytes / (piece * layers)),
                                      .num_layers = layers,
                                      .outer_dim = 2,
                                      .block_size = 16,
                                      .num_heads = 1,
                                      .head_dim = static_cast<std::uint32_t>(piece / 64),
                                      .inner_dim = static_cast<std::uint32_t>(piece / 64),
                                      .dtype = layout::Dtype::kBF16};
    on_device =
        need(BlockSet::allocate(need(layout::Layout::create(config, order::kBlockFirstNhd)), machine.device));
    on_host = need(
        BlockSet::allocate(need(layout::Layout::create(config, order::kFullyContiguousNhd)), machine.pinned));
    const auto one = shuffled(config.block_count, 1);
    const auto two = shuffled(config.block_count, 2);
    out = std::make_unique<TransferPlan>(need(transfer::plan(on_device, one, on_host, two)));
    in = std::make_unique<TransferPlan>(need(transfer::plan(on_host, two, on_device, one)));
  }
  const TransferPlan& plan(bool to_host) const { return to_host ? *out : *in; }
  std::byte* host() const { return on_host->address(0, {0, 0}); }
  std::byte* device() const { return on_device->address(0, {0, 0}); }

  std::shared_ptr<const BlockSet> on_device;
  std::shared_ptr<const BlockSet> on_host;
  std::unique_ptr<TransferPlan> out;
  std::unique_ptr<TransferPlan> in;
};

void run_ours(CudaExecutor& executor, const TransferPlan& plan) {
  const transfer::Transfer running = need(executor.submit({.plan = plan}));
  need(running.wait());
}

void run_contiguous(const Scattered& data, bool to_host, cudaStream_t stream) {
  const std::uint64_t bytes = data.plan(to_host).bytes();
  need(cudaMemcpyAsync(to_host ? data.host() : data.device(), to_host ? data.device() : data.host(), bytes,
                       cudaMemcpyDefault, stream),
       "contiguous copy");
}

// One thread block per piece, 16 bytes per thread and step.
__global__ void copy_list(void* const* to, const void* const* from, std::uint64_t bytes,
                          std::uint32_t count) {
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const auto* source = static_cast<const uint4*>(from[i]);
    auto* target = static_cast<uint4*>(to[i]);
    for (std::uint64_t at = threadIdx.x; at < bytes / sizeof(uint4); at += blockDim.x)
      target[at] = source[at];
  }
}

// The pieces of a plan as lists of pointers, for the plain copies.
class Pieces {
 public:
  explicit Pieces(const TransferPlan& plan) : bytes_(plan.copies()[0].piece_bytes()) {
    transfer::CopyCursor cursor(plan.copies()[0], bytes_, 0,
                                transfer::CopyCursor::units(plan.copies()[0], bytes_));
    transfer::CopyPiece piece;
    while (cursor.next(&piece)) {
      to_.push_back(plan.to().address(0, piece.to));
      from_.push_back(plan.from().address(0, piece.from));
    }
    Random random(3);  // random places on both sides
    for (std::size_t i = to_.size(); i > 1; --i) {
      const std::size_t other = random.next() % i;
      std::swap(to_[i - 1], to_[other]);
      std::swap(from_[i - 1], from_[other]);
    }
    sizes_.assign(to_.size(), bytes_);
    need(cudaMalloc(&lists_, 2 * to_.size() * sizeof(void*)), "lists");
    need(cudaMemcpy(lists_, to_.data(), to_.size() * sizeof(void*), cudaMemcpyDefault), "lists");
    need(cudaMemcpy(lists_ + to_.size(), from_.data(), to_.size() * sizeof(void*), cudaMemcpyDefault),
         "lists");
  }
  ~Pieces() { cudaFree(lists_); }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  std::size_t count() const { return to_.size(); }
  void kernel(cudaStream_t stream) {
    copy_list<<<132, 512, 0, stream>>>(lists_, const_cast<const void* const*>(lists_ + to_.size()), bytes_,
                                       static_cast<std::uint32_t>(to_.size()));
    need(cudaGetLastError(), "pointer-list kernel");
  }
  void batch(cudaStream_t stream) {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    need(cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), to_.size(), &attributes, &first, 1,
                              stream),
         "cudaMemcpyBatchAsync");
  }
  void loop(std::size_t count, cudaStream_t stream) {
    for (std::size_t i = 0; i < count; ++i)
      need(cudaMemcpyAsync(to_[i], from_[i], bytes_, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }

 private:
  std::uint64_t bytes_;
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<std::size_t> sizes_;
  void** lists_ = nullptr;
};

std::string size_text(std::uint64_t bytes) {
  return bytes < (1 << 20) ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes >> 20) + " MiB";
}

// True when every target was met.
bool table_pieces(Machine& machine, CudaExecutor& executor, CudaExecutor& direct, const Settings& settings) {
  std::printf("%-5s %-8s %6s %7s | %6s %6s %6s | %-7s %6s %7s | %10s %6s\n", "", "piece", "ours", "direct",
              "kernel", "batch", "loop", "best", "ratio", "direct", "contiguous", "share");
  bool met = true;
  for (const bool to_host : {true, false})
    for (const std::uint64_t piece :
         {4ull << 10, 16ull << 10, 32ull << 10, 64ull << 10, 256ull << 10, 2ull << 20}) {
      const Scattered data(machine, piece, settings.gib);
      const TransferPlan& plan = data.plan(to_host);
      Pieces pieces(plan);
      const cudaStream_t stream = machine.stream(to_host);
      const auto bytes = static_cast<double>(plan.bytes());
      const std::size_t looped = std::min<std::size_t>(pieces.count(), 32768);
      std::vector<double> rates[6];
      for (int run = -1; run < settings.runs; ++run) {
        const auto take = [&](int which, double moved, const std::function<void()>& work) {
          const double rate = moved / 1e9 / seconds(work);
          if (run >= 0) rates[which].push_back(rate);
        };
        const auto on_stream = [&](const std::function<void()>& issue) {
          return [&, issue] {
            issue();
            need(cudaStreamSynchronize(stream), "copy");
          };
        };
        take(0, bytes, [&] { run_ours(executor, plan); });
        take(1, bytes, on_stream([&] { pieces.kernel(stream); }));
        take(2, bytes, on_stream([&] { pieces.batch(stream); }));
        take(3, static_cast<double>(looped * piece), on_stream([&] { pieces.loop(looped, stream); }));
        take(4, bytes, on_stream([&] { run_contiguous(data, to_host, stream); }));
        take(5, bytes, [&] { run_ours(direct, plan); });
      }
      const double ours = median(rates[0]);
      const char* const names[] = {"", "kernel", "batch", "loop"};
      int best = 1;
      for (int i = 2; i < 4; ++i)
        if (median(rates[i]) > median(rates[best])) best = i;
      std::printf("%-5s %-8s %6.1f %7.1f | %6.1f %6.1f %6.1f | %-7s %6.3f %7.3f | %10.1f %6.3f\n",
                  to_host ? "D2H" : "H2D", size_text(piece).c_str(), ours, median(rates[5]), median(rates[1]),
                  median(rates[2]), median(rates[3]), names[best], ours / median(rates[best]),
                  median(rates[5]) / median(rates[best]), median(rates[4]), ours / median(rates[4]));
      met &= ours / median(rates[best]) >= 0.97;
      std::fflush(stdout);
    }
  return met;
}

double both_at_once(CudaExecutor& executor, const TransferPlan& out, const TransferPlan& in) {
  return seconds([&] {
    const transfer::Transfer there = need(executor.submit({.plan = out}));
    const transfer::Transfer back = need(executor.submit({.plan = in}));
    need(there.wait());
    need(back.wait());
  });
}

bool table_both(Machine& machine, CudaExecutor& executor, CudaExecutor& direct, const Settings& settings) {
  std::printf("\nboth directions at once, sum of GB/s\n%-8s %8s %8s %12s %6s %7s\n", "piece", "ours",
              "direct", "contiguous", "ratio", "direct");
  bool met = true;
  for (const std::uint64_t piece : {4ull << 10, 64ull << 10, 2ull << 20}) {
    const Scattered out(machine, piece, settings.gib);
    const Scattered in(machine, piece, settings.gib);
    const double bytes = static_cast<double>(out.plan(true).bytes() + in.plan(false).bytes());
    std::vector<double> rates[3];
    for (int run = -1; run < settings.runs; ++run) {
      const double times[3] = {both_at_once(executor, out.plan(true), in.plan(false)),
                               both_at_once(direct, out.plan(true), in.plan(false)), seconds([&] {
                                 run_contiguous(out, true, machine.to_host);
                                 run_contiguous(in, false, machine.to_device);
                                 need(cudaStreamSynchronize(machine.to_host), "copy");
                                 need(cudaStreamSynchronize(machine.to_device), "copy");
                               })};
      for (int i = 0; i < 3 && run >= 0; ++i) rates[i].push_back(bytes / 1e9 / times[i]);
    }
    std::printf("%-8s %8.1f %8.1f %12.1f %6.3f %7.3f\n", size_text(piece).c_str(), median(rates[0]),
                median(rates[1]), median(rates[2]), median(rates[0]) / median(rates[2]),
                median(rates[1]) / median(rates[2]));
    met &= median(rates[0]) / median(rates[2]) >= 0.9;
    std::fflush(stdout);
  }
  return met;
}

// C = A * B of square matrices, 128 x 128 per thread block, 8 x 8 per thread: bound by arithmetic.
constexpr int kTile = 128;
constexpr int kStep = 8;
constexpr int kSide = 4096;

__global__ void __launch_bounds__(256) multiply(const float* a, const float* b, float* c) {
  __shared__ float left[kStep][kTile];
  __shared__ float right[kStep][kTile];
  const int row = threadIdx.x / 16 * 8;
  const int column = threadIdx.x % 16 * 8;
  float sum[8][8] = {};
  for (int k = 0; k < kSide; k += kStep) {
    for (int i = threadIdx.x; i < kStep * kTile; i += 256) {
      left[i % kStep][i / kStep] = a[(blockIdx.y * kTile + i / kStep) * kSide + k + i % kStep];
      right[i / kTile][i % kTile] = b[(k + i / kTile) * kSide + blockIdx.x * kTile + i % kTile];
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kStep; ++step)
#pragma unroll
      for (int y = 0; y < 8; ++y)
#pragma unroll
        for (int x = 0; x < 8; ++x) sum[y][x] += left[step][row + y] * right[step][column + x];
    __syncthreads();
  }
  for (int y = 0; y < 8; ++y)
    for (int x = 0; x < 8; ++x)
      c[(blockIdx.y * kTile + row + y) * kSide + blockIdx.x * kTile + column + x] = sum[y][x];
}

// Bound by the bandwidth of the device's memory.
__global__ void scale_add(const float4* a, const float4* b, float4* c, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const float4 x = a[i];
    const float4 y = b[i];
    c[i] = {x.x + 3 * y.x, x.y + 3 * y.y, x.z + 3 * y.z, x.w + 3 * y.w};
  }
}

// Milliseconds of some launches of a kernel, on a stream of its own.
class Compute {
 public:
  explicit Compute(bool bandwidth) : bandwidth_(bandwidth) {
    bytes_ = bandwidth ? std::size_t{512} << 20 : sizeof(float) * kSide * kSide;
    for (float*& matrix : memory_) {
      need(cudaMalloc(&matrix, bytes_), "matrix");
      need(cudaMemset(matrix, 0, bytes_), "matrix");
    }
    need(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    need(cudaEventCreate(&start_), "event");
    need(cudaEventCreate(&end_), "event");
  }
  ~Compute() {
    for (float* matrix : memory_) cudaFree(matrix);
    cudaStreamDestroy(stream_);
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;

  double run() {
    need(cudaEventRecord(start_, stream_), "event");
    for (int i = 0; i < (bandwidth_ ? 100 : 8); ++i) {
      if (bandwidth_) {
        scale_add<<<132 * 8, 256, 0, stream_>>>(
            reinterpret_cast<float4*>(memory_[0]), reinterpret_cast<float4*>(memory_[1]),
            reinterpret_cast<float4*>(memory_[2]), bytes_ / sizeof(float4));
      } else {
        multiply<<<dim3(kSide / kTile, kSide / kTile), 256, 0, stream_>>>(memory_[0], memory_[1], memory_[2]);
      }
    }
    need(cudaEventRecord(end_, stream_), "event");
    need(cudaEventSynchronize(end_), "kernel");
    float milliseconds = 0;
    need(cudaEventElapsedTime(&milliseconds, start_, end_), "event");
    return static_cast<double>(milliseconds);
  }

 private:
  bool bandwidth_;
  std::size_t bytes_ = 0;
  float* memory_[3] = {};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Copies without a pause on a thread until told to stop; returns bytes.
std::uint64_t copy_until(CudaExecutor& executor, const TransferPlan& plan, const std::atomic<bool>& stop) {
  std::uint64_t bytes = 0;
  transfer::Transfer before = need(executor.submit({.plan = plan}));
  while (!stop) {
    transfer::Transfer next = need(executor.submit({.plan = plan}));
    need(before.wait());
    bytes += plan.bytes();
    before = next;
  }
  need(before.wait());
  return bytes + plan.bytes();
}

bool table_beside(Machine& machine, const Settings& settings) {
  std::printf("\nbeside kernels that compute: slowdown of the kernel, and GB/s of the copy meanwhile\n");
  std::printf("%-10s %-5s %-22s %9s %9s %9s %8s\n", "kernel", "", "copy", "alone ms", "beside ms", "slowdown",
              "GB/s");
  using backend::cuda::SwitchPoints;
  constexpr std::uint64_t kFar = std::uint64_t{1} << 40;
  struct Way {
    const char* name;
    std::uint64_t piece;
    SwitchPoints points;
  };
  bool met = true;
  constexpr Way kWays[] = {{"kernel, 32 KiB pieces", 32 << 10, {kFar, kFar, kFar, kFar}},
                           {"packed, 32 KiB pieces", 32 << 10, {kFar, kFar, kFar, 1}},
                           {"engines, 2 MiB pieces", 2 << 20, {1, 1, 1, kFar}}};
  for (const bool bandwidth : {false, true}) {
    Compute compute(bandwidth);
    for (const bool to_host : {true, false})
      for (const Way& way : kWays) {
        backend::cuda::CudaOptions options = settings.options();
        options.switch_points = way.points;
        const auto executor = need(CudaExecutor::create(options));
        const Scattered data(machine, way.piece, settings.gib / 4);
        std::vector<double> alone;
        std::vector<double> beside;
        std::vector<double> rates;
        for (int run = -1; run < settings.runs; ++run) {
          const double one = compute.run();
          std::atomic<bool> stop{false};
          std::uint64_t bytes = 0;
          double span = 0;
          double two = 0;
          std::thread copier(
              [&] { span = seconds([&] { bytes = copy_until(*executor, data.plan(to_host), stop); }); });
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          two = compute.run();
          stop = true;
          copier.join();
          if (run < 0) continue;
          alone.push_back(one);
          beside.push_back(two);
          rates.push_back(static_cast<double>(bytes) / 1e9 / span);
        }
        const double slowdown = median(beside) / median(alone);
        const bool has_target = !bandwidth && way.points.packed_run == 1;
        const bool reached = median(rates) >= 45 && slowdown <= 1.01;
        std::printf("%-10s %-5s %-22s %9.2f %9.2f %9.3f %8.1f%s\n", bandwidth ? "bandwidth" : "multiply",
                    to_host ? "D2H" : "H2D", way.name, median(alone), median(beside), slowdown, median(rates),
                    !has_target ? "" : (reached ? "  ok" : "  MISSED"));
        std::fflush(stdout);
        met &= reached || !has_target;
      }
  }
  return met;
}

void table_host(Machine& machine, CudaExecutor& executor, const Settings& settings) {
  std::printf("\nprocessor time of the whole process per GiB, and one small transfer alone\n");
  std::printf("%-5s %-8s %14s %22s\n", "", "piece", "ms per GiB", "one block, microseconds");
  for (const bool to_host : {true, false})
    for (const std::uint64_t piece : {4ull << 10, 64ull << 10, 2ull << 20}) {
      const Scattered data(machine, piece, settings.gib);
      const TransferPlan& plan = data.plan(to_host);
      run_ours(executor, plan);
      const double before = cpu_seconds();
      for (int run = 0; run < settings.runs; ++run) run_ours(executor, plan);
      const double used = cpu_seconds() - before;
      const std::vector<std::uint32_t> block = {0};
      const TransferPlan one = to_host ? need(transfer::plan(data.on_device, block, data.on_host, block))
                                       : need(transfer::plan(data.on_host, block, data.on_device, block));
      std::vector<double> times;
      for (int run = 0; run < 200; ++run) times.push_back(seconds([&] { run_ours(executor, one); }));
      std::printf("%-5s %-8s %14.3f %22.1f\n", to_host ? "D2H" : "H2D", size_text(piece).c_str(),
                  1e3 * used / (settings.runs * static_cast<double>(plan.bytes()) / kGiB),
                  1e6 * median(times));
      std::fflush(stdout);
    }
}

void table_orders(Machine& machine, CudaExecutor& executor, const Settings& settings) {
  std::printf("\nNHD on the device, HND on the host: 16 tokens, 8 heads of 256 bytes, 32 layers\n");
  std::printf("%-5s %8s %12s %6s\n", "", "ours", "contiguous", "share");
  layout::LayoutConfig config{
      .num_layers = 32, .outer_dim = 2, .block_size = 16, .num_heads = 8, .head_dim = 128, .inner_dim = 1024};
  config.block_count =
      static_cast<std::uint32_t>(settings.gib * kGiB / static_cast<double>(config.block_bytes()));
  const layout::Layout nhd = need(layout::Layout::create(config, order::kBlockFirstNhd));
  const layout::Layout hnd = need(layout::Layout::create(config, order::kFullyContiguousHnd));
  const auto blocks = shuffled(config.block_count, 5);
  for (const std::string_view way : {"D2H", "H2D", "D2D"}) {
    storage::Allocator& source =
        way == "H2D" ? static_cast<storage::Allocator&>(machine.pinned) : machine.device;
    storage::Allocator& target =
        way == "D2H" ? static_cast<storage::Allocator&>(machine.pinned) : machine.device;
    // Whole blocks of HND on the host, layers of NHD on the device.
    const auto from = need(BlockSet::allocate(way == "H2D" ? hnd : nhd, source));
    const auto to = need(BlockSet::allocate(way == "H2D" ? nhd : hnd, target));
    const TransferPlan plan = need(transfer::plan(from, blocks, to, shuffled(config.block_count, 6)));
    std::vector<double> ours;
    std::vector<double> plain;
    for (int run = -1; run < settings.runs; ++run) {
      const double one = seconds([&] { run_ours(executor, plan); });
      const double two = seconds([&] {
        need(cudaMemcpyAsync(to->address(0, {0, 0}), from->address(0, {0, 0}), plan.bytes(),
                             cudaMemcpyDefault, machine.to_host),
             "copy");
        need(cudaStreamSynchronize(machine.to_host), "copy");
      });
      if (run < 0) continue;
      ours.push_back(static_cast<double>(plan.bytes()) / 1e9 / one);
      plain.push_back(static_cast<double>(plan.bytes()) / 1e9 / two);
    }
    std::printf("%-5s %8.1f %12.1f %6.3f\n", std::string(way).c_str(), median(ours), median(plain),
                median(ours) / median(plain));
    std::fflush(stdout);
  }
}

}  // namespace

int run_gpu_transfers(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--runs=")) {
      settings.runs = std::max(1, std::atoi(argv[i] + 7));
    } else if (argument.starts_with("--gib=")) {
      settings.gib = std::max(0.25, std::atof(argv[i] + 6));
    } else if (argument.starts_with("--blocks=")) {
      settings.blocks = static_cast<std::uint32_t>(std::atoi(argv[i] + 9));
    } else if (argument.starts_with("--device-blocks=")) {
      settings.device_blocks = static_cast<std::uint32_t>(std::atoi(argv[i] + 16));
    } else if (argument.starts_with("--packing=")) {
      settings.packing_bytes = std::uint64_t{static_cast<std::uint32_t>(std::atoi(argv[i] + 10))} << 20;
    } else if (argument.starts_with("--only=")) {
      settings.only = argument.substr(7);
    } else {
      std::fprintf(stderr,
                   "'%s' is no option of the GPU part; it has --runs=N --gib=X --blocks=N --device-blocks=N "
                   "--packing=MiB --only=pieces|both|orders|host|beside\n",
                   argv[i]);
      return 2;
    }
  }
  const Result<backend::cuda::DeviceInfo> info = backend::cuda::describe_device(0);
  if (!info) {
    std::fprintf(stderr, "%s\n", info.error().message().c_str());
    return 2;
  }
  Machine machine;
  bool met = true;
  {
    const auto start = std::chrono::steady_clock::now();
    const auto executor = need(CudaExecutor::create(settings.options()));
    const double creation = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const backend::cuda::SwitchPoints& points = executor->switch_points();
    std::printf(
        "%s, %d runs of %.2f GiB, medians, GB/s; copy engines from %llu KiB (D2H), %llu KiB (H2D), %llu KiB "
        "(D2D), packed from runs of %llu KiB, measured with the executor's creation in %.0f ms\n\n",
        info->name.c_str(), settings.runs, settings.gib,
        static_cast<unsigned long long>(points.to_host >> 10),
        static_cast<unsigned long long>(points.to_device >> 10),
        static_cast<unsigned long long>(points.on_device >> 10),
        static_cast<unsigned long long>(points.packed_run >> 10), 1e3 * creation);
    // The same without packing, as where the pieces lie apart on the host too.
    backend::cuda::CudaOptions unpacked = settings.options();
    unpacked.packing_bytes = 0;
    unpacked.switch_points = points;
    const auto direct = need(CudaExecutor::create(unpacked));
    if (settings.wants("pieces")) met &= table_pieces(machine, *executor, *direct, settings);
    if (settings.wants("both")) met &= table_both(machine, *executor, *direct, settings);
    if (settings.wants("orders")) table_orders(machine, *executor, settings);
    if (settings.wants("host")) table_host(machine, *executor, settings);
  }
  // This table makes executors of its own.
  if (settings.wants("beside")) met &= table_beside(machine, settings);
  std::printf(
      "\ntargets, 0.97 of the best probe, 0.9 of both at once, 45 GB/s packed beside a multiplication that "
      "takes at most 1 %% longer: %s\n",
      met ? "met" : "MISSED");
  return met ? 0 : 1;
}

}  // namespace ashlar::bench
