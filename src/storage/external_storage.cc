#include "ashlar/storage/external_storage.h"

namespace ashlar::storage {

Result<std::shared_ptr<ExternalStorage>> ExternalStorage::create(ExternalMemory memory) {
  if (memory.address == nullptr || memory.bytes == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "external memory needs an address and a size; it has %p and %llu",
                      static_cast<void*>(memory.address), static_cast<unsigned long long>(memory.bytes));
  const bool on_device = memory.kind == StorageKind::kDevice;
  if (!on_device && memory.kind != StorageKind::kSystem && memory.kind != StorageKind::kPinned)
    return make_error(ErrorCode::kInvalidArgument,
                      "external storage is system, pinned or device memory, not %s",
                      std::string(to_string(memory.kind)).c_str());
  if (on_device != (memory.device >= 0))
    return make_error(ErrorCode::kInvalidArgument, "device %d does not fit %s memory", memory.device,
                      std::string(to_string(memory.kind)).c_str());
  return std::shared_ptr<ExternalStorage>(new ExternalStorage(std::move(memory)));
}

}  // namespace ashlar::storage
