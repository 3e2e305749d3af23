#include "ashlar/backend/cuda/device_support.h"

#include "c/src/backends.h"

namespace ashlar::c_interface {

Result<transfer::DeviceSupport> device_support(std::int32_t device) {
  return backend::cuda::device_support(device);
}

}  // namespace ashlar::c_interface
