// DiskStorage: a file of fixed size, or a block device, accessed past the page cache where the file system
// allows it.
//
// create() reserves all of its space at once, so a full disk is reported there and not in the middle of a
// write. It never touches an existing file. open() takes an existing file as it is.
//
// Thread safety: thread-safe. sync() takes a lock of its own.
// Invariant:     the size never changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

// Whether operations bypass the page cache.
enum class DirectIo : std::uint8_t {
  kIfPossible,
  kNever,
  kAlways,  // an error where the file system refuses
};

struct DiskOptions {
  std::string path;
  std::uint64_t bytes = 0;  // for create()
  DirectIo direct = DirectIo::kIfPossible;
  // Reserves the space now. Off: the file is sparse, and a write may find the disk full.
  bool preallocate = true;
  // For open(): no other storage, in this process or another, may have it open exclusively, and a block
  // device must not be mounted.
  bool exclusive = false;
  // Removes the file with the last holder: scratch space.
  bool remove = false;
  std::shared_ptr<IoFaults> faults = {};
};

class DiskStorage final : public Storage {
 public:
  // Errors: kInvalidArgument: no path or no bytes; kAlreadyExists; kNotFound: the folder; kCapacity, with the
  // bytes wanted and free; kUnsupported: DirectIo::kAlways where it is refused; kIo with the system's reason.
  // A failed call leaves nothing behind.
  static Result<std::shared_ptr<DiskStorage>> create(DiskOptions options);
  // Errors: kNotFound; kInvalidArgument: an empty file, or neither file nor block device; kNotReady:
  // exclusive, and in use; otherwise as create().
  static Result<std::shared_ptr<DiskStorage>> open(DiskOptions options);
  ~DiskStorage() override;

  const FileAccess* file() const noexcept override { return &access_; }
  std::string describe() const override;
  const std::string& path() const noexcept { return options_.path; }

  // Syncs that have failed since this was opened. A writer reads the number before it writes and passes it to
  // sync() afterwards.
  std::uint64_t failed_syncs() const noexcept { return failed_syncs_; }
  // On return, everything written since failed_syncs() was `before` is on the device. Errors: kIo, also when
  // another thread's sync has failed since: the system reports a failure once, and may have dropped the bytes
  // of both writers. Write them again before the next sync. Calls the faults.
  Result<void> sync(std::uint64_t before = 0) const;

 private:
  DiskStorage(DiskOptions options, const FileAccess& access, std::uint64_t bytes) noexcept
      : Storage(StorageKind::kDisk, nullptr, bytes), options_(std::move(options)), access_(access) {}
  static Result<std::shared_ptr<DiskStorage>> adopt(DiskOptions options, int file, std::uint64_t bytes);

  DiskOptions options_;
  FileAccess access_;
  mutable Mutex sync_mu_;  // one sync at a time; the last of the locks
  mutable std::atomic<std::uint64_t> failed_syncs_{0};
};

}  // namespace ashlar::storage
