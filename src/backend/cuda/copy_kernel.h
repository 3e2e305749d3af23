// The gather and scatter kernel.
//
// Thread safety: thread-safe, as CUDA is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/copy_job.h"

namespace ashlar::backend::cuda {

// Units of work per piece; pieces of a job times this stays within kMaxJobNumber.
std::uint32_t units_per_piece(std::uint64_t piece_bytes, std::uint32_t width) noexcept;

// Loads every variant of the kernel on the current device. Loading at the first launch would wait for all
// work on the device.
cudaError_t load_copy_kernels();

// Starts the copy of a job with at most `blocks` thread blocks.
cudaError_t launch_copy(const LargeCopyJob& job, std::uint32_t blocks, cudaStream_t stream);

}  // namespace ashlar::backend::cuda
