// SharedStorage: host memory in a file without a name, which other processes of the same user can map.
//
// The file can neither grow nor shrink, so a process that maps it never meets a missing page.
//
// Thread safety: as Storage.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/host_memory.h"
#include "ashlar/storage/storage.h"
#include "base/owned_fd.h"
#include "storage/mapped_memory.h"

namespace ashlar::storage {

class SharedStorage final : public Storage {
 public:
  // Pinned where there is a locker. Errors: as SystemStorage::create() and PageLocker::lock(); kCapacity: no
  // descriptor is left.
  static Result<std::shared_ptr<SharedStorage>> create(const MemoryOptions& options,
                                                       std::shared_ptr<PageLocker> locker = nullptr);
  ~SharedStorage() override;

  const SharedMemory* shared() const noexcept override { return &shared_; }

 private:
  SharedStorage(MappedMemory memory, OwnedFd file, const SharedMemory& shared,
                std::shared_ptr<PageLocker> locker) noexcept
      : Storage(locker == nullptr ? StorageKind::kSystem : StorageKind::kPinned, memory.address(),
                memory.bytes()),
        memory_(std::move(memory)),
        file_(std::move(file)),
        shared_(shared),
        locker_(std::move(locker)) {}

  MappedMemory memory_;
  OwnedFd file_;
  SharedMemory shared_;
  std::shared_ptr<PageLocker> locker_;
};

}  // namespace ashlar::storage
