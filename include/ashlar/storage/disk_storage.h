// DiskStorage: a file of fixed size, or a block device, reached past the page cache where the file system
// allows it.
//
// create() takes all of its space at once, so a disk that is too full says so then and not in the middle of a
// write. It never touches a file that is there. open() takes an existing one as it is.
//
// Thread safety: as Storage.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

enum class DirectIo : std::uint8_t {
  kIfPossible,
  kNever,
  kAlways,  // an error where the file system refuses
};

struct DiskOptions {
  std::string path;
  std::uint64_t bytes = 0;  // for create()
  DirectIo direct = DirectIo::kIfPossible;
  // Takes the space from the file system now. Off: the file has holes and a write may find the disk full.
  bool preallocate = true;
  // For open(): no other storage may be open so, of this process or another, and a block device must not be
  // mounted.
  bool exclusive = false;
  // The file goes with the last holder: scratch space.
  bool remove = false;
  std::shared_ptr<IoFaults> faults = {};
};

class DiskStorage final : public Storage {
 public:
  // Errors: kInvalidArgument: no path or no bytes; kAlreadyExists; kCapacity with what was wanted and what
  // the file system has; kUnsupported: DirectIo::kAlways where it is refused; kIo with the system's reason.
  // Nothing is left behind.
  static Result<std::shared_ptr<DiskStorage>> create(DiskOptions options);
  // Errors: kNotFound; kInvalidArgument for an empty file, or what is no file and no block device; kNotReady:
  // exclusive, and somebody has it; otherwise as create().
  static Result<std::shared_ptr<DiskStorage>> open(DiskOptions options);
  ~DiskStorage() override;

  const FileAccess* file() const noexcept override { return &access_; }
  std::string describe() const override;
  const std::string& path() const noexcept { return options_.path; }

  // Syncs that have failed since this was opened. Whoever writes takes the number before, and gives it to
  // sync() afterwards.
  std::uint64_t failed_syncs() const noexcept { return failed_syncs_; }
  // What was written since failed_syncs() was `before` is on the device when this returns. Errors: kIo, also
  // where the sync of another thread has failed since: the system tells one of them only, and may have given
  // up the bytes of both. Such bytes are written again before the next sync. Asks and tells the faults.
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
