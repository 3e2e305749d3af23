// Two ways to divide a job, both with several independent loads per thread in flight before its first store,
// because a load from host memory takes microseconds:
//
//   chunks   a warp takes a run of 4 or 8 vectors per lane inside one piece; one address computation per run.
//   vectors  pieces of fewer than 64 vectors: a warp takes as many consecutive vectors in destination order,
//            and each lane computes its own addresses. So pieces contiguous at the destination are written as
//            full lines.
#include <cuda_runtime.h>

#include <cstring>

#include "backend/cuda/copy_kernel.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::uint32_t kThreads = 512;
constexpr std::uint32_t kLanes = 32;
constexpr std::uint32_t kWarps = kThreads / kLanes;
constexpr std::uint64_t kChunkVectors = 64;  // larger pieces are cut into chunks

// Vectors in flight per lane.
template <class Vector>
constexpr std::uint32_t kDepth = sizeof(Vector) == 16 ? 4 : 8;

std::uint32_t depth_of(std::uint32_t width) noexcept {
  return width == 16 ? 4 : 8;
}

template <class Vector>
__device__ Vector load(std::uint64_t address) {
  return __ldcs(reinterpret_cast<const Vector*>(address));
}

template <class Vector>
__device__ void store(std::uint64_t address, const Vector& value) {
  __stcs(reinterpret_cast<Vector*>(address), value);
}

template <class Vector, class Job>
__device__ void copy_chunks(const Job& job, const Divisor& parts) {
  constexpr std::uint32_t kRun = kDepth<Vector> * kLanes;
  const std::uint32_t lane = threadIdx.x % kLanes;
  const auto vectors = static_cast<std::uint32_t>(job.shape.piece_bytes / sizeof(Vector));
  const std::uint32_t total = job.shape.pieces * parts.divisor;
  for (std::uint32_t unit = blockIdx.x * kWarps + threadIdx.x / kLanes; unit < total;
       unit += gridDim.x * kWarps) {
    const std::uint32_t piece = parts.divide(unit);
    const std::uint32_t first = (unit - piece * parts.divisor) * kRun + lane;
    const PieceAddresses at = locate(job, job.shape.first_piece + piece);
    const std::uint64_t from = at.from + std::uint64_t{first} * sizeof(Vector);
    const std::uint64_t to = at.to + std::uint64_t{first} * sizeof(Vector);
    Vector held[kDepth<Vector>];
    if (first - lane + kRun <= vectors) {
#pragma unroll
      for (std::uint32_t i = 0; i < kDepth<Vector>; ++i)
        held[i] = load<Vector>(from + i * kLanes * sizeof(Vector));
#pragma unroll
      for (std::uint32_t i = 0; i < kDepth<Vector>; ++i)
        store<Vector>(to + i * kLanes * sizeof(Vector), held[i]);
      continue;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kDepth<Vector>; ++i)
      if (first + i * kLanes < vectors) held[i] = load<Vector>(from + i * kLanes * sizeof(Vector));
#pragma unroll
    for (std::uint32_t i = 0; i < kDepth<Vector>; ++i)
      if (first + i * kLanes < vectors) store<Vector>(to + i * kLanes * sizeof(Vector), held[i]);
  }
}

template <class Vector, class Job>
__device__ void copy_vectors(const Job& job, const Divisor& parts) {
  constexpr std::uint32_t kRun = kDepth<Vector> * kLanes;
  const std::uint32_t lane = threadIdx.x % kLanes;
  const std::uint32_t total = job.shape.pieces * parts.divisor;
  const std::uint32_t runs = (total + kRun - 1) / kRun;
  for (std::uint32_t run = blockIdx.x * kWarps + threadIdx.x / kLanes; run < runs;
       run += gridDim.x * kWarps) {
    Vector held[kDepth<Vector>];
    std::uint64_t to[kDepth<Vector>];
#pragma unroll
    for (std::uint32_t i = 0; i < kDepth<Vector>; ++i) {
      const std::uint32_t vector =
          min(run * kRun + i * kLanes + lane, total - 1);  // beyond the end: read and dropped
      const std::uint32_t piece = parts.divide(vector);
      const std::uint64_t inside = (vector - piece * parts.divisor) * sizeof(Vector);
      const PieceAddresses at = locate(job, job.shape.first_piece + piece);
      held[i] = load<Vector>(at.from + inside);
      to[i] = at.to + inside;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kDepth<Vector>; ++i)
      if (run * kRun + i * kLanes + lane < total) store<Vector>(to[i], held[i]);
  }
}

