// G1 of one process, read and written by another over UCX: the suite of transports over device memory, which
// its owner copies through pinned buffers. Skips itself where there is no GPU.
#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "ashlar/backend/ucx/ucx_transport.h"
#include "backend/cuda/device_image.h"
#include "transfer/remote/transport_conformance.h"

namespace ashlar::transfer {

std::vector<TransportCase> transport_cases() {
  return {{.name = "UcxGpu",
           .transport = [](const ExecutorSettings& settings) -> std::shared_ptr<RemoteTransport> {
             if (!backend::cuda::device_count()) return nullptr;
             return backend::ucx::UcxTransport::create(
                        {.inline_bytes = 4096,
                         .strip_bytes = 8192,
                         .window = settings.threads * 4,
                         .connect_limit = std::chrono::minutes(2),
                         .device_executor = backend::cuda::CudaExecutor::create({}).value(),
                         .bounce_memory = std::make_shared<storage::PinnedAllocator>(
                             backend::cuda::CudaPageLocker::create().value()),
                         .limits = settings.limits,
                         .clock = settings.clock})
                 .value();
           },
           .memory = [] { return std::make_unique<backend::cuda::DeviceAllocator>(); },
           .store = store_on_device,
           .load = load_from_device}};
}

namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportTest, ::testing::ValuesIn(transport_cases()),
                         [](const ::testing::TestParamInfo<TransportCase>& test) { return test.param.name; });

}  // namespace
}  // namespace ashlar::transfer

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"remote_peer", ashlar::transfer::play_peer}});
}
