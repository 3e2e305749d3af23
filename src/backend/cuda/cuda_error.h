// Converts CUDA errors, and sets the current device of a thread for a scope.
//
// Thread safety: confined; CUDA keeps the current device and the last error per thread.
#pragma once

#include <cuda_runtime_api.h>

#include "ashlar/base/result.h"

namespace ashlar::backend::cuda {

// "what: CUDA's sentence (its name)". kCapacity for missing memory, kUnavailable for a missing driver or
// device, kIo for the rest. Clears the thread's last error, so that it is not reported twice.
Error cuda_error(cudaError_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Sets the device even if it is current: a new thread has a default device but no context, and CUDA then does
// not know about page-locked memory.
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
