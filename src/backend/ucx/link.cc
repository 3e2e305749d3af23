// The end of a link. An idle one is destroyed with its worker at once: an operation has ended only when the
// peer replied, so nothing is left to flush. When operations are in flight the endpoint is closed by force
// first; UCX 1.13 completes waiting reads only when the worker goes. Without UCX's own failure handling
// (shared memory) endpoints cannot be closed by force, and some callbacks never come; the operations are over
// all the same, because only the worker could have touched their memory.
#include "backend/ucx/link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/ucx/descriptor_gate.h"
#include "backend/ucx/ucx_library.h"

namespace ashlar::backend::ucx {

using transfer::TransferStats;

namespace {

// How often queued transfers are checked for deadlines.
constexpr Clock::Duration kSweepEvery = std::chrono::milliseconds(10);
// Rounds of progress before other links get a turn.
constexpr int kRounds = 32;
// Rounds of progress for an endpoint that is closed by force; it needs a few.
constexpr int kForceRounds = 1000;
// Room for headers in a segment, so that an operation is one message and is not assembled.
constexpr std::uint64_t kHeaderRoom = 4096;

Clock::TimePoint real_now() {
  return Clock::real().now();
}

Error refusal(Verdict verdict, const transfer::AgentIdentity& peer) {
  const std::string who = peer.to_string();
  switch (verdict) {
    case Verdict::kReadOnly:
      return make_error(ErrorCode::kInvalidArgument,
                        "agent %s offers this memory for reading, and refused to write it", who.c_str());
    case Verdict::kNotCopied:
      return make_error(ErrorCode::kIo, "agent %s could not copy its device memory; its log says why",
                        who.c_str());
    case Verdict::kBusy:
      return make_error(ErrorCode::kCapacity, "too many requests wait for device memory of agent %s",
                        who.c_str());
    default:
      return make_error(ErrorCode::kUnavailable, "agent %s does not offer this memory any more", who.c_str());
  }
}

}  // namespace

Link::Link(const UcxOptions& options, std::unique_ptr<UcxWorker> worker, Settings settings)
    : settings_(std::move(settings)),
      strip_bytes_(options.strip_bytes),
      message_bytes_(message_bytes(options)),
      inline_limit_(options.inline_limit),
      worker_(std::move(worker)),
      slots_(options.window) {
  for (Slot& slot : slots_) {
    slot.link = this;
    free_slots_.push_back(&slot);
  }
}

std::uint64_t Link::message_bytes(const UcxOptions& options) noexcept {
  return std::min(options.strip_bytes, options.segment_bytes - kHeaderRoom);
}

Link::~Link() {
  const MutexLock lock(worker_mu_);
  if (condition_ != Condition::kClosed) destroy();
  ASHLAR_CHECK(over_.empty() && active_.empty(), "a link to agent %s goes with unfinished transfers",
               peer().to_string().c_str());
}

Result<std::shared_ptr<Link>> Link::connect(const UcxOptions& options,
                                            const std::shared_ptr<UcxContext>& context,
                                            const WorkerAddress& address, Settings settings) {
  ASHLAR_TRY(std::unique_ptr<UcxWorker> worker, UcxWorker::create(context));
  auto link = std::make_shared<Link>(options, std::move(worker), std::move(settings));
  const MutexLock lock(link->worker_mu_);
  ASHLAR_RETURN_IF_ERROR(link->create_endpoint(address));
  ASHLAR_RETURN_IF_ERROR(link->ask_peer());
  ASHLAR_RETURN_IF_ERROR(link->join_engine(address.process));
  return link;
}

// Over shared memory only the kernel says that a peer has ended.
Result<void> Link::join_engine(std::uint32_t process) {
  epoll_event event{};
  event.data.u64 = number();
  if (epoll_ctl(settings_.epoll, EPOLL_CTL_ADD, worker_->event_fd(), &event) != 0)
    return make_error(ErrorCode::kCapacity, "the worker of a path cannot be watched (errno %d)", errno);
  if (settings_.messages) return {};
  process_ = OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0)));
  event.data.u64 = number() | kProcessEvent;
  event.events = EPOLLIN;
  if (process_.get() < 0 || epoll_ctl(settings_.epoll, EPOLL_CTL_ADD, process_.get(), &event) != 0)
    return make_error(ErrorCode::kUnavailable, "agent %s's process cannot be watched (errno %d)",
                      peer().to_string().c_str(), errno);
  return {};
}

