// One stream waits for the events in submission order, so a fence may pass late, never early.
#include "ashlar/backend/cuda/event_fences.h"

#include <cuda_runtime.h>

#include <utility>

#include "ashlar/backend/cuda/device.h"
#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {

namespace {

void signal(void* given) {
  const std::unique_ptr<block::FenceSignal> owned(static_cast<block::FenceSignal*>(given));
  std::move(*owned).signal();
}

}  // namespace

Result<std::unique_ptr<EventFences>> EventFences::create(int device) {
  ASHLAR_TRY(const int count, device_count());
  if (device < 0 || device >= count)
    return make_error(ErrorCode::kInvalidArgument, "device %d; there are %d", device, count);
  const DeviceScope scope(device);
  cudaError_t status = scope.status();
  cudaStream_t stream = nullptr;
  if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status != cudaSuccess) return cuda_error(status, "a stream for the events of device %d", device);
  return std::unique_ptr<EventFences>(new EventFences(device, stream));
}

EventFences::~EventFences() {
  const DeviceScope scope(device_);
  if (cudaStreamSynchronize(stream_) != cudaSuccess || cudaStreamDestroy(stream_) != cudaSuccess)
    static_cast<void>(cudaGetLastError());
}

Result<block::Fence> EventFences::after(CUevent_st* event) {
  auto [fence, its_signal] = block::Fence::create();
  const DeviceScope scope(device_);
  cudaError_t status = scope.status();
  if (status == cudaSuccess) status = cudaStreamWaitEvent(stream_, event, 0);
  if (status != cudaSuccess) return cuda_error(status, "an event cannot be waited for");
  auto owned = std::make_unique<block::FenceSignal>(std::move(its_signal));
  status = cudaLaunchHostFunc(stream_, signal, owned.get());
  if (status != cudaSuccess) return cuda_error(status, "an event cannot be waited for");
  static_cast<void>(owned.release());
  return fence;
}

}  // namespace ashlar::backend::cuda
