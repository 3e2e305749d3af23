#include "c/src/backends.h"

namespace ashlar::c_interface {

Result<transfer::DeviceSupport> device_support(std::int32_t device) {
  return make_error(ErrorCode::kUnsupported,
                    "memory of GPU %d: CUDA is not built in; build the library where nvcc is", device);
}

}  // namespace ashlar::c_interface
