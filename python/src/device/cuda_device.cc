#include "../devices.h"
#include "ashlar/backend/cuda/device_support.h"

namespace ashlar::python {

Result<transfer::DeviceSupport> device_support(std::int32_t device) {
  return backend::cuda::device_support(device);
}

}  // namespace ashlar::python
