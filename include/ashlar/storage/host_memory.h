// MemoryOptions: how host memory is mapped.
//
// Thread safety: thread-compatible.
#pragma once

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

}  // namespace ashlar::storage
