#include "ashlar/backend/cuda/device_storage.h"

#include <bit>

#include "ashlar/backend/cuda/device.h"
#include "backend/cuda/cuda_error.h"
#include "base/checked_math.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::uint64_t kGranted = 256;  // alignment of cudaMalloc
constexpr std::uint64_t kMaxAlignment = std::uint64_t{2} << 20;

}  // namespace

Result<std::shared_ptr<DeviceStorage>> DeviceStorage::create(int device, std::uint64_t bytes,
                                                             std::uint64_t alignment) {
  if (bytes == 0) return make_error(ErrorCode::kInvalidArgument, "bytes is 0; storage has at least one");
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment)
    return make_error(ErrorCode::kInvalidArgument, "alignment is %llu; it is a power of two up to %llu",
                      static_cast<unsigned long long>(alignment),
                      static_cast<unsigned long long>(kMaxAlignment));
  ASHLAR_TRY(const DeviceInfo info, describe_device(device));
  const auto no_room = [&] {
    return make_error(ErrorCode::kCapacity, "%llu bytes of device %d are wanted; %llu of %llu are free",
                      static_cast<unsigned long long>(bytes), device,
                      static_cast<unsigned long long>(info.free_bytes),
                      static_cast<unsigned long long>(info.total_bytes));
  };
  std::uint64_t wanted = 0;
  if (!add(bytes, alignment > kGranted ? alignment - kGranted : 0, &wanted)) return no_room();
  const DeviceScope scope(device);
  void* allocation = nullptr;
  const cudaError_t status = cudaMalloc(&allocation, wanted);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return no_room();
  }
  if (status != cudaSuccess)
    return cuda_error(status, "%llu bytes of device %d", static_cast<unsigned long long>(bytes), device);
  const std::uint64_t past = reinterpret_cast<std::uintptr_t>(allocation) % alignment;
  std::byte* address = static_cast<std::byte*>(allocation) + (past == 0 ? 0 : alignment - past);
  return std::shared_ptr<DeviceStorage>(new DeviceStorage(allocation, address, bytes, device));
}

DeviceStorage::~DeviceStorage() {
  const DeviceScope scope(device());
  static_cast<void>(cudaFree(allocation_));
}

Result<std::shared_ptr<storage::Storage>> DeviceAllocator::allocate(std::uint64_t bytes,
                                                                    std::uint64_t alignment) {
  return DeviceStorage::create(device_, bytes, alignment)
      .transform([](std::shared_ptr<DeviceStorage>&& storage) {
        return std::shared_ptr<storage::Storage>(storage);
      });
}

}  // namespace ashlar::backend::cuda
