#include "ashlar/storage/remote_storage.h"

#include <cinttypes>
#include <cstdio>

#include "base/checked_math.h"
#include "base/wide.h"

namespace ashlar::storage {

std::string_view to_string(AccessMode mode) noexcept {
  return mode == AccessMode::kReadWrite ? "reading and writing" : "reading";
}

Result<std::shared_ptr<RemoteStorage>> RemoteStorage::create(RemoteMemory memory,
                                                             std::shared_ptr<const RemoteAccess> access) {
  std::uint64_t end = 0;
  if (memory.address == 0 || memory.bytes == 0 || !add(memory.address, memory.bytes, &end))
    return make_error(ErrorCode::kInvalidArgument,
                      "remote memory has an address and a size within 64 bits; it has %llx and %llu",
                      wide(memory.address), wide(memory.bytes));
  if (memory.agent == 0 || memory.incarnation == 0 || access == nullptr)
    return make_error(ErrorCode::kInvalidArgument,
                      "remote memory at %llx names no owner, or no way to reach it", wide(memory.address));
  const bool on_device = memory.kind == StorageKind::kDevice;
  if (!on_device && memory.kind != StorageKind::kSystem && memory.kind != StorageKind::kPinned)
    return make_error(ErrorCode::kInvalidArgument,
                      "remote storage is system, pinned or device memory, not %s",
                      std::string(to_string(memory.kind)).c_str());
  if (on_device != (memory.device >= 0))
    return make_error(ErrorCode::kInvalidArgument, "device %d does not fit %s memory", memory.device,
                      std::string(to_string(memory.kind)).c_str());
  if (memory.key.size() > kMaxKeyBytes)
    return make_error(ErrorCode::kInvalidArgument, "a key of %zu bytes; it has at most %zu",
                      memory.key.size(), kMaxKeyBytes);
  if (memory.mode != AccessMode::kRead && memory.mode != AccessMode::kReadWrite)
    return make_error(ErrorCode::kInvalidArgument, "remote memory has mode %u; it is 1 (read) or 3 (both)",
                      static_cast<unsigned>(memory.mode));
  return std::shared_ptr<RemoteStorage>(new RemoteStorage(std::move(memory), std::move(access)));
}

std::string RemoteStorage::describe() const {
  char owner[64];
  std::snprintf(owner, sizeof owner, "%016" PRIx64 "/%016" PRIx64, memory_.agent, memory_.incarnation);
  return Storage::describe() + ", " + std::string(to_string(memory_.kind)) + " memory of agent " + owner +
         ", for " + std::string(to_string(memory_.mode));
}

}  // namespace ashlar::storage
