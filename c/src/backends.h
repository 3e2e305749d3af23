// What the C library has beyond the core where that was built in. Each function is in one of two files of
// backend/: the part itself, or the answer that it is not built in (kUnsupported).
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::c_interface {

struct DeviceSupport {
  std::shared_ptr<transfer::Executor> executor;  // between the device, the host and files
  std::shared_ptr<storage::Allocator> memory;    // of the device
  std::shared_ptr<storage::Allocator> host;      // page-locked
};
// Errors: kUnsupported: no CUDA; kUnavailable: no driver or no such device.
Result<DeviceSupport> device_support(std::int32_t device);

// The kinds "s3" and "redis".
void add_s3_volumes(tiers::VolumeRegistry& kinds);
void add_redis_volumes(tiers::VolumeRegistry& kinds);

}  // namespace ashlar::c_interface
