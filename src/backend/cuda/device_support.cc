#include "ashlar/backend/cuda/device_support.h"

#include <utility>

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "ashlar/transfer/host_executors.h"

namespace ashlar::backend::cuda {

Result<transfer::DeviceSupport> device_support(std::int32_t device) {
  ASHLAR_TRY(auto cuda, CudaExecutor::create({.device = device}));
  ASHLAR_TRY(auto memcpy, transfer::MemcpyExecutor::create());
  ASHLAR_TRY(auto files, transfer::FileExecutor::create());
  ASHLAR_TRY(auto locker, CudaPageLocker::create());
  auto host = std::make_shared<storage::PinnedAllocator>(std::move(locker));
  transfer::TransferEngineOptions options;
  options.executors = {std::move(cuda), std::move(memcpy), std::move(files)};
  options.staging = host;
  ASHLAR_TRY(auto engine, transfer::TransferEngine::create(std::move(options)));
  return transfer::DeviceSupport{std::move(engine), std::make_shared<DeviceAllocator>(device),
                                 std::move(host)};
}

}  // namespace ashlar::backend::cuda
