#include "storage/pinned_storage.h"

namespace ashlar::storage {

Result<std::shared_ptr<PinnedStorage>> PinnedStorage::create(const MemoryOptions& options,
                                                             std::shared_ptr<PageLocker> locker) {
  Result<MappedMemory> memory = MappedMemory::create(options);
  if (!memory) return memory.error();
  if (locker != nullptr)
    if (const Result<void> locked = locker->lock(memory->address(), memory->bytes()); !locked)
      return locked.error();
  return std::shared_ptr<PinnedStorage>(new PinnedStorage(*std::move(memory), std::move(locker)));
}

PinnedStorage::~PinnedStorage() {
  if (locker_ != nullptr) locker_->unlock(address());
}

}  // namespace ashlar::storage
