// RegistrationTable: the memory that this process lets its peers on the machine access. LoopbackKey: one
// entry of it, as peers get it. PeerTable: the table of another process.
//
// The table is memory that peers map read-only: for each entry the digest of its key, or 0. A peer compares
// before every copy, so a key that was withdrawn, changed on its way or made up reaches no memory, and a key
// for reading does not become one for writing.
//
// A peer that copies through the kernel writes to addresses, not to a file. So while it copies it holds a
// shared lock on the byte of the file with the number of the entry, which the kernel releases if the peer
// dies; memory that was withdrawn is kept until that lock is free.
//
// Thread safety: RegistrationTable and PeerTable are thread-safe; LoopbackKey is a plain value.
// Invariant:     an entry is taken again only when no peer copies by its old key.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/base/storage_kind.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/storage/storage.h"
#include "base/owned_fd.h"
#include "transfer/remote/loopback_address.h"

namespace ashlar::transfer {

// How a peer reaches memory.
enum class PeerAccess : std::uint8_t {
  kMapped = 1,  // maps the file
  kKernel = 2,  // process_vm_readv and process_vm_writev
  kDevice = 3,  // opens a handle of DeviceSharing
};

struct LoopbackKey {
  PeerAccess access = PeerAccess::kMapped;
  storage::AccessMode mode = storage::AccessMode::kRead;
  StorageKind kind = StorageKind::kSystem;
  std::int32_t device = storage::Storage::kNoDevice;
  std::uint64_t address = 0;  // at the owner
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;  // of the table
  std::uint64_t id = 0;    // random
  ProcessFile file = {};   // mapped memory
  std::uint64_t offset = 0;
  std::vector<std::byte> handle = {};  // device memory

  std::vector<std::byte> encode() const;
  // Errors: kInvalidArgument: not such bytes.
  static Result<LoopbackKey> decode(std::span<const std::byte> bytes);
  // Of the encoded key; never 0.
  static std::uint64_t digest(std::span<const std::byte> key) noexcept;
};

class RegistrationTable {
 public:
  static constexpr std::uint32_t kSlots = 8192;

  // Errors: kCapacity: no descriptor or memory is left.
  static Result<std::shared_ptr<RegistrationTable>> create();
  // Waits for peers inside a copy, a few seconds at most; memory that is then still in use is never freed.
  ~RegistrationTable();
  RegistrationTable(const RegistrationTable&) = delete;
  RegistrationTable& operator=(const RegistrationTable&) = delete;

  ProcessFile file() const noexcept { return file_; }
  // A free entry. Errors: kCapacity: there are kSlots.
  Result<std::uint32_t> take();
  void publish(std::uint32_t slot, std::uint64_t digest) noexcept;
  // Peers start no copy by this entry any more. Keeps `memory` and the entry while a peer is inside one, and
  // returns true then: release_idle() must be called again.
  bool withdraw(std::uint32_t slot, std::shared_ptr<storage::Storage> memory);
  // Releases what no peer copies any more. True: some is left.
  bool release_idle();

 private:
  struct Kept {
    std::uint32_t slot = 0;
    std::shared_ptr<storage::Storage> memory;
  };
  using Digest = std::atomic<std::uint64_t>;

  RegistrationTable(OwnedFd fd, const ProcessFile& file, Digest* digests);
  bool idle(std::uint32_t slot) const noexcept;

  const OwnedFd fd_;
  const ProcessFile file_;
  Digest* const digests_;
  Mutex mu_;
  std::vector<std::uint32_t> free_ ASHLAR_GUARDED_BY(mu_);
  std::vector<Kept> kept_ ASHLAR_GUARDED_BY(mu_);
};

class PeerTable {
 public:
  // Errors: those of open_memory_file(); kCapacity.
  static Result<std::unique_ptr<PeerTable>> open(std::int32_t pid, const ProcessFile& file);
  // Its file, for a SlotLock.
  static Result<OwnedFd> open_again(std::int32_t pid, const ProcessFile& file);
  ~PeerTable();
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  bool has(std::uint32_t slot, std::uint64_t digest) const noexcept {
    // acquire: pairs with the release in publish()
    return slot < RegistrationTable::kSlots && digests_[slot].load(std::memory_order_acquire) == digest;
  }

 private:
  explicit PeerTable(const std::atomic<std::uint64_t>* digests) noexcept : digests_(digests) {}
  const std::atomic<std::uint64_t>* const digests_;
};

// SlotLock: a peer's shared lock on an entry of the owner's table, for copies through the kernel.
//
// Thread safety: thread-safe: the threads of this process share it.
class SlotLock {
 public:
  SlotLock(OwnedFd table, std::uint32_t slot) noexcept : table_(std::move(table)), slot_(slot) {}
  // False: the owner is withdrawing the entry, or the system refuses.
  bool enter();
  void leave();

 private:
  const OwnedFd table_;  // a description of its own: locks belong to it
  const std::uint32_t slot_;
  Mutex mu_;
  std::uint32_t inside_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::transfer
