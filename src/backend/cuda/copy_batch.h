// CopyBatch: copies for the copy engines, all in one call where CUDA can; Issued: the work put on a stream.
//
// Thread safety: thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ashlar::backend::cuda {

struct Issued {
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;
  std::uint64_t staged = 0;       // bytes that went through a staging buffer
  cudaStream_t stream = nullptr;  // on which it ends
};

struct CopyBatch {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;

  void add(std::byte* target, const std::byte* source, std::uint64_t count);
  void clear() noexcept;
  cudaError_t issue(cudaStream_t stream);
};

}  // namespace ashlar::backend::cuda