void Link::process_ended() {
  const MutexLock lock(worker_mu_);
  if (condition_ == Condition::kOpen) lose("its process has ended");
}

Result<void> Link::create_endpoint(const WorkerAddress& address) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.err_handler = {endpoint_failed, this};
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(address.port);
  if (settings_.messages) {
    // Not by the address of the worker: UCX 1.13 ends the process of a peer that finds a connection of that
    // kind gone before it is complete (openucx/ucx pull request 8175).
    if (inet_pton(AF_INET, settings_.host.c_str(), &there.sin_addr) != 1)
      return make_error(ErrorCode::kInvalidArgument, "'%s' is not an IPv4 address", settings_.host.c_str());
    parameters.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    parameters.sockaddr = {reinterpret_cast<const sockaddr*>(&there), sizeof there};
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  } else {
    parameters.field_mask |= UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    parameters.address = reinterpret_cast<const ucp_address_t*>(address.packed.data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  }
  const DescriptorGate::Opening alone;
  const ucs_status_t status = ucx().ucp_ep_create(worker_->handle(), &parameters, &endpoint_);
  if (status == UCS_OK) return {};
  endpoint_ = nullptr;
  return make_error(ErrorCode::kUnavailable, "agent %s cannot be reached: %s", peer().to_string().c_str(),
                    reason(status).c_str());
}

bool Link::progress() {
  const DescriptorGate::Closing together;
  return worker_->progress();
}

// A question and its answer: after that the connection is made on both sides.
Result<void> Link::ask_peer() {
  take_messages(*worker_, kAnswer, peer_answered, this);
  take_messages(*worker_, kReply, replied, this);
  const Clock::TimePoint until = real_now() + settings_.connect_limit;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.cb.send = control_ended;
  parameters.user_data = this;
  parameters.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  ucs_status_ptr_t sent = ucx().ucp_am_send_nbx(endpoint_, kQuestion, nullptr, 0, nullptr, 0, &parameters);
  control_pending_ = UCS_PTR_IS_PTR(sent);
  control_status_ = UCS_PTR_IS_PTR(sent) ? UCS_INPROGRESS : UCS_PTR_RAW_STATUS(sent);
  while (!answered_ && !broken_ && (control_pending_ || control_status_ == UCS_OK)) {
    if (progress()) continue;
    if (real_now() >= until) break;
    pollfd wait{worker_->event_fd(), POLLIN, 0};
    if (worker_->arm()) poll(&wait, 1, 10);
  }
  if (answered_ && !broken_) return {};
  if (broken_ || (!control_pending_ && control_status_ != UCS_OK))
    return make_error(ErrorCode::kUnavailable, "agent %s cannot be reached: %s", peer().to_string().c_str(),
                      reason(control_status_).c_str());
  return make_error(ErrorCode::kUnavailable, "agent %s did not answer within %lld ms",
                    peer().to_string().c_str(),
                    static_cast<long long>(settings_.connect_limit / std::chrono::milliseconds(1)));
}

// --- callbacks of UCX: they run inside its calls, under worker_mu_, which clang cannot know ---

void Link::control_ended(void* request, ucs_status_t status, void* user) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  auto* link = static_cast<Link*>(user);
  link->control_pending_ = false;
  link->control_status_ = status;
  ucx().ucp_request_free(request);
}

