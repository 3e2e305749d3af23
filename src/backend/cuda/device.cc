#include "ashlar/backend/cuda/device.h"

#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {

Result<int> device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cuda_error(status, "no CUDA device can be used");
  if (count == 0) return make_error(ErrorCode::kUnavailable, "no CUDA device can be used: there is none");
  return count;
}

Result<DeviceInfo> describe_device(int device) {
  ASHLAR_TRY(const int count, device_count());
  if (device < 0 || device >= count)
    return make_error(ErrorCode::kInvalidArgument, "device %d does not exist; expected 0 to %d", device,
                      count - 1);
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess)
    return cuda_error(status, "device %d cannot be described", device);
  const DeviceScope scope(device);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (const cudaError_t status = cudaMemGetInfo(&free_bytes, &total_bytes); status != cudaSuccess)
    return cuda_error(status, "the memory of device %d cannot be described", device);
  return DeviceInfo{.name = properties.name,
                    .multiprocessors = static_cast<std::uint32_t>(properties.multiProcessorCount),
                    .total_bytes = total_bytes,
                    .free_bytes = free_bytes};
}

}  // namespace ashlar::backend::cuda
