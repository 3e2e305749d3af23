// The GPUs of this machine.
//
// Programs that link this leaf start and run without a driver; every call here then reports its absence.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/base/result.h"

namespace ashlar::backend::cuda {

struct DeviceInfo {
  std::string name;
  std::uint32_t multiprocessors = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};

// At least 1. Errors: kUnavailable with CUDA's reason: no driver, one that is too old, no device.
Result<int> device_count();
// Errors: as device_count(); kInvalidArgument: no such device.
Result<DeviceInfo> describe_device(int device);

}  // namespace ashlar::backend::cuda
