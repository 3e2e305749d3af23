// DeviceStorage: memory of a GPU; DeviceAllocator: allocates it.
//
// Thread safety: as Storage and Allocator.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/storage/storage.h"

namespace ashlar::backend::cuda {

class DeviceStorage final : public storage::Storage {
 public:
  // The content is undefined until it is written.
  // Errors: kInvalidArgument: no bytes, an alignment that is not a power of two or beyond 2 MiB, no such
  // device; kCapacity with the bytes requested, free and in total; kUnavailable: no driver.
  static Result<std::shared_ptr<DeviceStorage>> create(int device, std::uint64_t bytes,
                                                       std::uint64_t alignment = 256);
  ~DeviceStorage() override;

 private:
  DeviceStorage(void* allocation, std::byte* address, std::uint64_t bytes, int device) noexcept
      : Storage(StorageKind::kDevice, address, bytes, device), allocation_(allocation) {}

  void* allocation_;
};

class DeviceAllocator final : public storage::Allocator {
 public:
  explicit DeviceAllocator(int device = 0) : device_(device) {}
  StorageKind kind() const noexcept override { return StorageKind::kDevice; }
  Result<std::shared_ptr<storage::Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override;

 private:
  int device_;
};

}  // namespace ashlar::backend::cuda
