// Measures the piece size from which the copy engines beat the kernel.
//
// Thread safety: thread-safe; takes 32 MiB of page-locked and twice that of device memory while it runs.
#pragma once

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::cuda {

// Defaults when nothing can be measured. packed_run is always this one: packed pieces are not much faster
// over the link, but they leave the multiprocessors free and the two directions do not disturb each other.
inline constexpr SwitchPoints kUsualSwitchPoints = {.to_host = std::uint64_t{512} << 10,
                                                    .to_device = std::uint64_t{512} << 10,
                                                    .on_device = std::uint64_t{4} << 20,
                                                    .packed_run = std::uint64_t{128} << 10};

// Errors: those of CUDA. Too little memory for the measurement is not an error: it returns
// kUsualSwitchPoints.
Result<SwitchPoints> measure_switch_points(int device, std::uint32_t blocks, std::uint32_t device_blocks);

}  // namespace ashlar::backend::cuda
