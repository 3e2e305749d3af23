#include "ashlar/storage/disk_storage.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "base/wide.h"
#include "storage/file_bytes.h"
#include "storage/size_limit_signal.h"

namespace ashlar::storage {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

// Closes a descriptor, and removes its file, unless told otherwise.
struct NewFile {
  int descriptor;
  std::string path;
  bool remove;

  NewFile(int its_descriptor, std::string its_path, bool its_remove)
      : descriptor(its_descriptor), path(std::move(its_path)), remove(its_remove) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (descriptor < 0) return;
    close(descriptor);
    if (remove) unlink(path.c_str());
  }
  void release() { descriptor = -1; }
};

// Of the file system; nullopt when it does not report it.
std::optional<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs there{};
  if (statvfs(path.c_str(), &there) != 0) return std::nullopt;
  return std::uint64_t{there.f_bavail} * there.f_frsize;
}

Error no_room(const std::string& path, std::uint64_t wanted, int error) {
  return make_error(ErrorCode::kCapacity, "%s: %llu bytes were requested, the file system has %llu free (%s)",
                    path.c_str(), wide(wanted), wide(free_bytes(path).value_or(0)), reason(error).c_str());
}

Result<void> take_space(int file, const DiskOptions& options) {
  const auto bytes = static_cast<off_t>(options.bytes);
  int error = 0;
  const SizeLimitSignal no_signal;
  if (options.preallocate) {
    // Otherwise the kernel would fill the disk before it fails, and block other writers meanwhile.
    if (const auto there = free_bytes(options.path); there && *there < options.bytes)
      return no_room(options.path, options.bytes, ENOSPC);
    do error = posix_fallocate(file, 0, bytes);
    while (error == EINTR);
  } else if (ftruncate(file, bytes) != 0) {
    error = errno;
  }
  if (error == 0) return {};
  if (error == ENOSPC || error == EFBIG || error == EDQUOT)
    return no_room(options.path, options.bytes, error);
  return make_error(ErrorCode::kIo, "%s: %llu bytes could not be reserved: %s", options.path.c_str(),
                    wide(options.bytes), reason(error).c_str());
}

Error in_use(const std::string& path) {
  return make_error(ErrorCode::kNotReady,
                    "%s is in use, by another process or by this one; only one at a time may have it",
                    path.c_str());
}

// Size of a file or a block device; 0 for everything else.
std::uint64_t size_of(int file, const struct stat& about) {
  if (S_ISREG(about.st_mode)) return static_cast<std::uint64_t>(about.st_size);
  std::uint64_t bytes = 0;
  if (S_ISBLK(about.st_mode) && ioctl(file, BLKGETSIZE64, &bytes) == 0) return bytes;
  return 0;
}

}  // namespace

