#include "storage/shared_storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/checked_math.h"
#include "base/wide.h"
#include "storage/size_limit_signal.h"

namespace ashlar::storage {

Result<std::shared_ptr<SharedStorage>> SharedStorage::create(const MemoryOptions& options,
                                                             std::shared_ptr<PageLocker> locker) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  std::uint64_t size = 0;
  if (!align_up(options.bytes, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)), &size) ||
      size > static_cast<std::uint64_t>(INT64_MAX))
    return make_error(ErrorCode::kInvalidArgument, "bytes is %llu; no address space is that large",
                      wide(options.bytes));
  OwnedFd file(memfd_create("ashlar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid())
    return make_error(ErrorCode::kCapacity,
                      "shared memory was refused (errno %d); raise the limit of open files", errno);
  {
    const SizeLimitSignal no_signal;
    if (ftruncate(file.get(), static_cast<off_t>(size)) != 0)
      return make_error(ErrorCode::kCapacity,
                        "%llu bytes of shared memory were refused (errno %d); check the limit of file sizes",
                        wide(options.bytes), errno);
  }
  struct stat status{};
  // Not F_SEAL_SEAL: who shares it decides later whether others may write.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0 || fstat(file.get(), &status) != 0)
    return make_error(ErrorCode::kIo, "shared memory cannot be sealed (errno %d)", errno);
  ASHLAR_TRY(MappedMemory memory, MappedMemory::share(options, file.get()));
  if (locker != nullptr) ASHLAR_RETURN_IF_ERROR(locker->lock(memory.address(), memory.bytes()));
  const SharedMemory shared{.descriptor = file.get(), .device_id = status.st_dev, .inode = status.st_ino};
  return std::shared_ptr<SharedStorage>(
      new SharedStorage(std::move(memory), std::move(file), shared, std::move(locker)));
}

SharedStorage::~SharedStorage() {
  if (locker_ != nullptr) locker_->unlock(address());
}

}  // namespace ashlar::storage
