#include "backend/ucx/engine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/ucx/transports.h"
#include "base/start_thread.h"

namespace ashlar::backend::ucx {

using transfer::Transfer;
using transfer::TransferState;

namespace {

constexpr std::uint64_t kWakeEvent = 0;
constexpr std::uint64_t kServiceEvent = 1;
// How often deadlines are checked while transfers are queued, and the service looks after its peers.
constexpr int kTickMilliseconds = 10;
// How often a link is asked to sleep before the thread does without it, and for how long.
constexpr unsigned kStalledRounds = 64;
constexpr int kStalledMilliseconds = 1;
// Rounds of progress before something else gets a turn.
constexpr int kServiceRounds = 32;

// A callback of a transfer that this thread drives may submit the next one: that must not nest.
thread_local bool driving = false;

Clock::TimePoint machine_now() {
  return Clock::real().now();
}

bool watch(int epoll, int descriptor, std::uint64_t number) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

// UCX reads it too.
const char* named_devices() {
  return std::getenv("UCX_NET_DEVICES");  // NOLINT(concurrency-mt-unsafe): nothing sets it
}

// UCX lets whoever reaches its ports write memory: nobody does from elsewhere unless devices are named.
bool is_confined(const UcxOptions& options) {
  return options.devices.empty() && named_devices() == nullptr;
}

UcxOptions with_devices(UcxOptions options) {
  const char* const named = named_devices();
  if (is_confined(options)) {
    options.devices = "lo";
  } else if (options.devices.empty() && named != nullptr && std::string_view(named) != "all") {
    options.devices = named;
  }
  return options;
}

constexpr const char* kAnyHost = "0.0.0.0";

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1";
}

}  // namespace

Engine::Engine(const UcxOptions& options, std::shared_ptr<UcxContext> context, int epoll, int wake)
    : options_(with_devices(options)),
      confined_(is_confined(options)),
      admission_(options.limits, options.clock == nullptr ? Clock::real() : *options.clock),
      context_(std::move(context)),
      shares_memory_(shares_memory(options.transports)),
      machine_(machine_id()),
      epoll_(epoll),
      wake_(wake) {}

Result<std::shared_ptr<Engine>> Engine::create(const UcxOptions& options) {
  ASHLAR_TRY(std::shared_ptr<UcxContext> context, UcxContext::create(with_devices(options)));
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::shared_ptr<Engine> engine(new Engine(options, std::move(context), epoll, wake));  // owns descriptors
  ASHLAR_RETURN_IF_ERROR(engine->open());
  ASHLAR_RETURN_IF_ERROR(start_thread(&engine->thread_, [raw = engine.get()] { raw->run(); }));
  return engine;
}

Result<void> Engine::open() {
  ASHLAR_TRY(std::unique_ptr<UcxWorker> worker, UcxWorker::create(context_));
  if (shares_memory_) {
    ASHLAR_TRY(packed_, worker->address());
  }
  std::unique_ptr<DeviceCopies> devices;
  if (options_.device_executor != nullptr) {
    ASHLAR_TRY(devices, DeviceCopies::create(options_, Link::message_bytes(options_), table_,
                                             [this] { attend(nullptr); }));
  }
  const std::string hosts = host_addresses(options_.devices);
  const bool at_one = !options_.devices.empty() && !hosts.empty() && hosts.find(',') == std::string::npos;
  ASHLAR_TRY(service_, Responder::create(std::move(worker), table_, std::move(devices), options_.reply_limit,
                                         at_one ? hosts : kAnyHost));
  ASHLAR_TRY(address_, encode_address(hosts));
  if (epoll_ < 0 || wake_ < 0 || !watch(epoll_, wake_, kWakeEvent) ||
      !watch(epoll_, service_->worker().event_fd(), kServiceEvent))
    return make_error(ErrorCode::kCapacity, "no descriptors for the ucx transport (errno %d)", errno);
  return {};
}

Result<std::vector<std::byte>> Engine::encode_address(std::string hosts) {
  WorkerAddress address{.machine = machine_,
                        .process = static_cast<std::uint32_t>(getpid()),
                        .transports = options_.transports,
                        .hosts = std::move(hosts)};
  address.port = service_->port();
  address.packed = packed_;
  std::vector<std::byte> out = encode(address);
  if (out.size() > transfer::RemoteTransport::kMaxAddressBytes)
    return make_error(ErrorCode::kUnsupported,
                      "the address has %zu bytes, more than %zu; name fewer network devices", out.size(),
                      transfer::RemoteTransport::kMaxAddressBytes);
  return out;
}

