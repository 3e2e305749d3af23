// ExternalStorage: memory that the caller owns, such as the tensors of a framework.
//
// It neither allocates nor frees; `owner` keeps the memory alive while transfers use it.
//
// Thread safety: thread-safe, as Storage.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

struct ExternalMemory {
  StorageKind kind = StorageKind::kSystem;  // system, pinned or device
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;
  std::int32_t device = Storage::kNoDevice;  // for device memory
  // Released with the last user of the storage. Null: the caller keeps the memory alive itself.
  std::shared_ptr<const void> owner = {};
};

class ExternalStorage final : public Storage {
 public:
  // Errors: kInvalidArgument: no address, no bytes, a kind that is not memory, or a device that does not
  // match the kind.
  static Result<std::shared_ptr<ExternalStorage>> create(ExternalMemory memory);

 private:
  explicit ExternalStorage(ExternalMemory memory) noexcept
      : Storage(memory.kind, memory.address, memory.bytes, memory.device), owner_(std::move(memory.owner)) {}

  std::shared_ptr<const void> owner_;
};

}  // namespace ashlar::storage