template <class Vector, bool kChunks, std::size_t kWords>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ CopyJob<kWords> job, const __grid_constant__ Divisor parts) {
  if constexpr (kChunks) {
    copy_chunks<Vector>(job, parts);
  } else {
    copy_vectors<Vector>(job, parts);
  }
}

template <class Vector, std::size_t kWords>
void launch_width(const CopyJob<kWords>& job, const Divisor& parts, bool chunks, std::uint32_t grid,
                  cudaStream_t stream) {
  if (chunks) {
    copy_kernel<Vector, true, kWords><<<grid, kThreads, 0, stream>>>(job, parts);
  } else {
    copy_kernel<Vector, false, kWords><<<grid, kThreads, 0, stream>>>(job, parts);
  }
}

template <std::size_t kWords>
void launch_sized(const CopyJob<kWords>& job, const Divisor& parts, bool chunks, std::uint32_t grid,
                  cudaStream_t stream) {
  switch (job.shape.width) {
    case 16:
      return launch_width<uint4>(job, parts, chunks, grid, stream);
    case 8:
      return launch_width<uint2>(job, parts, chunks, grid, stream);
    case 4:
      return launch_width<unsigned int>(job, parts, chunks, grid, stream);
    case 2:
      return launch_width<unsigned short>(job, parts, chunks, grid, stream);
    default:
      return launch_width<unsigned char>(job, parts, chunks, grid, stream);
  }
}

template <class Vector, std::size_t kWords>
cudaError_t load_width() {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaFuncGetAttributes(&attributes, copy_kernel<Vector, true, kWords>);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, copy_kernel<Vector, false, kWords>);
  return status;
}

template <class... Vectors>
cudaError_t load_all() {
  cudaError_t status = cudaSuccess;
  const auto load = [&](cudaError_t (*one)()) {
    if (status == cudaSuccess) status = one();
  };
  (load(load_width<Vectors, kSmallWords>), ...);
  (load(load_width<Vectors, kLargeWords>), ...);
  return status;
}

}  // namespace

cudaError_t load_copy_kernels() {
  return load_all<uint4, uint2, unsigned int, unsigned short, unsigned char>();
}

std::uint32_t units_per_piece(std::uint64_t piece_bytes, std::uint32_t width) noexcept {
  const std::uint64_t vectors = piece_bytes / width;
  if (vectors < kChunkVectors) return static_cast<std::uint32_t>(vectors);
  const std::uint64_t run = std::uint64_t{depth_of(width)} * kLanes;
  return static_cast<std::uint32_t>((vectors + run - 1) / run);
}

cudaError_t launch_copy(const LargeCopyJob& job, std::uint32_t blocks, cudaStream_t stream) {
  if (job.shape.pieces == 0) return cudaSuccess;
  const bool chunks = job.shape.piece_bytes / job.shape.width >= kChunkVectors;
  const Divisor parts(units_per_piece(job.shape.piece_bytes, job.shape.width));
  const std::uint64_t units = std::uint64_t{job.shape.pieces} * parts.divisor;
  const std::uint64_t warp_units = chunks ? 1 : std::uint64_t{depth_of(job.shape.width)} * kLanes;
  const std::uint64_t useful = (units + warp_units * kWarps - 1) / (warp_units * kWarps);
  const auto grid = static_cast<std::uint32_t>(useful < blocks ? useful : blocks);
  if (job.used_words() <= kSmallWords) {
    SmallCopyJob small;
    small.shape = job.shape;
    std::memcpy(small.words, job.words, job.used_words() * sizeof(std::uint64_t));
    launch_sized(small, parts, chunks, grid, stream);
  } else {
    launch_sized(job, parts, chunks, grid, stream);
  }
  return cudaGetLastError();
}

}  // namespace ashlar::backend::cuda
