// Measures from which size of a piece on the copy engines beat the kernel.
//
// Thread safety: thread-safe; takes 32 MiB of page-locked and twice that of device memory while it runs.
#pragma once

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::cuda {

// What is taken where nothing can be measured. The run from which pieces are packed is always this one:
// packed pieces are not much faster over the link, but leave the multiprocessors alone, and each direction
// the other.
inline constexpr SwitchPoints kUsualSwitchPoints = {.to_host = std::uint64_t{512} << 10,
                                                    .to_device = std::uint64_t{512} << 10,
                                                    .on_device = std::uint64_t{4} << 20,
                                                    .packed_run = std::uint64_t{128} << 10};

// Errors: those of CUDA. Memory that is not there for the measurement is no error: then it gives
// kUsualSwitchPoints.
Result<SwitchPoints> measure_switch_points(int device, std::uint32_t blocks, std::uint32_t device_blocks);

}  // namespace ashlar::backend::cuda