ucs_status_t Link::peer_answered(void* user, const void*, std::size_t, void*, std::size_t,
                                 const ucp_am_recv_param_t*) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  static_cast<Link*>(user)->answered_ = true;
  return UCS_OK;
}

void Link::endpoint_failed(void* user, ucp_ep_h, ucs_status_t status) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  static_cast<Link*>(user)->lose(status);
}

void Link::operation_ended(void* request, ucs_status_t status, void* user) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  auto* slot = static_cast<Slot*>(user);
  slot->link->sent(*slot, status);
  ucx().ucp_request_free(request);
}

ucs_status_t Link::replied(void* user, const void* header, std::size_t header_length, void* data,
                           std::size_t length,
                           const ucp_am_recv_param_t* parameters) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  auto* link = static_cast<Link*>(user);
  ReplyHeader reply;
  if (header_length != sizeof reply || (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    link->lose(UCS_ERR_INVALID_PARAM);
    return UCS_OK;
  }
  std::memcpy(&reply, header, sizeof reply);
  link->take_reply(reply, {static_cast<const std::byte*>(data), length});
  return UCS_OK;
}

// --- state ---

std::optional<Error> Link::failure() const {
  const MutexLock lock(mu_);
  return failure_;
}

bool Link::fail(const Error& why) {
  const MutexLock lock(mu_);
  if (failure_) return false;
  failure_.emplace(ErrorCode::kUnavailable, why.message());
  failed_.store(true, std::memory_order_release);  // release: pairs with the acquire in look()
  return true;
}

void Link::lose(ucs_status_t status) {
  if (control_status_ == UCS_INPROGRESS) control_status_ = status;
  lose(reason(status));
}

void Link::lose(const std::string& reason) {
  broken_ = true;
  if (!fail(make_error(ErrorCode::kUnavailable, "agent %s is gone: %s", peer().to_string().c_str(),
                       reason.c_str())))
    return;
  const MutexLock lock(mu_);
  report_due_ = true;
}

void Link::report() {
  std::optional<Error> why;
  {
    const MutexLock lock(mu_);
    if (!report_due_) return;
    report_due_ = false;
    why = failure_;
  }
  if (settings_.on_failure) settings_.on_failure(*why);
}

Result<std::shared_ptr<const storage::RemoteAccess>> Link::open(const std::shared_ptr<Link>& self,
                                                                const MemoryKey& key) {
  ucp_rkey_h unpacked = nullptr;
  void* mapped = nullptr;
  {
    const MutexLock lock(worker_mu_);
    if (const std::optional<Error> why = failure()) return *why;
    if (condition_ != Condition::kOpen || broken_)
      return make_error(ErrorCode::kUnavailable, "the path to agent %s is closed",
                        peer().to_string().c_str());
    const bool one_sided = !settings_.messages && key.packed.size() > kPadding;
    const ucs_status_t status =
        one_sided ? ucx().ucp_ep_rkey_unpack(endpoint_, key.packed.data(), &unpacked) : UCS_OK;
    if (status != UCS_OK && status != UCS_ERR_UNREACHABLE)
      return make_error(ErrorCode::kInvalidArgument, "the key of agent %s's memory cannot be used: %s",
                        peer().to_string().c_str(), reason(status).c_str());
    if (status != UCS_OK) unpacked = nullptr;  // messages reach it all the same
    if (unpacked != nullptr && ucx().ucp_rkey_ptr(unpacked, key.address, &mapped) != UCS_OK) {
      ucx().ucp_rkey_destroy(unpacked);
      unpacked = nullptr;
      mapped = nullptr;
    }
    if (unpacked != nullptr) keys_.insert(unpacked);
  }
  return std::shared_ptr<const storage::RemoteAccess>(
      std::make_shared<UcxAccess>(self, key, unpacked, static_cast<std::byte*>(mapped)));
}