Result<std::shared_ptr<DiskStorage>> DiskStorage::create(DiskOptions options) {
  if (options.path.empty() || options.bytes == 0 ||
      options.bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
    return make_error(ErrorCode::kInvalidArgument,
                      "a file needs a path and a size; it has '%s' and %llu bytes", options.path.c_str(),
                      wide(options.bytes));
  const int file = ::open(options.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 && errno == EEXIST)
    return make_error(ErrorCode::kAlreadyExists, "%s already exists; open() it, or remove it",
                      options.path.c_str());
  if (file < 0 && errno == ENOENT) return no_folder(options.path);
  if (file < 0)
    return make_error(ErrorCode::kIo, "%s cannot be created: %s", options.path.c_str(),
                      reason(errno).c_str());
  NewFile guard(file, options.path, true);
  ASHLAR_RETURN_IF_ERROR(take_space(file, options));
  const std::uint64_t bytes = options.bytes;
  Result<std::shared_ptr<DiskStorage>> made = adopt(std::move(options), file, bytes);
  if (made) guard.release();
  return made;
}

Result<std::shared_ptr<DiskStorage>> DiskStorage::open(DiskOptions options) {
  struct stat about{};
  // For a block device this means: not while it is mounted or opened exclusively elsewhere.
  const bool alone = options.exclusive && stat(options.path.c_str(), &about) == 0 && S_ISBLK(about.st_mode);
  const int file = ::open(options.path.c_str(), O_RDWR | O_CLOEXEC | (alone ? O_EXCL : 0));
  if (file < 0 && errno == EBUSY) return in_use(options.path);
  if (file < 0)
    return make_error(errno == ENOENT   ? ErrorCode::kNotFound
                      : errno == EISDIR ? ErrorCode::kInvalidArgument
                                        : ErrorCode::kIo,
                      "%s cannot be opened: %s", options.path.c_str(), reason(errno).c_str());
  NewFile guard(file, options.path, false);
  if (fstat(file, &about) != 0)
    return make_error(ErrorCode::kIo, "%s: %s", options.path.c_str(), reason(errno).c_str());
  const std::uint64_t bytes = size_of(file, about);
  if (bytes == 0)
    return make_error(ErrorCode::kInvalidArgument, "%s is no file with bytes in it, and no block device",
                      options.path.c_str());
  if (options.exclusive && flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return in_use(options.path);
    return make_error(ErrorCode::kIo, "%s cannot be locked: %s", options.path.c_str(), reason(errno).c_str());
  }
  Result<std::shared_ptr<DiskStorage>> made = adopt(std::move(options), file, bytes);
  if (made) guard.release();
  return made;
}

// Opens the second descriptor. The caller keeps `file` until this succeeds.
Result<std::shared_ptr<DiskStorage>> DiskStorage::adopt(DiskOptions options, int file, std::uint64_t bytes) {
  FileAccess access;
  access.buffered = file;
  access.faults = options.faults.get();
  struct stat about{};
  if (fstat(file, &about) != 0)
    return make_error(ErrorCode::kIo, "%s: %s", options.path.c_str(), reason(errno).c_str());
  access.device_id = about.st_dev;
  access.inode = about.st_ino;
  if (options.direct != DirectIo::kNever) {
    // The same file, even if its path now names another.
    const std::string same = "/proc/self/fd/" + std::to_string(file);
    access.direct = ::open(same.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  }
  if (options.direct == DirectIo::kAlways && access.direct < 0)
    return make_error(errno == EINVAL ? ErrorCode::kUnsupported : ErrorCode::kIo,
                      errno == EINVAL ? "%s: the file system refuses direct I/O (%s)"
                                      : "%s cannot be opened for direct I/O: %s",
                      options.path.c_str(), reason(errno).c_str());
  return std::shared_ptr<DiskStorage>(new DiskStorage(std::move(options), access, bytes));
}

DiskStorage::~DiskStorage() {
  if (access_.direct >= 0) close(access_.direct);
  close(access_.buffered);
  if (options_.remove) unlink(options_.path.c_str());
}

std::string DiskStorage::describe() const {
  return Storage::describe() + ", " + options_.path;
}

// Counting and syncing are one step: a sync that succeeds because another consumed the error finds that error
// counted.
Result<void> DiskStorage::sync(std::uint64_t before) const {
  const MutexLock lock(sync_mu_);
  ASHLAR_CHECK(before <= failed_syncs_, "%s: sync() is told of %llu failed syncs; %llu have failed",
               options_.path.c_str(), wide(before), wide(failed_syncs_));
  int error = access_.faults == nullptr ? 0 : access_.faults->syncing();
  if (error == 0 && fdatasync(access_.buffered) != 0) error = errno;
  if (error != 0) {
    ++failed_syncs_;
    return make_error(ErrorCode::kIo, "%s: sync: %s", options_.path.c_str(), reason(error).c_str());
  }
  if (access_.faults != nullptr) access_.faults->synced();
  if (failed_syncs_ == before) return {};
  return make_error(ErrorCode::kIo, "%s: a sync failed after this was written, which may be lost; repeat it",
                    options_.path.c_str());
}

}  // namespace ashlar::storage
