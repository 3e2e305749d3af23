// Whole runs of bytes from and to a file through the page cache, as the faults of the file allow.
//
// Thread safety: thread-safe, as long as nobody writes what another reads or writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

// Errors: kCapacity: no space; kIo. Some of the bytes may have been written then.
Result<void> write_all(const FileAccess& file, const std::string& path, std::uint64_t offset,
                       std::span<const std::span<const std::byte>> parts);
// Errors: kCorruption: the file ends before; kIo.
Result<void> read_all(const FileAccess& file, const std::string& path, std::uint64_t offset,
                      std::span<const std::span<std::byte>> parts);

}  // namespace ashlar::storage
