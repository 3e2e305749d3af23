// RemoteStorage: memory of another process, reached through an agent.
//
// It has the address that its owner uses, which this process must not dereference: only the executor of the
// transport that opened it moves its bytes. A layout over it plans like one over local memory.
//
// Thread safety: thread-safe, as Storage.
// Invariant:     names one incarnation of its owner: a restarted owner has other storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"

namespace ashlar::storage {

// What a transport keeps to reach the memory. Each transport derives its own.
class RemoteAccess {
 public:
  virtual ~RemoteAccess() = default;
};

// What peers may do with memory. Its owner decides when it registers it.
enum class AccessMode : std::uint8_t {
  kRead = 1,
  kReadWrite = 3,
};
std::string_view to_string(AccessMode mode) noexcept;

// A region as its owner describes it.
struct RemoteMemory {
  StorageKind kind = StorageKind::kSystem;  // at its owner: system, pinned or device
  std::uint64_t address = 0;                // there
  std::uint64_t bytes = 0;
  std::int32_t device = Storage::kNoDevice;  // there, for device memory
  std::uint64_t agent = 0;                   // the owner
  std::uint64_t incarnation = 0;             // the owner's process
  std::vector<std::byte> key = {};           // of the registration, as the transport made it
  AccessMode mode = AccessMode::kRead;       // what the owner allows, or less
};

class RemoteStorage final : public Storage {
 public:
  // Keys of transports are small; a longer one is not a key.
  static constexpr std::size_t kMaxKeyBytes = 4096;

  // Errors: kInvalidArgument: no address, size, owner or access; an address range that wraps around; a kind
  // that is not memory; a device that does not match the kind; a key longer than kMaxKeyBytes; a mode that
  // is none.
  static Result<std::shared_ptr<RemoteStorage>> create(RemoteMemory memory,
                                                       std::shared_ptr<const RemoteAccess> access);

  const RemoteMemory& memory() const noexcept { return memory_; }
  // Whether it may be the target of a transfer.
  bool writable() const noexcept { return memory_.mode == AccessMode::kReadWrite; }
  const std::shared_ptr<const RemoteAccess>& access() const noexcept { return access_; }
  // "remote, 1048576 bytes, system memory of agent 5f…/81…, for reading".
  std::string describe() const override;

 private:
  RemoteStorage(RemoteMemory memory, std::shared_ptr<const RemoteAccess> access) noexcept
      : Storage(StorageKind::kRemote, reinterpret_cast<std::byte*>(memory.address), memory.bytes),
        memory_(std::move(memory)),
        access_(std::move(access)) {}

  RemoteMemory memory_;
  std::shared_ptr<const RemoteAccess> access_;
};

}  // namespace ashlar::storage