Result<void> Engine::listen_at(const std::string& host) const {
  if (!confined_ || is_loopback(host)) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "who reaches the ports of UCX can write any memory of this process: name the devices of a "
      "network in which everyone is trusted so far (UcxOptions::devices, or UCX_NET_DEVICES) to "
      "let agents listen at %s",
      host.c_str());
}

Engine::~Engine() {
  stop();
  service_.reset();
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
}

void Engine::stop() {
  if (!thread_.joinable()) return;
  ASHLAR_CHECK(thread_.get_id() != std::this_thread::get_id(),
               "a transport is destroyed on its own thread: a callback held the last reference to it");
  admission_.close();
  {
    const MutexLock lock(mu_);
    stopping_ = true;
  }
  attend(nullptr);
  thread_.join();
  admission_.wait_empty();  // callers that waited for room are still leaving
}

void Engine::attend(std::shared_ptr<Link> link) {
  const MutexLock lock(mu_);
  calls_.push_back(std::move(link));
  if (!asleep_) return;
  asleep_ = false;
  const std::uint64_t one = 1;
  ASHLAR_CHECK(write(wake_, &one, sizeof one) == sizeof one,
               "the engine's eventfd refuses a write (errno %d)", errno);
}

Result<std::shared_ptr<Link>> Engine::connect(const transfer::AgentIdentity& peer,
                                              const WorkerAddress& address,
                                              std::function<void(const Error&)> on_failure,
                                              Clock::TimePoint deadline) {
  if (address.transports != options_.transports)
    return make_error(ErrorCode::kInvalidArgument,
                      "agent %s uses the transports '%s', this process '%s'; give both the same list",
                      peer.to_string().c_str(), address.transports.c_str(), options_.transports.c_str());
  const bool same_machine = address.machine == machine_;
  if (confined_ && !same_machine)
    return make_error(ErrorCode::kInvalidArgument,
                      "agent %s is on another machine, and UCX uses loopback alone here: name devices "
                      "(UcxOptions::devices, or UCX_NET_DEVICES)",
                      peer.to_string().c_str());
  const Clock::TimePoint until = std::min(deadline, machine_now() + options_.connect_limit);
  // Only processes of one machine share memory, or have a loopback address in common.
  std::vector<std::string> hosts = split_list(address.hosts);
  if (same_machine) std::reverse(hosts.begin(), hosts.end());
  if (same_machine && shares_memory_) hosts = {""};
  if (!same_machine) std::erase_if(hosts, [](const std::string& host) { return host.starts_with("127."); });
  Result<std::shared_ptr<Link>> link =
      make_error(ErrorCode::kUnavailable, "agent %s names no address at which it can be reached",
                 peer.to_string().c_str());
  for (std::size_t i = 0; i < hosts.size() && !link; ++i) {
    const std::string& host = hosts[i];
    const Clock::Duration left = until - machine_now();
    if (left <= Clock::Duration{}) break;
    // One that does not answer leaves time for the others.
    const Clock::Duration share = left / static_cast<Clock::Duration::rep>(hosts.size() - i);
    std::uint64_t number = 0;
    {
      const MutexLock lock(mu_);
      number = next_link_++;
    }
    link = Link::connect(options_, context_, address,
                         {.peer = peer,
                          .number = number,
                          .epoll = epoll_,
                          .owner = this,
                          .messages = !host.empty(),
                          .host = host,
                          .connect_limit = share,
                          .on_failure = on_failure});
  }
  if (link) attend(*link);
  return link;
}

Result<Transfer> Engine::submit(transfer::TransferRequest request, const std::shared_ptr<Link>& link) {
  if (std::optional<Error> why = link->failure()) return *std::move(why);
  ASHLAR_TRY(std::shared_ptr<TransferState> state, TransferState::admit(std::move(request), admission_));
  const Transfer handle(state);
  const std::uint64_t bytes = state->bytes_total();
  const auto job = std::make_shared<Job>(std::move(state), *link);
  const bool small = bytes <= (job->cursor.is_mapped() ? options_.strip_bytes : options_.inline_bytes);
  if (small && !driving) {
    driving = true;
    const Link::Drive driven = link->drive(job);
    driving = false;
    if (driven == Link::Drive::kUnfinished) attend(link);
    if (driven != Link::Drive::kBusy) return handle;
  }
  if (link->enqueue(job)) attend(link);
  return handle;
}

