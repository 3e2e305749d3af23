#include "storage/pinned_storage.h"

namespace ashlar::storage {

Result<std::shared_ptr<PinnedStorage>> PinnedStorage::create(const MemoryOptions& options,
                                                             std::shared_ptr<PageLocker> locker) {
  ASHLAR_TRY(MappedMemory memory, MappedMemory::create(options));
  if (locker != nullptr) ASHLAR_RETURN_IF_ERROR(locker->lock(memory.address(), memory.bytes()));
  return std::shared_ptr<PinnedStorage>(new PinnedStorage(std::move(memory), std::move(locker)));
}

PinnedStorage::~PinnedStorage() {
  if (locker_ != nullptr) locker_->unlock(address());
}

}  // namespace ashlar::storage
