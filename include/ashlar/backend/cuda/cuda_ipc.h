// CudaIpc: shares GPU memory with other processes of the machine, for LoopbackTransport.
//
//   auto device = CudaExecutor::create().value();
//   auto transport = LoopbackTransport::create({.devices = CudaIpc::create().value(),
//                                               .device_executor = std::move(device)});
//
// Memory of cudaMalloc() can be shared, as DeviceStorage has it; memory of CUDA's pools and virtual memory
// cannot. Devices are matched by their UUIDs, so processes may number them differently. CUDA does not let a
// process open its own handles: there the memory itself is returned.
//
// The owner must keep its memory while others have it open: CUDA frees it under them.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/transfer/remote_transport.h"

namespace ashlar::backend::cuda {

class CudaIpc final : public transfer::DeviceSharing {
 public:
  // Errors: as device_count().
  static Result<std::shared_ptr<CudaIpc>> create();

  Result<std::vector<std::byte>> share(const storage::Storage& storage) override;
  // `device` is the owner's number. Errors: as DeviceSharing; kUnsupported: this process does not see the
  // device.
  Result<std::shared_ptr<storage::Storage>> open(std::span<const std::byte> handle, std::uint64_t bytes,
                                                 std::int32_t device) override;

 private:
  CudaIpc() = default;
};

}  // namespace ashlar::backend::cuda
