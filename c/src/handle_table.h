// HandleTable: the objects behind the handles of the C interface.
//
// A handle is 64 bits: generation (32) | kind (6) | place (26). A place is used again with the next
// generation, and never after its last one, so a stale handle cannot name another object. find() returns a
// reference that keeps the object alive during a call; remove() takes the handle away, and the object dies
// with its last reference, outside every lock.
//
// Thread safety: thread-safe. Takes one shard's lock, which no other lock is taken under.
// Complexity:    O(1); add() may allocate.
// Invariant:     a place is free, or has an object whose kind is that of its handle.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/base/mutex.h"

namespace ashlar::c_interface {

enum class HandleKind : std::uint8_t {
  kHasher = 1,
  kRegistry,
  kManager,
  kBlocks,
  kPin,
  kFence,
  kRequest,
  kTiers,
  kOffload,
  kOnboard,
  kIndex,
  kFeed,
  kClient,
  kAnswer,
  kSequences,
  kSequence,
};
const char* to_string(HandleKind kind) noexcept;

// What a handle stands for. `kKind` of a derived type is its kind.
class HandleObject {
 public:
  HandleObject() = default;
  HandleObject(const HandleObject&) = delete;
  HandleObject& operator=(const HandleObject&) = delete;
  virtual ~HandleObject() = default;
};

class HandleTable {
 public:
  // Of the process; never destroyed, because objects outlive main() where a program leaves them open.
  static HandleTable& of_process();

  // Throws std::bad_alloc, also when every place is taken; the object is then not added.
  std::uint64_t add(HandleKind kind, std::shared_ptr<HandleObject> object);
  // Null: no such handle.
  std::shared_ptr<HandleObject> find(HandleKind kind, std::uint64_t handle);
  std::shared_ptr<HandleObject> remove(HandleKind kind, std::uint64_t handle) noexcept;

  template <class T>
  std::shared_ptr<T> find(std::uint64_t handle) {
    return std::static_pointer_cast<T>(find(T::kKind, handle));
  }

  std::size_t open() const noexcept { return open_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned kShards = 16;
  static constexpr unsigned kPlaceBits = 26;
  static constexpr unsigned kKindBits = 6;
  static constexpr std::uint32_t kLastGeneration = ~std::uint32_t{0};

  struct HandlePlace {
    std::shared_ptr<HandleObject> object;
    std::uint32_t generation = 1;
    HandleKind kind{};
  };
  struct alignas(64) Shard {
    Mutex mu;
    std::vector<HandlePlace> places ASHLAR_GUARDED_BY(mu);
    std::vector<std::uint32_t> free ASHLAR_GUARDED_BY(mu);  // has room for every place
  };

  // Null: no such handle. Requires: the shard is that of the handle.
  static HandlePlace* place_of(Shard& shard, HandleKind kind, std::uint64_t handle) ASHLAR_REQUIRES(shard.mu);
  Shard& shard_of(std::uint64_t handle) noexcept { return shards_[handle % kShards]; }

  std::array<Shard, kShards> shards_;
  std::atomic<std::size_t> open_{0};
};

}  // namespace ashlar::c_interface
