// RemoteTransport: moves bytes between host memory of this process and registered memory of others,
// one-sided: the owner's processor takes no part that its user would see. LoopbackTransport: between
// processes of one machine. The ucx leaf has one for networks.
//
// A transport knows nothing of blocks, names or leases: RemoteAgent (remote_agent.h) tells it whom to trust.
//
// Thread safety: thread-safe.
// Invariant:     a path reaches one incarnation of a peer; after close() no byte moves over it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/storage/storage.h"
#include "ashlar/transfer/executor.h"
#include "ashlar/transfer/host_executors.h"

namespace ashlar::transfer {

// A node and the life of its process. A restart on the same address is another incarnation.
struct AgentIdentity {
  std::uint64_t agent = 0;        // of the node: the operator's, or random; never 0
  std::uint64_t incarnation = 0;  // of the process: random; never 0

  // "00000000000000a1/5f3c…", both hexadecimal.
  std::string to_string() const;
  friend auto operator<=>(const AgentIdentity&, const AgentIdentity&) = default;
};

// Memory that peers may access, until it is destroyed.
class MemoryRegistration {
 public:
  virtual ~MemoryRegistration() = default;
  // What a peer needs besides address and size; at most RemoteStorage::kMaxKeyBytes.
  virtual std::span<const std::byte> key() const noexcept = 0;
};

// The way to the memory of one incarnation of a peer. Destruction closes it.
class RemotePath {
 public:
  virtual ~RemotePath() = default;
  // Opens a region of the peer's. Errors: kInvalidArgument: a key that this transport did not make, or
  // another agent's memory, or a mode that allows more than the key; kUnsupported: memory that this process
  // cannot reach, with what would help; kUnavailable: the path is closed.
  virtual Result<std::shared_ptr<storage::RemoteStorage>> open(storage::RemoteMemory memory) = 0;
  // Starts no more operations; those in flight end soon, with kUnavailable and the text of `why`. Storage
  // that was opened stays an object, and its transfers are refused. Idempotent: the first reason stays.
  virtual void close(const Error& why) = 0;
  // Why it is closed; empty while it is open.
  virtual std::optional<Error> failure() const = 0;
};

class RemoteTransport {
 public:
  virtual ~RemoteTransport() = default;
  // "loopback", "ucx": both sides of a path have the same.
  virtual std::string_view name() const noexcept = 0;
  // What a peer's connect() needs; at most kMaxAddressBytes.
  static constexpr std::size_t kMaxAddressBytes = 4096;
  virtual std::vector<std::byte> address() const = 0;
  // An agent with this transport listens at `host`, a number. Called before the agent asks for address().
  // Errors: kInvalidArgument: its options keep it from being reached there.
  virtual Result<void> listen_at(std::string_view /*host*/) { return {}; }
  // Makes memory of this process accessible to peers, which write it only where `mode` lets them. The
  // registration keeps the storage alive. Errors: kUnsupported: a kind of storage that this transport cannot
  // serve, or not in this mode; kCapacity; kIo.
  virtual Result<std::unique_ptr<MemoryRegistration>> register_memory(
      std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) = 0;
  // Takes no longer than until `deadline`, by Clock::real(). `on_failure` is called at most once, on a thread
  // of the transport, when the transport itself finds that the peer is gone; it must not call the transport.
  // Errors: kInvalidArgument: not an address of this transport; kUnavailable: the peer cannot be reached, or
  // does not answer in time.
  virtual Result<std::shared_ptr<RemotePath>> connect(
      const AgentIdentity& peer, std::span<const std::byte> address,
      std::function<void(const Error&)> on_failure, Clock::TimePoint deadline = Clock::TimePoint::max()) = 0;
  // Runs plans of which one side is RemoteStorage of this transport and the other host memory. A path that is
  // closed refuses: kUnavailable.
  virtual Executor& executor() noexcept = 0;
};

// DeviceSharing: opens the device memory of other processes of one machine. A GPU leaf implements it.
//
// Thread safety: thread-safe.
class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;
  // A handle by which another process opens the storage. Errors: kUnsupported: memory of a kind that cannot
  // be shared; kIo.
  virtual Result<std::vector<std::byte>> share(const storage::Storage& storage) = 0;
  // Device memory of this process's address space, which the last holder unmaps. Errors: kInvalidArgument:
  // not a handle; kUnavailable: its process is gone; kIo.
  virtual Result<std::shared_ptr<storage::Storage>> open(std::span<const std::byte> handle,
                                                         std::uint64_t bytes, std::int32_t device) = 0;
};

struct LoopbackOptions {
  MemcpyOptions copies = {};  // threads, limits and clock of its executor
  // Where given, device memory is shared too, and `device_executor` copies between it and local memory.
  std::shared_ptr<DeviceSharing> devices = {};
  std::shared_ptr<Executor> device_executor = {};
};

// LoopbackTransport: between processes of one user on one machine. Memory of storage::SharedAllocator is
// mapped by the peer, which copies at memory speed; other host memory is read and written through the kernel
// (process_vm_readv), where the system lets the user do that; device memory is opened through DeviceSharing.
//
// Memory of storage::SharedAllocator that is registered for reading is sealed: from then on no other process
// can map it for writing, and it cannot be registered for writing any more. The kernel has no such lock for
// other memory, and CUDA IPC none for device memory: there the transport of the peer refuses writes.
class LoopbackTransport final : public RemoteTransport {
 public:
  // Errors: those of the options; kCapacity: no threads.
  static Result<std::shared_ptr<LoopbackTransport>> create(const LoopbackOptions& options = {});
  ~LoopbackTransport() override;

  std::string_view name() const noexcept override { return "loopback"; }
  std::vector<std::byte> address() const override;
  Result<std::unique_ptr<MemoryRegistration>> register_memory(std::shared_ptr<storage::Storage> storage,
                                                              storage::AccessMode mode) override;
  // Never waits for the peer.
  Result<std::shared_ptr<RemotePath>> connect(const AgentIdentity& peer, std::span<const std::byte> address,
                                              std::function<void(const Error&)> on_failure,
                                              Clock::TimePoint deadline = Clock::TimePoint::max()) override;
  Executor& executor() noexcept override;

 private:
  class Impl;
  explicit LoopbackTransport(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ashlar::transfer