void Link::forget(ucp_rkey_h key) {
  const MutexLock lock(worker_mu_);
  if (keys_.erase(key) != 0) ucx().ucp_rkey_destroy(key);
}

bool Link::enqueue(const std::shared_ptr<Job>& job) {
  std::optional<Error> why;
  {
    const MutexLock lock(mu_);
    if (!failure_) {
      inbox_.push_back(job);
      has_inbox_.store(true, std::memory_order_release);  // release: pairs with the acquire in take_inbox()
      return true;
    }
    why = failure_;
  }
  job->state->fail(*why);
  job->state->finish();
  return false;
}

// --- with the worker ---

void Link::watch(bool on) {
  if (watched_ == on) return;
  epoll_event event{};
  event.events = on ? static_cast<std::uint32_t>(EPOLLIN) : 0;
  event.data.u64 = number();
  const int error = epoll_ctl(settings_.epoll, EPOLL_CTL_MOD, worker_->event_fd(), &event);
  ASHLAR_CHECK(error == 0, "the worker of a path cannot be watched (errno %d)", errno);
  watched_ = on;
}

Link::Sleep Link::sleep() {
  const MutexLock lock(worker_mu_);
  if (condition_ == Condition::kClosed) return Sleep::kAsleep;
  // acquire: pairs with the release in fail() and enqueue()
  if (failed_.load(std::memory_order_acquire) && condition_ == Condition::kOpen) return Sleep::kBusy;
  if (has_inbox_.load(std::memory_order_acquire)) return Sleep::kBusy;
  if (drives_ != drives_seen_ && active_.empty() && idle()) {
    drives_seen_ = drives_;
    return Sleep::kLent;
  }
  if (!worker_->arm()) return Sleep::kBusy;
  watch(true);
  return Sleep::kAsleep;
}

Link::Drive Link::drive(const std::shared_ptr<Job>& job) {
  if (!worker_mu_.try_lock()) return Drive::kBusy;
  // acquire: pairs with the release in fail() and enqueue()
  if (condition_ != Condition::kOpen || !active_.empty() || !idle() || !over_.empty() ||
      failed_.load(std::memory_order_acquire) || has_inbox_.load(std::memory_order_acquire)) {
    worker_mu_.unlock();
    return Drive::kBusy;
  }
  bool unfinished = watched_;  // the engine must watch the worker again, later
  watch(false);
  ++drives_;
  active_.push_back(job);
  const Clock::TimePoint until = real_now() + inline_limit_;
  for (unsigned round = 1; over_.empty() && !broken_; ++round) {
    step();
    if (round % 16 == 0 && real_now() >= until) break;
  }
  Jobs over;
  over.swap(over_);
  // acquire: as above
  unfinished = unfinished || over.empty() || broken_ || failed_.load(std::memory_order_acquire);
  worker_mu_.unlock();
  for (const std::shared_ptr<Job>& one : over) one->state->finish();
  return unfinished ? Drive::kUnfinished : Drive::kDone;
}

Link::Look Link::look(std::uint64_t cancels) {
  Look out;
  Jobs over;
  {
    const MutexLock lock(worker_mu_);
    switch (condition_) {
      case Condition::kOpen:
        take_inbox();
        sweep(cancels);
        for (int round = 0; round < kRounds && step(); ++round) out.moved = true;
        // acquire: pairs with the release in fail()
        if (failed_.load(std::memory_order_acquire)) begin_close();
        break;
      case Condition::kClosed:
        break;
    }
    over.swap(over_);
    out.condition = condition_;
    out.waiting = condition_ != Condition::kClosed && (!active_.empty() || !idle());
  }
  out.moved = out.moved || !over.empty();
  for (const std::shared_ptr<Job>& job : over) job->state->finish();
  return out;
}

void Link::cancel_all() {
  const MutexLock lock(worker_mu_);
  take_inbox();
  for (const std::shared_ptr<Job>& job : active_) job->state->cancel();
}

