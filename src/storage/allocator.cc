#include "ashlar/storage/allocator.h"

#include "storage/pinned_storage.h"
#include "storage/shared_storage.h"
#include "storage/system_storage.h"

namespace ashlar::storage {
namespace {

template <class T>
Result<std::shared_ptr<Storage>> widen(Result<std::shared_ptr<T>>&& made) {
  if (!made) return std::move(made).error();
  return std::shared_ptr<Storage>(*std::move(made));
}

MemoryOptions with(MemoryOptions options, std::uint64_t bytes, std::uint64_t alignment) {
  options.bytes = bytes;
  options.alignment = alignment;
  return options;
}

}  // namespace

Result<std::shared_ptr<Storage>> SystemAllocator::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  return widen(SystemStorage::create(with(options_, bytes, alignment)));
}

Result<std::shared_ptr<Storage>> PinnedAllocator::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  return widen(PinnedStorage::create(with(options_, bytes, alignment), locker_));
}

Result<std::shared_ptr<Storage>> SharedAllocator::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  return widen(SharedStorage::create(with(options_, bytes, alignment), locker_));
}

// A file starts at a boundary of any size.
Result<std::shared_ptr<Storage>> DiskAllocator::allocate(std::uint64_t bytes, std::uint64_t /*alignment*/) {
  for (;;) {
    DiskOptions options = options_;
    options.bytes = bytes;
    options.path +=
        "." + std::to_string(next_.fetch_add(1, std::memory_order_relaxed));  // relaxed: only unique
    Result<std::shared_ptr<DiskStorage>> made = DiskStorage::create(std::move(options));
    if (made || made.error().code() != ErrorCode::kAlreadyExists) return widen(std::move(made));
  }
}

}  // namespace ashlar::storage
