// Allocator: where the storage of one kind comes from.
//
// Thread safety: thread-safe.
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
  // Errors: kInvalidArgument; kCapacity with what was wanted and what there is; those of the storage.
  virtual Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) = 0;
};

// Bytes and alignment of the options are overruled by each call.
class SystemAllocator final : public Allocator {
 public:
  explicit SystemAllocator(const MemoryOptions& options = {}) : options_(options) {}
  StorageKind kind() const noexcept override { return StorageKind::kSystem; }
  Result<std::shared_ptr<Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override;

 private:
  MemoryOptions options_;
};

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

// One file per call: the path of the options, a dot and a number that no file has yet.
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
