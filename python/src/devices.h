// What runs copies between a GPU and the host. Built with CUDA or without: one of the files of device/.
#pragma once

#include <cstdint>

#include "ashlar/base/result.h"
#include "ashlar/transfer/transfer_engine.h"

namespace ashlar::python {

// Errors: kUnsupported: this package was built without CUDA; kUnavailable: no driver or no such device.
Result<transfer::DeviceSupport> device_support(std::int32_t device);

}  // namespace ashlar::python