// --- the thread ---

void Engine::run() {
  Clock::TimePoint last_event = machine_now();
  unsigned stalled = 0;
  for (unsigned round = 1;; ++round) {
    take_calls();
    bool moved = false;
    for (int i = 0; i < kServiceRounds && service_->progress(); ++i) moved = true;
    moved = service_->close_stalled(machine_now()) || moved;
    moved = look_at_links() || moved;
    if (stop_seen_ && wind_up()) return;
    const Clock::TimePoint now = machine_now();
    if (moved) last_event = now;
    if (options_.busy || now - last_event < options_.spin) {
      if (round % 32 == 0) wait(0);
      continue;
    }
    // A link whose peer hangs may refuse to sleep for as long as that lasts: it gets a look now and then.
    const bool all_asleep = put_links_to_sleep();
    stalled = all_asleep || moved ? 0 : stalled + 1;
    if (!service_->worker().arm() || (!all_asleep && stalled < kStalledRounds)) {
      wait(0);
      continue;
    }
    {
      const MutexLock lock(mu_);
      asleep_ = calls_.empty();
      if (!asleep_) continue;
    }
    const bool ticks = !unfinished_.empty() || stop_seen_ || service_->needs_ticks();
    const int tick = ticks ? kTickMilliseconds : -1;
    wait(all_asleep ? tick : kStalledMilliseconds);
    const MutexLock lock(mu_);
    asleep_ = false;
  }
}

void Engine::warm(const std::shared_ptr<Link>& link) {
  if (std::find(hot_.begin(), hot_.end(), link) == hot_.end()) hot_.push_back(link);
}

void Engine::take_calls() {
  std::vector<std::shared_ptr<Link>> calls;
  {
    const MutexLock lock(mu_);
    if (calls_.empty()) return;
    calls.swap(calls_);
    stop_seen_ = stopping_;
  }
  for (const std::shared_ptr<Link>& link : calls) {
    if (link == nullptr) continue;
    links_.emplace(link->number(), link);
    warm(link);
  }
}

bool Engine::look_at_links() {
  bool moved = false;
  for (std::size_t i = 0; i < hot_.size();) {
    const std::shared_ptr<Link> link = hot_[i];
    const Link::Look look = link->look(admission_.cancels());
    link->report();
    moved = moved || look.moved;
    if (look.waiting) {
      unfinished_.insert(link->number());
    } else {
      unfinished_.erase(link->number());
    }
    if (look.condition != Link::Condition::kClosed) {
      ++i;
      continue;
    }
    links_.erase(link->number());
    hot_.erase(hot_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return moved;
}

bool Engine::put_links_to_sleep() {
  std::erase_if(hot_, [&](const std::shared_ptr<Link>& link) {
    const Link::Sleep sleep = link->sleep();
    if (sleep == Link::Sleep::kLent) unfinished_.insert(link->number());
    return sleep != Link::Sleep::kBusy;
  });
  return hot_.empty();
}

void Engine::wait(int milliseconds) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), milliseconds);
  ASHLAR_CHECK(count >= 0 || errno == EINTR, "epoll_wait of the ucx transport (errno %d)", errno);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
    if (number == kWakeEvent) {
      std::uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t drained = read(wake_, &wakes, sizeof wakes);
    } else if (const auto found = links_.find(number & ~Link::kProcessEvent); found != links_.end()) {
      if ((number & Link::kProcessEvent) != 0) found->second->process_ended();
      warm(found->second);
    }
  }
  if (count > 0) return;
  for (const std::uint64_t number : unfinished_)
    if (const auto found = links_.find(number); found != links_.end()) warm(found->second);
}

bool Engine::wind_up() {
  const Clock::TimePoint now = machine_now();
  if (stop_by_ == Clock::TimePoint{}) {
    stop_by_ = now + options_.close_limit;
    for (const auto& [number, link] : links_) link->cancel_all();
  }
  const bool empty = admission_.counters().in_flight == 0;
  if (!links_failed_ && (empty || now >= stop_by_)) {
    links_failed_ = true;
    for (const auto& [number, link] : links_) {
      link->fail(Error(ErrorCode::kUnavailable, "the transport is shutting down"));
      warm(link);
    }
  }
  return links_failed_ && links_.empty() && empty;
}

}  // namespace ashlar::backend::ucx
