// CUDA's errors as ours, and the current device of a thread for a scope.
//
// Thread safety: confined; CUDA keeps the current device and the last error per thread.
#pragma once

#include <cuda_runtime_api.h>

#include "ashlar/base/result.h"

namespace ashlar::backend::cuda {

// "what: CUDA's sentence (its name)". kCapacity for missing memory, kUnavailable for a missing driver or
// device, kIo for the rest. Forgets the thread's last error, so that it is not told twice.
Error cuda_error(cudaError_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Sets the device even where it is the current one already: a new thread has a device by default, but no
// context of it, and then CUDA knows nothing of locked memory.
class DeviceScope {
 public:
  explicit DeviceScope(int device) noexcept {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
    status_ = cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaError_t status() const noexcept { return status_; }

 private:
  int before_ = 0;
  cudaError_t status_ = cudaSuccess;
  bool changed_ = false;
};

}  // namespace ashlar::backend::cuda