void Link::take_inbox() {
  if (!has_inbox_.load(std::memory_order_acquire)) return;  // acquire: pairs with the release in enqueue()
  const MutexLock lock(mu_);
  for (std::shared_ptr<Job>& job : inbox_) active_.push_back(std::move(job));
  inbox_.clear();
  has_inbox_.store(false, std::memory_order_relaxed);  // relaxed: under the lock of its writers
}

void Link::sweep(std::uint64_t cancels) {
  if (active_.empty()) return;
  const Clock::TimePoint now = real_now();
  if (cancels == cancels_seen_ && now - swept_ < kSweepEvery) return;
  cancels_seen_ = cancels;
  swept_ = now;
  std::deque<std::shared_ptr<Job>> left;
  for (std::shared_ptr<Job>& job : active_) {
    const bool late = !job->started && !job->state->may_continue();
    if (late) job->exhausted = true;
    if (late) {
      over_.push_back(std::move(job));
    } else {
      left.push_back(std::move(job));
    }
  }
  active_.swap(left);
}

bool Link::step() {
  start_operations();
  const bool moved = progress();
  if (moved && !active_.empty()) start_operations();
  return moved;
}

void Link::start_operations() {
  while (!active_.empty() && !broken_) {
    const std::shared_ptr<Job> job = active_.front();
    while (!job->exhausted)
      if (!start_next(job)) return;
    active_.pop_front();
    if (job->in_flight == 0) over_.push_back(job);
  }
}

bool Link::start_next(const std::shared_ptr<Job>& job) {
  // acquire: pairs with the release in fail(); a closed path starts nothing more
  if (free_slots_.empty() || broken_ || failed_.load(std::memory_order_acquire)) return false;
  Operation operation;
  if (!job->state->may_continue() || !job->cursor.next(&operation)) {
    job->exhausted = true;
    return true;
  }
  if (!job->started) job->state->start();
  job->started = true;
  Slot* slot = free_slots_.back();
  free_slots_.pop_back();
  ASHLAR_DCHECK(slot->job == nullptr, "an operation is given a slot that is taken");
  slot->job = job;
  slot->local = job->cursor.puts() ? nullptr : operation.local;
  slot->bytes = operation.bytes;
  slot->sent = false;
  slot->answered = false;
  slot->verdict = Verdict::kNotOffered;
  ++job->in_flight;
  if (std::byte* const there = operation.access->mapped(operation.remote)) {
    copy_mapped(*slot, operation, job->cursor.puts(), there);
  } else {
    ask(*slot, operation, job->cursor.puts());
  }
  return true;
}

// Under the lock, because the end of the link unmaps the memory.
void Link::copy_mapped(Slot& slot, const Operation& operation, bool puts, std::byte* there) {
  std::memcpy(puts ? there : operation.local, puts ? operation.local : there, operation.bytes);
  // release: the peer learns through a socket or a message that the bytes are there
  if (puts) std::atomic_thread_fence(std::memory_order_release);
  slot.answered = true;
  slot.verdict = Verdict::kGranted;
  sent(slot, UCS_OK);
}

void Link::ask(Slot& slot, const Operation& operation, bool puts) {
  // The slot's number, so that the reply finds it, and a count, so that no other reply does.
  const auto number = static_cast<std::uint64_t>(&slot - slots_.data());
  slot.request =
      operation.access->request(++next_tag_ * slots_.size() + number, operation.remote, operation.bytes);
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.cb.send = operation_ended;
  parameters.user_data = &slot;
  parameters.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  ucs_status_ptr_t request =
      ucx().ucp_am_send_nbx(endpoint_, puts ? kPut : kGet, &slot.request, sizeof slot.request,
                            puts ? operation.local : nullptr, puts ? operation.bytes : 0, &parameters);
  if (!UCS_PTR_IS_PTR(request)) sent(slot, UCS_PTR_RAW_STATUS(request));
}

