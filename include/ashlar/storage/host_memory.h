// MemoryOptions: how host memory is mapped.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ashlar/base/result.h"

namespace ashlar::storage {

struct MemoryOptions {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 4096;  // of the first byte; a power of two
  // Asks for huge pages where the memory is large enough for one; a system without them gives ordinary ones.
  bool huge_pages = true;
  // All pages on one node. Without it each page lies where it is first touched.
  std::optional<std::uint32_t> numa_node = {};
  // Takes every page now instead of at its first use.
  bool touch_pages = false;

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

class PageLocker {
 public:
  virtual ~PageLocker() = default;
  // Errors: kCapacity with the numbers when the system locks no more; kIo otherwise.
  virtual Result<void> lock(std::byte* address, std::uint64_t bytes) = 0;
  virtual void unlock(std::byte* address) noexcept = 0;
};

}  // namespace ashlar::storage
