#include "../devices.h"

namespace ashlar::python {

Result<transfer::DeviceSupport> device_support(std::int32_t device) {
  return make_error(ErrorCode::kUnsupported,
                    "memory of GPU %d: this package was built without CUDA; build it where nvcc is", device);
}

}  // namespace ashlar::python
