// Link: what is behind a path: a worker, an endpoint, and the transfers over it. UcxAccess: a region of the
// peer's, opened over a link.
//
// The holder of the worker's lock may call UCX: the engine's thread, a submitter that drives its own small
// transfer, or a caller that opens a region. Transfers that are over are collected under the lock, and end
// outside it, because that runs callbacks and drops storage. Only the engine's thread closes a link.
//
// A link is never reused: it fails once, and a new connection is a new link.
//
// Thread safety: thread-safe.
// Invariant:     the worker is destroyed before the memory of an operation in flight is let go.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/base/mutex.h"
#include "backend/ucx/context.h"
#include "backend/ucx/framing.h"
#include "backend/ucx/messages.h"
#include "backend/ucx/operations.h"
#include "backend/ucx/region_table.h"
#include "base/owned_fd.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::backend::ucx {

class Link;

struct Job {
  Job(std::shared_ptr<transfer::TransferState> its_state, const Link& link)
      : state(std::move(its_state)), cursor(state->plan(), link) {}

  std::shared_ptr<transfer::TransferState> state;
  OperationCursor cursor;
  std::uint32_t in_flight = 0;
  bool started = false;
  bool exhausted = false;  // starts no more operations
};
using Jobs = std::vector<std::shared_ptr<Job>>;

class Link {
 public:
  enum class Condition : std::uint8_t { kOpen, kClosed };
  // What a look at a link found.
  struct Look {
    Condition condition = Condition::kOpen;
    bool moved = false;    // something happened
    bool waiting = false;  // operations or transfers are not over
  };

  struct Settings {
    transfer::AgentIdentity peer = {};
    std::uint64_t number = 0;     // in the engine, and in the events of `epoll`
    int epoll = -1;               // where the engine waits
    const void* owner = nullptr;  // the engine
    // True: over TCP, where all bytes travel in messages, and UCX watches the peer. False: over shared
    // memory, where memory that this process can map is copied by it.
    bool messages = false;
    std::string host = {};  // with messages
    Clock::Duration connect_limit = {};
    std::function<void(const Error&)> on_failure = {};
  };

  // Connects, and waits for the peer's answer.
  static Result<std::shared_ptr<Link>> connect(const UcxOptions& options,
                                               const std::shared_ptr<UcxContext>& context,
                                               const WorkerAddress& address, Settings settings);
  Link(const UcxOptions& options, std::unique_ptr<UcxWorker> worker, Settings settings);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Largest operation in messages.
  static std::uint64_t message_bytes(const UcxOptions& options) noexcept;
  std::uint64_t message_bytes() const noexcept { return message_bytes_; }

  const transfer::AgentIdentity& peer() const noexcept { return settings_.peer; }
  std::uint64_t number() const noexcept { return settings_.number; }
  // Largest copy of mapped memory.
  std::uint64_t strip_bytes() const noexcept { return strip_bytes_; }
  bool belongs_to(const void* engine) const noexcept { return settings_.owner == engine; }
  std::optional<Error> failure() const;
  // Marks the link as failed; the engine's thread does the rest. False: it was already.
  bool fail(const Error& why);

  Result<std::shared_ptr<const storage::RemoteAccess>> open(const std::shared_ptr<Link>& self,
                                                            const MemoryKey& key);
  void forget(ucp_rkey_h key);

  // Queues a transfer. False, and the transfer has failed, when the link has.
  bool enqueue(const std::shared_ptr<Job>& job);
  enum class Drive : std::uint8_t { kBusy, kDone, kUnfinished };
  // Runs a small transfer on this thread. kBusy: the link has other work, enqueue the transfer; kUnfinished:
  // the engine must look after it.
  Drive drive(const std::shared_ptr<Job>& job);

