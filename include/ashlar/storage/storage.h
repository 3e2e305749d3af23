// Storage: a run of bytes that blocks can lie in, whatever it is made of.
//
// Memory has an address, files have descriptors; who copies asks for the one that fits the kind. Storage is
// shared: a running transfer keeps it alive, so it is held by std::shared_ptr and freed by its last holder.
//
// Thread safety: thread-safe; what is said about it never changes. The bytes are the business of those who
// copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ashlar/base/storage_kind.h"

namespace ashlar::storage {

enum class IoDirection : std::uint8_t { kRead, kWrite };

// What becomes of one operation.
struct IoVerdict {
  int error = 0;                              // an errno instead of the operation
  std::uint64_t at_most = ~std::uint64_t{0};  // only so many bytes of it: a short read or write
};

class IoFaults {
 public:
  virtual ~IoFaults() = default;
  // Before an operation.
  virtual IoVerdict judge(IoDirection direction, std::uint64_t offset, std::uint64_t bytes) = 0;
  // After a write, with what was written.
  virtual void written(std::uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) {}
  // Before a sync: an errno instead of it; and after one.
  virtual int syncing() { return 0; }
  virtual void synced() {}
};

// How to reach the bytes of a file.
struct FileAccess {
  int buffered = -1;  // through the page cache: any offset, any length
  int direct = -1;    // past it; -1 where the file system refuses
  // Of offsets, lengths and addresses of direct operations.
  std::uint64_t alignment = 4096;
  // Which file it is: two descriptors of one file have the same numbers.
  std::uint64_t device_id = 0;
  std::uint64_t inode = 0;
  // Asked before every operation; null except in tests.
  IoFaults* faults = nullptr;
};

class Storage {
 public:
  static constexpr std::int32_t kNoDevice = -1;

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  virtual ~Storage() = default;

  StorageKind kind() const noexcept { return kind_; }
  std::uint64_t size() const noexcept { return size_; }
  // The first byte of memory; of device memory too, where only the device may follow it. Null for everything
  // else.
  std::byte* address() const noexcept { return address_; }
  // Which GPU has the bytes.
  std::int32_t device() const noexcept { return device_; }
  bool host_accessible() const noexcept {
    return kind_ == StorageKind::kSystem || kind_ == StorageKind::kPinned;
  }
  // Null unless the bytes are a file.
  virtual const FileAccess* file() const noexcept { return nullptr; }
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
