// Allocator: creates storage of one kind. SystemAllocator, PinnedAllocator, SharedAllocator and DiskAllocator
// are the library's; a GPU backend adds one for device memory.
//
// Thread safety: thread-safe.
// Complexity:    one mapping, lock or file per call: meant for pools, not for blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/storage/disk_storage.h"
#include "ashlar/storage/host_memory.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual StorageKind kind() const noexcept = 0;
  // `alignment` applies to the first byte and is a power of two. Errors: kInvalidArgument; kCapacity, with
  // the bytes wanted and available; those of the storage.
  virtual Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) = 0;
};

// Pageable host memory. Each call overrides bytes and alignment of the options. Errors: also kUnsupported: a
// NUMA node that the system does not have.
class SystemAllocator final : public Allocator {
 public:
  explicit SystemAllocator(const MemoryOptions& options = {}) : options_(options) {}
  StorageKind kind() const noexcept override { return StorageKind::kSystem; }
  Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override;

 private:
  MemoryOptions options_;
};

// Host memory pinned by `locker`, so that a GPU accesses it directly. Without a locker the pages are
// ordinary, and higher layers work the same.
class PinnedAllocator final : public Allocator {
 public:
  explicit PinnedAllocator(std::shared_ptr<PageLocker> locker = nullptr, const MemoryOptions& options = {})
      : locker_(std::move(locker)), options_(options) {}
  StorageKind kind() const noexcept override { return StorageKind::kPinned; }
  Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override;

 private:
  std::shared_ptr<PageLocker> locker_;
  MemoryOptions options_;
};

// Host memory that other processes of the same user can map, for LoopbackTransport; pinned where there is a
// locker. Huge pages depend on the system's setting for shared memory (transparent_hugepage/shmem_enabled).
class SharedAllocator final : public Allocator {
 public:
  explicit SharedAllocator(const MemoryOptions& options = {}, std::shared_ptr<PageLocker> locker = nullptr)
      : options_(options), locker_(std::move(locker)) {}
  StorageKind kind() const noexcept override {
    return locker_ == nullptr ? StorageKind::kSystem : StorageKind::kPinned;
  }
  // Errors: also kCapacity: no descriptor is left.
  Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override;

 private:
  MemoryOptions options_;
  std::shared_ptr<PageLocker> locker_;
};

// One new file per call, named by the path of the options, a dot and a number.
class DiskAllocator final : public Allocator {
 public:
  explicit DiskAllocator(DiskOptions options) : options_(std::move(options)) {}
  StorageKind kind() const noexcept override { return StorageKind::kDisk; }
  Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override;

 private:
  DiskOptions options_;
  std::atomic<std::uint64_t> next_{0};
};

}  // namespace ashlar::storage