  // For the engine's thread. Moves what can be moved and finishes transfers that are over. `cancels` is the
  // count of Admission.
  Look look(std::uint64_t cancels);
  enum class Sleep : std::uint8_t { kBusy, kAsleep, kLent };
  // Lets events of the worker wake the engine. kBusy: there is something to do already; kLent: submitters
  // drove transfers since the last call, and will find the worker unwatched, which saves them system calls:
  // look again in a few milliseconds.
  Sleep sleep();
  // Cancels every transfer.
  void cancel_all();
  // For the engine's thread: the process of the peer is gone.
  void process_ended();
  // In the events of a link: this one is about the peer's process.
  static constexpr std::uint64_t kProcessEvent = std::uint64_t{1} << 63;
  // Calls on_failure if it is due.
  void report();

 private:
  struct Slot {
    Link* link = nullptr;
    std::shared_ptr<Job> job;
    std::byte* local = nullptr;  // where a reply goes; null for puts
    std::uint64_t bytes = 0;
    RequestHeader request;  // read by UCX until it is sent
    bool sent = false;      // UCX needs neither header nor bytes any more
    bool answered = false;  // the peer has replied
    Verdict verdict = Verdict::kNotOffered;
  };

  static void operation_ended(void* request, ucs_status_t status, void* user);
  static void endpoint_failed(void* user, ucp_ep_h endpoint, ucs_status_t status);
  static void control_ended(void* request, ucs_status_t status, void* user);
  static ucs_status_t peer_answered(void* user, const void* header, std::size_t header_length, void* data,
                                    std::size_t length, const ucp_am_recv_param_t* parameters);
  static ucs_status_t replied(void* user, const void* header, std::size_t header_length, void* data,
                              std::size_t length, const ucp_am_recv_param_t* parameters);

  Result<void> create_endpoint(const WorkerAddress& address) ASHLAR_REQUIRES(worker_mu_);
  Result<void> ask_peer() ASHLAR_REQUIRES(worker_mu_);
  bool progress() ASHLAR_REQUIRES(worker_mu_);
  Result<void> join_engine(std::uint32_t process) ASHLAR_REQUIRES(worker_mu_);
  void watch(bool on) ASHLAR_REQUIRES(worker_mu_);
  void lose(ucs_status_t status) ASHLAR_REQUIRES(worker_mu_);
  void lose(const std::string& why) ASHLAR_REQUIRES(worker_mu_);
  void take_inbox() ASHLAR_REQUIRES(worker_mu_);
  void sweep(std::uint64_t cancels) ASHLAR_REQUIRES(worker_mu_);
  bool step() ASHLAR_REQUIRES(worker_mu_);
  void start_operations() ASHLAR_REQUIRES(worker_mu_);
  // False when it must wait for an operation in flight.
  bool start_next(const std::shared_ptr<Job>& job) ASHLAR_REQUIRES(worker_mu_);
  void copy_mapped(Slot& slot, const Operation& operation, bool puts, std::byte* there)
      ASHLAR_REQUIRES(worker_mu_);
  void ask(Slot& slot, const Operation& operation, bool puts) ASHLAR_REQUIRES(worker_mu_);
  void take_reply(const ReplyHeader& reply, std::span<const std::byte> bytes) ASHLAR_REQUIRES(worker_mu_);
  // UCX has ended its part of an operation.
  void sent(Slot& slot, ucs_status_t status) ASHLAR_REQUIRES(worker_mu_);
  void ended(Slot& slot, ucs_status_t status) ASHLAR_REQUIRES(worker_mu_);
  bool idle() const ASHLAR_REQUIRES(worker_mu_) { return free_slots_.size() == slots_.size(); }
  void begin_close() ASHLAR_REQUIRES(worker_mu_);
  void close_by_force() ASHLAR_REQUIRES(worker_mu_);
  void destroy() ASHLAR_REQUIRES(worker_mu_);

  const Settings settings_;
  const std::uint64_t strip_bytes_;
  const std::uint64_t message_bytes_;
  const Clock::Duration inline_limit_;

