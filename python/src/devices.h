// What runs copies between a GPU and the host. Built with CUDA or without: one of the files of device/.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::python {

struct DeviceSupport {
  std::shared_ptr<transfer::Executor> executor;  // between the device, the host and files
  std::shared_ptr<storage::Allocator> memory;    // of the device
  std::shared_ptr<storage::Allocator> host;      // page-locked
};

// Errors: kUnsupported: this package was built without CUDA; kUnavailable: no driver or no such device.
Result<DeviceSupport> device_support(std::int32_t device);

}  // namespace ashlar::python
