#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "c/src/backends.h"

namespace ashlar::c_interface {

Result<DeviceSupport> device_support(std::int32_t device) {
  ASHLAR_TRY(auto cuda, backend::cuda::CudaExecutor::create({.device = device}));
  ASHLAR_TRY(auto memcpy, transfer::MemcpyExecutor::create());
  ASHLAR_TRY(auto files, transfer::FileExecutor::create());
  ASHLAR_TRY(auto locker, backend::cuda::CudaPageLocker::create());
  auto host = std::make_shared<storage::PinnedAllocator>(std::move(locker));
  transfer::TransferEngineOptions options;
  options.executors = {std::move(cuda), std::move(memcpy), std::move(files)};
  options.staging = host;
  ASHLAR_TRY(auto engine, transfer::TransferEngine::create(std::move(options)));
  return DeviceSupport{std::move(engine), std::make_shared<backend::cuda::DeviceAllocator>(device),
                       std::move(host)};
}

}  // namespace ashlar::c_interface
