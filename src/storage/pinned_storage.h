// PinnedStorage: host memory that a GPU can access directly.
//
// With a PageLocker the pages are locked for the device; without one, where there is no GPU, they are plain
// pages, so that higher layers work the same.
//
// Thread safety: as Storage.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/host_memory.h"
#include "ashlar/storage/storage.h"
#include "storage/mapped_memory.h"

namespace ashlar::storage {

class PinnedStorage final : public Storage {
 public:
  // Errors: as SystemStorage::create() and PageLocker::lock().
  static Result<std::shared_ptr<PinnedStorage>> create(const MemoryOptions& options,
                                                       std::shared_ptr<PageLocker> locker = nullptr);
  ~PinnedStorage() override;

  bool page_locked() const noexcept { return locker_ != nullptr; }

 private:
  PinnedStorage(MappedMemory memory, std::shared_ptr<PageLocker> locker) noexcept
      : Storage(StorageKind::kPinned, memory.address(), memory.bytes()),
        memory_(std::move(memory)),
        locker_(std::move(locker)) {}

  MappedMemory memory_;
  std::shared_ptr<PageLocker> locker_;
};

}  // namespace ashlar::storage
