#include "ashlar/backend/cuda/cuda_page_locker.h"

#include "ashlar/backend/cuda/device.h"
#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {

Result<std::shared_ptr<CudaPageLocker>> CudaPageLocker::create() {
  ASHLAR_TRY(const int count, device_count());
  for (int device = 0; device < count; ++device) {
    int same_address = 0;
    const cudaError_t status =
        cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
    if (status != cudaSuccess)
      return cuda_error(status, "device %d cannot be queried about locked memory", device);
    if (same_address == 0)
      return make_error(ErrorCode::kUnsupported,
                        "device %d does not reach locked memory at the host's address", device);
  }
  return std::shared_ptr<CudaPageLocker>(new CudaPageLocker());
}

Result<void> CudaPageLocker::lock(std::byte* address, std::uint64_t bytes) {
  const cudaError_t status = cudaHostRegister(address, bytes, cudaHostRegisterPortable);
  if (status == cudaSuccess) return {};
  return cuda_error(status, "%llu bytes of host memory cannot be locked",
                    static_cast<unsigned long long>(bytes));
}

void CudaPageLocker::unlock(std::byte* address) noexcept {
  if (cudaHostUnregister(address) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace ashlar::backend::cuda
