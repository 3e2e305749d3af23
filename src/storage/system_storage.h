// SystemStorage: ordinary host memory.
//
// Thread safety: as Storage.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/storage/host_memory.h"
#include "ashlar/storage/storage.h"
#include "storage/mapped_memory.h"

namespace ashlar::storage {

class SystemStorage final : public Storage {
 public:
  // Errors: kInvalidArgument: the options; kCapacity with the bytes requested and available; kUnsupported: a
  // NUMA node that the system does not have.
  static Result<std::shared_ptr<SystemStorage>> create(const MemoryOptions& options);

 private:
  explicit SystemStorage(MappedMemory memory) noexcept
      : Storage(StorageKind::kSystem, memory.address(), memory.bytes()), memory_(std::move(memory)) {}

  MappedMemory memory_;
};

}  // namespace ashlar::storage
