// device_support(): executors and allocators for tiers over a GPU, with their usual settings.
//
// Thread safety: a free function, thread-safe.
#pragma once

#include <cstdint>

#include "ashlar/base/result.h"
#include "ashlar/transfer/transfer_engine.h"

namespace ashlar::backend::cuda {

// Errors: kUnavailable: no driver, or no such device.
Result<transfer::DeviceSupport> device_support(std::int32_t device);

}  // namespace ashlar::backend::cuda
