// LoopbackLink: the way to one process of this machine; what a path and the storage opened over it share.
// LoopbackAccess: how one region of that process is reached.
//
// Thread safety: thread-safe.
// Invariant:     after close() has returned, no thread of this process is between enter() and leave().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/remote_transport.h"
#include "base/owned_fd.h"
#include "transfer/remote/loopback_address.h"
#include "transfer/remote/registration_table.h"

namespace ashlar::transfer {

class LoopbackLink {
 public:
  // `owner`: the transport, for comparisons only. Errors: as RemoteTransport::connect().
  static Result<std::shared_ptr<LoopbackLink>> connect(const void* owner, const AgentIdentity& peer,
                                                       const LoopbackAddress& address);

  const void* owner() const noexcept { return owner_; }
  const AgentIdentity& peer() const noexcept { return peer_; }
  const LoopbackAddress& address() const noexcept { return address_; }
  const OwnedFd& process() const noexcept { return process_; }
  const PeerTable& table() const noexcept { return *table_; }

  // Around every copy. Errors: kUnavailable, with the reason: the link is closed.
  Result<void> enter();
  void leave();
  // True: it was open. Waits for the copies between enter() and leave(), and then calls the `stop` of every
  // transfer.
  bool close(const Error& why);
  std::optional<Error> failure() const;
  // As enter() reports it.
  Result<void> check_open() const;

  // A transfer that another executor runs. `stop` is called by close(), at most once. Errors: as enter().
  Result<std::uint64_t> add_transfer(std::function<void(const Error&)> stop);
  void remove_transfer(std::uint64_t id);

 private:
  LoopbackLink(const void* owner, const AgentIdentity& peer, const LoopbackAddress& address, OwnedFd process,
               std::unique_ptr<PeerTable> table) noexcept;
  Result<void> check_locked() const ASHLAR_REQUIRES(mu_);

  const void* const owner_;
  const AgentIdentity peer_;
  const LoopbackAddress address_;
  const OwnedFd process_;
  const std::unique_ptr<PeerTable> table_;
  mutable Mutex mu_;
  CondVar left_;
  std::optional<Error> failure_ ASHLAR_GUARDED_BY(mu_);
  std::uint32_t inside_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t next_transfer_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::map<std::uint64_t, std::function<void(const Error&)>> transfers_ ASHLAR_GUARDED_BY(mu_);
};

class LoopbackAccess;

// A block set over memory of a peer, as the executor uses it. Lives in the access of its first region.
struct RemoteSide {
  // Where a region starts: in this process, or for kernel copies at the owner.
  struct Region {
    std::byte* address = nullptr;
    bool through_kernel = false;
    std::size_t access = 0;  // its number in `accesses`
  };
  std::shared_ptr<LoopbackLink> link;
  std::vector<std::vector<Region>> planes;      // [plane][region]
  std::vector<const LoopbackAccess*> accesses;  // each once; the block set keeps them alive
  std::shared_ptr<const BlockSet> twin;         // over memory of this process; null: through the kernel
};

class LoopbackAccess final : public storage::RemoteAccess {
 public:
  // `local`: the memory as this process has it; null for copies through the kernel, which have a lock.
  LoopbackAccess(std::shared_ptr<LoopbackLink> link, std::uint32_t slot, std::uint64_t digest,
                 std::shared_ptr<storage::Storage> local, std::unique_ptr<SlotLock> lock) noexcept
      : link_(std::move(link)),
        slot_(slot),
        digest_(digest),
        local_(std::move(local)),
        lock_(std::move(lock)) {}

  const std::shared_ptr<LoopbackLink>& link() const noexcept { return link_; }
  const std::shared_ptr<storage::Storage>& local() const noexcept { return local_; }
  // Whether the owner still shares the memory.
  bool is_shared() const noexcept { return link_->table().has(slot_, digest_); }
  // Around copies through the kernel. Errors: kUnavailable: the owner does not share the memory any more.
  Result<void> enter() const;
  void leave() const;
  static Error withdrawn();

  // The set as the executor uses it; its first region has this access. Errors: kInvalidArgument: regions of
  // several peers, or of other transports.
  Result<std::shared_ptr<const RemoteSide>> side(const std::shared_ptr<const BlockSet>& set) const;
  // Of storage of a loopback transport; null for other storage.
  static const LoopbackAccess* of(const storage::Storage& storage) noexcept;

 private:
  struct Known {
    std::weak_ptr<const BlockSet> set;
    std::shared_ptr<const RemoteSide> side;
  };

  const std::shared_ptr<LoopbackLink> link_;
  const std::uint32_t slot_;
  const std::uint64_t digest_;
  const std::shared_ptr<storage::Storage> local_;
  const std::unique_ptr<SlotLock> lock_;
  mutable Mutex mu_;
  mutable std::vector<Known> known_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::transfer