void Link::take_reply(const ReplyHeader& reply, std::span<const std::byte> bytes) {
  Slot& slot = slots_[reply.tag % slots_.size()];
  if (slot.job == nullptr || slot.answered || slot.request.tag != reply.tag) return;  // ended before
  const bool has_bytes = slot.local != nullptr && reply.verdict == Verdict::kGranted;
  if (bytes.size() != (has_bytes ? slot.bytes : 0)) return lose(UCS_ERR_INVALID_PARAM);
  if (has_bytes) std::memcpy(slot.local, bytes.data(), bytes.size());
  slot.answered = true;
  slot.verdict = reply.verdict;
  if (slot.sent) ended(slot, UCS_OK);
}

void Link::sent(Slot& slot, ucs_status_t status) {
  slot.sent = true;
  if (status != UCS_OK || slot.answered) ended(slot, status);
}

// The transfer is over when it starts no more operations; start_operations() sees to the one it starts from.
void Link::ended(Slot& slot, ucs_status_t status) {
  const std::shared_ptr<Job> job = std::move(slot.job);
  ASHLAR_CHECK(job != nullptr && job->in_flight != 0, "UCX ends an operation twice");
  slot.job.reset();
  free_slots_.push_back(&slot);
  --job->in_flight;
  if (status == UCS_OK && slot.verdict != Verdict::kGranted) {
    job->state->fail(refusal(slot.verdict, peer()));
  } else if (status == UCS_OK) {
    TransferStats stats;
    stats.bytes = slot.bytes;
    stats.operations = slot.bytes == 0 ? 0 : 1;
    if (slot.bytes != 0) job->state->moved(stats);
  } else {
    if (condition_ == Condition::kOpen) lose(status);
    job->state->fail(failure().value_or(Error(ErrorCode::kUnavailable, reason(status))));
  }
  const bool queued = !active_.empty() && active_.front() == job;
  if (job->exhausted && job->in_flight == 0 && !queued) over_.push_back(job);
}

// --- the end ---

void Link::begin_close() {
  ASHLAR_CHECK(failed_.load(std::memory_order_acquire), "a link closes without a reason");
  take_inbox();
  const Error why = *failure();
  for (std::shared_ptr<Job>& job : active_) {
    job->state->fail(why);
    job->exhausted = true;
    if (job->in_flight == 0) over_.push_back(std::move(job));
  }
  active_.clear();
  for (const Slot& slot : slots_)
    if (slot.job != nullptr) slot.job->state->fail(why);
  destroy();
}

void Link::close_by_force() {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  parameters.cb.send = control_ended;
  parameters.user_data = this;
  control_pending_ = true;
  if (!UCS_PTR_IS_PTR(ucx().ucp_ep_close_nbx(endpoint_, &parameters))) control_pending_ = false;
  endpoint_ = nullptr;
}

void Link::destroy() {
  ASHLAR_CHECK(worker_ != nullptr, "a link is closed twice");
  condition_ = Condition::kClosed;
  if (settings_.epoll >= 0) epoll_ctl(settings_.epoll, EPOLL_CTL_DEL, worker_->event_fd(), nullptr);
  process_ = OwnedFd();  // and its events
  const DescriptorGate::Closing together;
  // What is not closed by force now would be found with operations pending, which UCX takes for a bug.
  if (endpoint_ != nullptr && settings_.messages && (!idle() || control_pending_)) {
    close_by_force();
    for (int round = 0; control_pending_ && round < kForceRounds; ++round) worker_->progress();
  }
  for (ucp_rkey_h key : keys_) ucx().ucp_rkey_destroy(key);
  keys_.clear();
  worker_.reset();
  for (Slot& slot : slots_)
    if (slot.job != nullptr) ended(slot, UCS_ERR_CANCELED);
  ASHLAR_CHECK(idle(), "a link to agent %s is closed with operations in flight", peer().to_string().c_str());
}

}  // namespace ashlar::backend::ucx
