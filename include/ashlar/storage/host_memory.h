// MemoryOptions: how host memory is mapped. PageLocker: registers host memory with a device.
//
// Thread safety: MemoryOptions is a plain value; PageLocker is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ashlar/base/result.h"

namespace ashlar::storage {

struct MemoryOptions {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 4096;  // of the first byte; a power of two
  // Asks for huge pages where the memory is large enough for one. A system without them uses ordinary pages.
  bool huge_pages = true;
  // Puts all pages on one node. Empty: each page lies where it is first touched.
  std::optional<std::uint32_t> numa_node = {};
  // Populates every page now instead of at its first use.
  bool touch_pages = false;

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

// PageLocker: pins host memory for a device, which then copies from and to it directly.
//
// A GPU backend implements it; without a GPU there is none.
//
// Thread safety: thread-safe.
class PageLocker {
 public:
  virtual ~PageLocker() = default;
  // Requires: the memory is not locked yet. Errors: kCapacity, with the numbers, when the system refuses to
  // lock more; kIo otherwise.
  virtual Result<void> lock(std::byte* address, std::uint64_t bytes) = 0;
  // Requires: lock() succeeded for `address`, and no copy uses the memory.
  virtual void unlock(std::byte* address) noexcept = 0;
};

}  // namespace ashlar::storage
