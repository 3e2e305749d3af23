// Reads and writes whole byte ranges of a file through the page cache, subject to its injected faults.
//
// Thread safety: thread-safe, as long as no thread writes bytes that another reads or writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

// Errors: kCapacity: no space; kIo. Some bytes may have been written by then.
Result<void> write_all(const FileAccess& file, const std::string& path, std::uint64_t offset,
                       std::span<const std::span<const std::byte>> parts);
// Errors: kCorruption: the file ends early; kIo.
Result<void> read_all(const FileAccess& file, const std::string& path, std::uint64_t offset,
                      std::span<const std::span<std::byte>> parts);

// kNotFound: `path` cannot be created because its folder does not exist.
Error no_folder(const std::string& path);

}  // namespace ashlar::storage
