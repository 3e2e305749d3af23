// UcxTransport: remote memory over UCX: TCP between machines, shared memory within one.
//
// Every path has a UCX worker of its own, so a peer that dies or hangs takes nothing but its path along. One
// more worker serves the peers that access this process; a thread progresses all of them, and sleeps in the
// kernel when nothing moves. A small transfer is driven by the thread that submits it.
//
// The owner answers every request, and refuses memory that it does not offer (any more), and writes into
// memory that it offers for reading. UCX itself asks nobody for a password: keys are trusted because
// RemoteAgent gets them over an authenticated connection, and whoever reaches a port of UCX can write memory
// of this process, so that it is loopback's unless devices of a trusted network are named. Addresses and keys
// carry a checksum against accidents.
//
// Dead peers are noticed: by their connection, or over shared memory by the end of their process. An owner
// that hangs is not: deadlines end waits, and RemotePath::close(), which RemoteAgent calls, ends operations.
// Over TCP a reader that hangs is disconnected after reply_limit.
//
// Thread safety: thread-safe.
// Invariant:     memory of an operation is held until UCX has reported its end or its worker is destroyed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/executor.h"
#include "ashlar/transfer/remote_transport.h"

namespace ashlar::backend::ucx {

struct UcxOptions {
  // As UCX_TLS: "tcp", "tcp,shm", … "tcp" is always in it: peers need a way that works everywhere. Both sides
  // of a path have the same list.
  std::string transports = "tcp";
  // As UCX_NET_DEVICES: "eth0,eth1". Peers connect at their addresses, and whoever else does can write memory
  // of this process: name devices of a network in which everyone is trusted so far. Empty: what that variable
  // says, or "lo".
  std::string devices = {};
  // Of TCP; UCX's own default, 8 KiB, costs half the bandwidth. An operation over TCP is one segment: this is
  // 256 KiB and the room for headers.
  std::uint32_t segment_bytes = std::uint32_t{260} << 10;
  // True: the thread never sleeps and takes a processor for itself.
  bool busy = false;
  // How long the thread looks for more work before it sleeps.
  Clock::Duration spin = std::chrono::microseconds(50);
  // submit() drives transfers up to this size itself, for inline_limit at most; of memory that is mapped, up
  // to strip_bytes.
  std::uint64_t inline_bytes = std::uint64_t{256} << 10;
  Clock::Duration inline_limit = std::chrono::microseconds(200);
  // Largest single operation, and how many are in flight on a path.
  std::uint64_t strip_bytes = std::uint64_t{1} << 20;
  std::uint32_t window = 32;
  // How long connect() waits for the peer, unless its deadline comes first, and how long a path without
  // operations waits to close in order. No longer than a call to a peer may take (RemoteShape::call_limit).
  Clock::Duration connect_limit = std::chrono::seconds(2);
  Clock::Duration close_limit = std::chrono::milliseconds(500);
  // A peer that was connected by TCP and takes none of the bytes that it asked for, for so long, is
  // disconnected: they keep memory of this process. Its paths fail when it wakes, and it connects again.
  Clock::Duration reply_limit = std::chrono::seconds(5);
  // Where given, device memory can be registered too: for every request of a peer `device_executor` copies it
  // from or to a buffer of host memory, of which there are bounce_buffers, and a peer alone has half of them.
  // Pinned memory is fastest, such as that of storage::PinnedAllocator; null: pageable. Peers need none of
  // this. Only with `tcp` alone.
  std::shared_ptr<transfer::Executor> device_executor = {};
  std::shared_ptr<storage::Allocator> bounce_memory = {};
  std::uint32_t bounce_buffers = 16;
  transfer::QueueLimits limits = {};
  Clock* clock = nullptr;  // of deadlines; null: the machine's

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

class UcxTransport final : public transfer::RemoteTransport {
 public:
  // Errors: kInvalidArgument: the options; kUnsupported: UCX has none of the transports here; kCapacity: no
  // threads or descriptors.
  static Result<std::shared_ptr<UcxTransport>> create(const UcxOptions& options = {});
  // Ends transfers that wait, gives running ones close_limit, and closes all paths.
  ~UcxTransport() override;

  std::string_view name() const noexcept override { return "ucx"; }
  std::vector<std::byte> address() const override;
  // Errors: kInvalidArgument: the host is not loopback, and no devices are named.
  Result<void> listen_at(std::string_view host) override;
  Result<std::unique_ptr<transfer::MemoryRegistration>> register_memory(
      std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) override;
  Result<std::shared_ptr<transfer::RemotePath>> connect(
      const transfer::AgentIdentity& peer, std::span<const std::byte> address,
      std::function<void(const Error&)> on_failure,
      Clock::TimePoint deadline = Clock::TimePoint::max()) override;
  transfer::Executor& executor() noexcept override;
  // Makes memory that UCX allocates. With shared memory in the list peers of this machine map it and copy at
  // memory speed where it is registered for reading and writing, since UCX cannot let them map it for reading
  // alone; other memory they reach through messages. Its storage may outlive the transport.
  std::shared_ptr<storage::Allocator> allocator() const;

 private:
  class Impl;
  explicit UcxTransport(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ashlar::backend::ucx
