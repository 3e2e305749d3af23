// CudaPageLocker: locks host memory for CUDA devices, which then copy from and to it directly.
//
// Memory is locked for all devices of the process. Pass it to a PinnedAllocator.
//
// Thread safety: thread-safe.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/host_memory.h"

namespace ashlar::backend::cuda {

class CudaPageLocker final : public storage::PageLocker {
 public:
  // Errors: as device_count(); kUnsupported: devices that cannot reach locked memory at the host's own
  // address.
  static Result<std::shared_ptr<CudaPageLocker>> create();

  Result<void> lock(std::byte* address, std::uint64_t bytes) override;
  void unlock(std::byte* address) noexcept override;

 private:
  CudaPageLocker() = default;
};

}  // namespace ashlar::backend::cuda
