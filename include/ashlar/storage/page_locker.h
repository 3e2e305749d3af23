// PageLocker: makes host memory known to a device, which can then copy from and to it by itself.
//
// A GPU backend brings one; without a GPU there is none.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ashlar/base/result.h"

namespace ashlar::storage {

class PageLocker {
 public:
  virtual ~PageLocker() = default;
  // Errors: kCapacity with the numbers when the system locks no more; kIo otherwise.
  virtual Result<void> lock(std::byte* address, std::uint64_t bytes) = 0;
  virtual void unlock(std::byte* address) noexcept = 0;
};

}  // namespace ashlar::storage
