// MappedMemory: a mapping of zeroed host memory with the requested alignment, page size and NUMA node.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/storage/host_memory.h"

namespace ashlar::storage {

class MappedMemory {
 public:
  // Errors: as SystemStorage::create().
  static Result<MappedMemory> create(const MemoryOptions& options);
  // The same over a file, which is at least as long and shows what is written.
  static Result<MappedMemory> share(const MemoryOptions& options, int descriptor);

  MappedMemory(MappedMemory&& other) noexcept
      : mapping_(std::exchange(other.mapping_, nullptr)),
        mapped_(other.mapped_),
        address_(other.address_),
        bytes_(other.bytes_) {}
  MappedMemory& operator=(MappedMemory&&) = delete;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory();

  std::byte* address() const noexcept { return address_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static Result<MappedMemory> map(const MemoryOptions& options, int descriptor);
  MappedMemory(void* mapping, std::uint64_t mapped, std::byte* address, std::uint64_t bytes) noexcept
      : mapping_(mapping), mapped_(mapped), address_(address), bytes_(bytes) {}

  void* mapping_;
  std::uint64_t mapped_;
  std::byte* address_;
  std::uint64_t bytes_;
};

}  // namespace ashlar::storage