  mutable Mutex mu_;  // taken under worker_mu_, or alone
  std::optional<Error> failure_ ASHLAR_GUARDED_BY(mu_);
  bool report_due_ ASHLAR_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<Job>> inbox_ ASHLAR_GUARDED_BY(mu_);
  std::atomic<bool> failed_{false};     // failure_ is set
  std::atomic<bool> has_inbox_{false};  // inbox_ is not empty

  Mutex worker_mu_;
  std::unique_ptr<UcxWorker> worker_ ASHLAR_GUARDED_BY(worker_mu_);
  ucp_ep_h endpoint_ ASHLAR_GUARDED_BY(worker_mu_) = nullptr;
  Condition condition_ ASHLAR_GUARDED_BY(worker_mu_) = Condition::kOpen;
  bool broken_ ASHLAR_GUARDED_BY(worker_mu_) = false;   // UCX says so
  OwnedFd process_ ASHLAR_GUARDED_BY(worker_mu_);       // readable at the end of the peer's process
  bool watched_ ASHLAR_GUARDED_BY(worker_mu_) = false;  // events wake the engine
  std::uint64_t drives_ ASHLAR_GUARDED_BY(worker_mu_) = 0;
  std::uint64_t drives_seen_ ASHLAR_GUARDED_BY(worker_mu_) = 0;  // by sleep()
  std::unordered_set<ucp_rkey_h> keys_ ASHLAR_GUARDED_BY(worker_mu_);
  std::deque<std::shared_ptr<Job>> active_ ASHLAR_GUARDED_BY(worker_mu_);  // have operations to start
  std::uint64_t cancels_seen_ ASHLAR_GUARDED_BY(worker_mu_) = 0;
  Clock::TimePoint swept_ ASHLAR_GUARDED_BY(worker_mu_) = {};
  std::vector<Slot> slots_ ASHLAR_GUARDED_BY(worker_mu_);
  std::vector<Slot*> free_slots_ ASHLAR_GUARDED_BY(worker_mu_);
  std::uint64_t next_tag_ ASHLAR_GUARDED_BY(worker_mu_) = 0;
  Jobs over_ ASHLAR_GUARDED_BY(worker_mu_);
  bool answered_ ASHLAR_GUARDED_BY(worker_mu_) = false;  // the connection is made on both sides
  // Of the question of connect(), and of the close by force.
  bool control_pending_ ASHLAR_GUARDED_BY(worker_mu_) = false;
  ucs_status_t control_status_ ASHLAR_GUARDED_BY(worker_mu_) = UCS_OK;
};

class UcxAccess final : public storage::RemoteAccess {
 public:
  // `mapped` is where `unpacked` has the region in this process; both are null where messages are used.
  UcxAccess(std::shared_ptr<Link> link, const MemoryKey& key, ucp_rkey_h unpacked, std::byte* mapped) noexcept
      : link_(std::move(link)),
        address_(key.address),
        region_(key.region),
        token_(key.token),
        unpacked_(unpacked),
        mapped_(mapped) {}
  ~UcxAccess() override { link_->forget(unpacked_); }
  UcxAccess(const UcxAccess&) = delete;
  UcxAccess& operator=(const UcxAccess&) = delete;

  const std::shared_ptr<Link>& link() const noexcept { return link_; }
  bool is_mapped() const noexcept { return mapped_ != nullptr; }
  // An address of the owner's in this process, valid while the link is open; null: it is not mapped.
  std::byte* mapped(std::uint64_t address) const noexcept {
    return mapped_ == nullptr ? nullptr : mapped_ + (address - address_);
  }
  // What asks for bytes at an address of the owner's.
  RequestHeader request(std::uint64_t tag, std::uint64_t address, std::uint64_t bytes) const noexcept {
    return {tag, region_, token_, address - address_, bytes};
  }

 private:
  std::shared_ptr<Link> link_;
  std::uint64_t address_;
  std::uint64_t region_;
  std::uint64_t token_;
  ucp_rkey_h unpacked_;
  std::byte* mapped_;
};

}  // namespace ashlar::backend::ucx
