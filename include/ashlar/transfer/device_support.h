// DeviceSupport: what tiers need to keep blocks in the memory of a device.
//
//   ASHLAR_TRY(transfer::DeviceSupport gpu, backend::cuda::device_support(0));
//   options.executor = gpu.executor;  // and its allocators for G1 and G2
//
// Thread safety: a plain struct; what it points to is thread-safe.
#pragma once

#include <memory>

#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::transfer {

struct DeviceSupport {
  std::shared_ptr<Executor> executor;          // between the device, the host and files
  std::shared_ptr<storage::Allocator> memory;  // of the device
  std::shared_ptr<storage::Allocator> host;    // page-locked
};

}  // namespace ashlar::transfer
