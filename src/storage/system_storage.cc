#include "storage/system_storage.h"

namespace ashlar::storage {

Result<std::shared_ptr<SystemStorage>> SystemStorage::create(const MemoryOptions& options) {
  return MappedMemory::create(options).transform([](MappedMemory&& memory) {
    return std::shared_ptr<SystemStorage>(new SystemStorage(std::move(memory)));
  });
}

}  // namespace ashlar::storage
