// Storage: a run of bytes that holds blocks: memory, a file or a block device. IoFaults: fails file
// operations on purpose, for tests.
//
// Memory has an address, files have descriptors; the executor uses whichever fits the kind. Storage is
// shared: a running transfer keeps it alive, so it is held by std::shared_ptr and freed by its last holder.
//
// Thread safety: thread-safe; every property is immutable. Access to the bytes is up to the users of the
//                blocks.
// Invariant:     memory has an address and no file; a file has descriptors and no address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ashlar/base/storage_kind.h"

namespace ashlar::storage {

// The direction of a file operation.
enum class IoDirection : std::uint8_t { kRead, kWrite };

// What a test does to one operation.
struct IoVerdict {
  int error = 0;                              // fails with this errno instead
  std::uint64_t at_most = ~std::uint64_t{0};  // moves no more bytes than this: a short read or write
};

// IoFaults: makes file operations fail, and watches them.
//
// Thread safety: implementations must be thread-safe; executors call from several threads.
class IoFaults {
 public:
  virtual ~IoFaults() = default;
  // Called before an operation.
  virtual IoVerdict judge(IoDirection direction, std::uint64_t offset, std::uint64_t bytes) = 0;
  // Called after a write, with the bytes.
  virtual void written(std::uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) {}
  // Called before a sync; returns an errno to fail with, or 0. synced() is called after one that succeeded.
  virtual int syncing() { return 0; }
  virtual void synced() {}
};

// How to access the bytes of a file.
struct FileAccess {
  int buffered = -1;  // through the page cache: any offset, any length
  int direct = -1;    // bypasses it; -1 where the file system refuses
  // Offsets, lengths and addresses of direct operations are multiples of this.
  std::uint64_t alignment = 4096;
  // Identity of the file: two descriptors of one file have the same numbers.
  std::uint64_t device_id = 0;
  std::uint64_t inode = 0;
  // Null except in tests.
  IoFaults* faults = nullptr;
};

// Host memory that other processes can map: a file without a name, which never changes its size.
struct SharedMemory {
  int descriptor = -1;       // of this process, for as long as the storage lives
  std::uint64_t offset = 0;  // of the first byte in the file
  // Identity of the file, which no other file of the machine has before it restarts.
  std::uint64_t device_id = 0;
  std::uint64_t inode = 0;
};

class Storage {
 public:
  static constexpr std::int32_t kNoDevice = -1;

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  virtual ~Storage() = default;

  StorageKind kind() const noexcept { return kind_; }
  std::uint64_t size() const noexcept { return size_; }
  // The first byte of memory, also of device memory, which only the device may dereference. Null for files.
  std::byte* address() const noexcept { return address_; }
  // The GPU that holds the bytes; kNoDevice for host memory and files.
  std::int32_t device() const noexcept { return device_; }
  bool host_accessible() const noexcept {
    return kind_ == StorageKind::kSystem || kind_ == StorageKind::kPinned;
  }
  // Null unless the bytes are a file.
  virtual const FileAccess* file() const noexcept { return nullptr; }
  // Null unless other processes can map the bytes.
  virtual const SharedMemory* shared() const noexcept { return nullptr; }
  // For messages: "disk, 1048576 bytes, /data/g3".
  virtual std::string describe() const;

 protected:
  Storage(StorageKind kind, std::byte* address, std::uint64_t size, std::int32_t device = kNoDevice) noexcept
      : address_(address), size_(size), device_(device), kind_(kind) {}

 private:
  std::byte* address_;
  std::uint64_t size_;
  std::int32_t device_;
  StorageKind kind_;
};

}  // namespace ashlar::storage
