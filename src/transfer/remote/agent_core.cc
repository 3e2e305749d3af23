#include "transfer/remote/agent_core.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/byte_io.h"
#include "base/table_seed.h"

namespace ashlar::transfer {
namespace {

// Runs a function when the last holder of an offer drops it.
class OfferEnd {
 public:
  explicit OfferEnd(std::function<void()> end) : end_(std::move(end)) {}
  ~OfferEnd() { end_(); }
  OfferEnd(const OfferEnd&) = delete;
  OfferEnd& operator=(const OfferEnd&) = delete;

 private:
  std::function<void()> end_;
};

// The time that one of `attempts` may take, so that one without an answer leaves some for the others.
Clock::TimePoint end_of_attempt(Clock::TimePoint deadline, std::size_t attempts) {
  const Clock::TimePoint now = Clock::real().now();
  if (attempts == 1 || deadline <= now) return deadline;
  return now + (deadline - now) / static_cast<Clock::Duration::rep>(attempts);
}

std::uint64_t random_identity() noexcept {
  std::uint64_t drawn = 0;
  while (drawn == 0) drawn = random_word();
  return drawn;
}

}  // namespace

RemoteOffer make_remote_offer(std::function<void()> end) {
  return RemoteOffer(std::make_shared<OfferEnd>(std::move(end)));
}

bool AgentCore::Served::enter() {
  MutexLock lock(mu);
  if (withdrawn) return false;
  ++running;
  return true;
}

void AgentCore::Served::leave() {
  MutexLock lock(mu);
  ASHLAR_CHECK(running > 0, "a thread leaves a handler that it did not enter");
  if (--running == 0) idle.notify_all();
}

void AgentCore::Served::withdraw() {
  MutexLock lock(mu);
  withdrawn = true;
  while (running > 0) idle.wait(mu);
}

Result<std::shared_ptr<AgentCore>> AgentCore::create(AgentOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  const auto core = std::make_shared<AgentCore>(std::move(options));
  Result<void> started = core->start();
  if (started) return core;
  core->shutdown();
  return Unexpected(std::move(started).error());
}

Result<void> AgentCore::start() {
  transport_ = std::move(options_.transport);
  if (transport_ == nullptr) {
    ASHLAR_TRY(transport_, LoopbackTransport::create());
  }
  ASHLAR_TRY(const std::vector<SocketAddress> addresses,
             names_.resolve(options_.listen, Clock::real().now() + options_.call_limit));
  const SocketAddress& address = addresses.front();
  if (options_.secret.empty() && !address.is_loopback())
    return make_error(
        ErrorCode::kInvalidArgument,
        "an agent without a secret listens on loopback addresses only, not on %s; give all agents "
        "the same secret",
        options_.listen.c_str());
  if (address.is_any() && options_.advertise.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "peers cannot connect to %s; set `advertise` to the address that they reach",
                      options_.listen.c_str());
  ASHLAR_TRY(OwnedFd listener, address.listen());
  ASHLAR_TRY(const SocketAddress bound, SocketAddress::local_of(listener.get()));
  ASHLAR_RETURN_IF_ERROR(transport_->listen_at(bound.host()));
  card_.identity = {options_.id.value_or(random_identity()), random_identity()};
  card_.name = options_.name;
  card_.address = options_.advertise.empty() ? bound.to_string() : options_.advertise;
  card_.transport = std::string(transport_->name());
  card_.transport_address = transport_->address();
  card_.max_message_bytes = options_.max_message_bytes;
  if (card_.transport.size() > AgentCard::kMaxTransport ||
      card_.transport_address.size() > RemoteTransport::kMaxAddressBytes)
    return make_error(ErrorCode::kInvalidArgument,
                      "transport '%s' has an address of %zu bytes; transports have at most %zu",
                      card_.transport.c_str(), card_.transport_address.size(),
                      RemoteTransport::kMaxAddressBytes);
  loop_ = std::make_unique<LinkLoop>(
      *this, card_, LinkLoop::Settings{options_.secret, options_.heartbeat, options_.silence});
  ASHLAR_RETURN_IF_ERROR(callbacks_.start());
  ASHLAR_RETURN_IF_ERROR(handlers_.start(
      options_.handler_threads,
      [this](const std::shared_ptr<PeerLink>& link, const PeerLink::Job& job) { handle(link, job); }));
  return loop_->start(std::move(listener));
}

void AgentCore::shutdown() {
  ASHLAR_CHECK(!callbacks_.is_current() && !openers_.is_current() && !handlers_.is_current(),
               "an agent must not be destroyed on a thread of its own, that is in a handler or a callback");
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    MutexLock lock(links_mu_);
    closing_ = true;
    links = links_;
    links_changed_.notify_all();
  }
  for (const std::shared_ptr<PeerLink>& link : links)
    link->die(make_error(ErrorCode::kUnavailable, "agent %s was destroyed", card_.name.c_str()));
  handlers_.stop();
  openers_.stop();
  if (loop_ != nullptr) loop_->stop();
  callbacks_.stop();
  std::map<std::uint64_t, std::shared_ptr<Exported>> exports;
  {
    MutexLock lock(sets_mu_);
    exports.swap(exports_);
  }
}

// --- links

std::shared_ptr<PeerLink> AgentCore::make_link(Handshake::Role role, std::string where) {
  return make_link(role, std::move(where), Clock::real().now() + options_.call_limit);
}

std::shared_ptr<PeerLink> AgentCore::make_link(Handshake::Role role, std::string where,
                                               Clock::TimePoint deadline) {
  // relaxed: only the number itself matters.
  const std::uint64_t number = next_link_.fetch_add(1, std::memory_order_relaxed);
  return std::make_shared<PeerLink>(
      weak_from_this(), number, role, std::move(where),
      PeerLink::Limits{options_.max_message_bytes, options_.call_limit, deadline});
}

// The agent with the smaller identity chooses among links to one incarnation: the first that it admitted.
// As acceptor it refuses a second one, unless the first has been silent for two heartbeats: then the peer has
// lost it, and only this side does not know yet. A dialer that has a link already does not prove itself, so
// that the other side never admits a second one for it. The agent with the larger identity therefore believes
// the chooser: a link that the chooser dialed replaces all that it has.
Result<void> AgentCore::admit(const std::shared_ptr<PeerLink>& link) {
  const AgentCard& card = link->card();
  ASHLAR_CHECK(card_.identity != card.identity, "the handshake refuses the agent itself");
  const bool chooses = card_.identity < card.identity;
  std::vector<std::shared_ptr<PeerLink>> replaced;
  {
    MutexLock lock(links_mu_);
    if (closing_) return make_error(ErrorCode::kUnavailable, "agent %s was destroyed", card_.name.c_str());
    const Clock::TimePoint now = Clock::real().now();
    for (const std::shared_ptr<PeerLink>& other : links_) {
      if (!other->alive()) continue;
      const AgentIdentity& identity = other->card().identity;
      if (identity == card.identity) {
        const bool fresh = now - other->last_heard < 2 * options_.heartbeat;
        if (link->role() == Handshake::Role::kDialer || (chooses && fresh))
          return make_error(ErrorCode::kAlreadyExists, "the two agents are connected already");
        replaced.push_back(other);
      } else if (other->card().address == card.address) {
        replaced.push_back(other);
      }
    }
    if (links_.size() - replaced.size() >= options_.max_peers)
      return make_error(ErrorCode::kCapacity, "agent %s has %u peers, its max_peers", card_.name.c_str(),
                        options_.max_peers);
    links_.push_back(link);
  }
  for (const std::shared_ptr<PeerLink>& other : replaced) {
    const bool same = other->card().identity == card.identity;
    other->die(make_error(same ? ErrorCode::kAlreadyExists : ErrorCode::kUnavailable,
                          same ? "another connection to incarnation %s replaces this one"
                               : "incarnation %s has taken its address",
                          card.identity.to_string().c_str()));
  }
  return {};
}

void AgentCore::open_path(const std::shared_ptr<PeerLink>& link) {
  const bool posted = openers_.post([this, link] {
    if (!link->alive()) return;
    Result<std::shared_ptr<RemotePath>> path = transport_->connect(
        link->card().identity, link->card().transport_address,
        [weak = std::weak_ptr<PeerLink>(link)](const Error& why) {
          if (const std::shared_ptr<PeerLink> living = weak.lock())
            living->die(make_error(ErrorCode::kUnavailable, "its path failed: %s", why.message().c_str()));
        },
        link->path_deadline());
    if (!path)
      return link->die(make_error(path.error().code(), "the transport '%s' does not reach %s: %s",
                                  card_.transport.c_str(), link->describe().c_str(),
                                  path.error().message().c_str()));
    if (!link->set_path(*path)) return (*path)->close(*link->failure());
    if (link->may_establish(true, false)) publish(link);
  });
  if (!posted) link->die(make_error(ErrorCode::kCapacity, "no thread to open the path to it"));
}

void AgentCore::peer_ready(const std::shared_ptr<PeerLink>& link) {
  if (link->role() == Handshake::Role::kAcceptor)
    return link->die(make_error(ErrorCode::kCorruption, "a dialer does not say ready"));
  if (link->may_establish(false, true)) publish(link);
}

void AgentCore::publish(const std::shared_ptr<PeerLink>& link) {
  const auto peer = std::make_shared<RemotePeer>(link);
  {
    MutexLock lock(links_mu_);
    if (closing_) return;
    peers_.push_back(peer);
  }
  const bool lives = link->establish(peer);
  {
    MutexLock lock(links_mu_);
    if (!lives) std::erase(peers_, peer);
    links_changed_.notify_all();
  }
  if (!lives) return;
  if (link->role() == Handshake::Role::kAcceptor) link->signal(FrameKind::kReady);
  callbacks_.post([this, peer] {
    std::vector<std::shared_ptr<Served>> watchers;
    {
      MutexLock lock(serving_mu_);
      watchers = watchers_;
    }
    for (const std::shared_ptr<Served>& watcher : watchers) {
      if (!watcher->enter()) continue;
      watcher->callback(peer);
      watcher->leave();
    }
  });
}

void AgentCore::bury(const std::shared_ptr<PeerLink>& link, const Error& why,
                     std::vector<ClosedCallback> callbacks) {
  std::vector<std::shared_ptr<RemotePeer>> peers;
  bool admitted = false;
  {
    MutexLock lock(links_mu_);
    admitted = std::erase(links_, link) > 0;
    const auto ends = std::ranges::partition(
        peers_, [&](const std::shared_ptr<RemotePeer>& peer) { return peer->link_ != link; });
    peers.assign(ends.begin(), ends.end());
    peers_.erase(ends.begin(), ends.end());
    links_changed_.notify_all();
  }
  if (!admitted && callbacks.empty() && peers.empty()) return;
  // Paths and sets end on the thread of callbacks: they may take locks of the transport.
  auto last = [this, link, why, peers = std::move(peers), callbacks = std::move(callbacks)]() mutable {
    if (link->path() != nullptr) link->path()->close(why);
    SetList gone;
    {
      MutexLock lock(sets_mu_);
      for (auto next = imports_.begin(); next != imports_.end();) {
        const auto at = next++;
        if (at->second->peer()->link_ != link) continue;
        gone.push_back(std::move(at->second));
        imports_.erase(at);
      }
    }
    for (const ClosedCallback& callback : callbacks) callback(why);
  };
  if (!callbacks_.post(last)) last();
}

template <class Match>
std::shared_ptr<RemotePeer> AgentCore::find_peer(const Match& match) const {
  MutexLock lock(links_mu_);
  // The latest first: an older one at the same address is about to die.
  for (auto at = peers_.rbegin(); at != peers_.rend(); ++at)
    if ((*at)->alive() && match(**at)) return *at;
  return nullptr;
}

std::vector<std::shared_ptr<RemotePeer>> AgentCore::peers() const {
  std::vector<std::shared_ptr<RemotePeer>> out;
  MutexLock lock(links_mu_);
  std::ranges::copy_if(peers_, std::back_inserter(out),
                       [](const std::shared_ptr<RemotePeer>& peer) { return peer->alive(); });
  return out;
}

std::shared_ptr<RemotePeer> AgentCore::wait_peer(const AgentIdentity& identity, Clock::TimePoint until,
                                                 const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] {
    MutexLock lock(links_mu_);
    links_changed_.notify_all();
  });
  for (;;) {
    std::shared_ptr<RemotePeer> found =
        find_peer([&](const RemotePeer& peer) { return peer.identity() == identity; });
    if (found != nullptr) return found;
    MutexLock lock(links_mu_);
    // A link that is on its way is worth waiting for; none: the other side kept one that is dead by now.
    if (closing_ || stop.stop_requested() || Clock::real().now() >= until) return nullptr;
    Clock::real().wait_until(
        links_changed_, links_mu_,
        std::min(until, Clock::real().now() + Clock::Duration(std::chrono::milliseconds(10))));
  }
}

Result<std::shared_ptr<RemotePeer>> AgentCore::dial(const SocketAddress& address, Clock::TimePoint deadline,
                                                    const std::stop_token& stop) {
  if (options_.secret.empty() && !address.is_loopback())
    return make_error(
        ErrorCode::kInvalidArgument,
        "an agent without a secret connects to loopback addresses only, not to %s; give all agents "
        "the same secret",
        address.to_string().c_str());
  ASHLAR_TRY(OwnedFd fd, address.connect());
  const std::shared_ptr<PeerLink> link = make_link(Handshake::Role::kDialer, address.to_string(), deadline);
  if (!loop_->add(link, std::move(fd)))
    return make_error(ErrorCode::kUnavailable, "agent %s was destroyed", card_.name.c_str());
  Result<std::shared_ptr<RemotePeer>> peer = link->wait_established(deadline, stop);
  if (peer) return peer;
  link->die(peer.error());
  const std::optional<AgentIdentity> identity = link->known_identity();
  if (peer.error().code() == ErrorCode::kAlreadyExists && identity)
    return wait_peer(*identity, std::min(deadline, Clock::real().now() + options_.heartbeat), stop);
  return peer;
}

Result<std::shared_ptr<RemotePeer>> AgentCore::connect(std::string_view address,
                                                       const RemoteCallLimits& limits,
                                                       const AgentIdentity* wanted) {
  const Clock::TimePoint deadline = limits.deadline.value_or(Clock::real().now() + options_.call_limit);
  ASHLAR_RETURN_IF_ERROR(SocketAddress::check(address));
  std::shared_ptr<RemotePeer> known = find_peer([&](const RemotePeer& peer) {
    return wanted != nullptr ? peer.identity() == *wanted : peer.address() == address;
  });
  if (known != nullptr) return known;
  ASHLAR_TRY(const std::vector<SocketAddress> addresses, names_.resolve(address, deadline, limits.stop));
  for (;;) {
    Error last(ErrorCode::kUnavailable, "no address");
    bool again = false;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      Result<std::shared_ptr<RemotePeer>> peer =
          dial(addresses[i], end_of_attempt(deadline, addresses.size() - i), limits.stop);
      if (peer && *peer != nullptr) return peer;
      again = again || peer.has_value();
      if (!peer && peer.error().code() == ErrorCode::kCancelled) return peer;
      if (!peer) last = std::move(peer).error();
    }
    if (!again && last.code() == ErrorCode::kTimeout) return Error(ErrorCode::kUnavailable, last.message());
    if (!again) return last;
    if (limits.stop.stop_requested())
      return make_error(ErrorCode::kCancelled, "connecting to %s was cancelled",
                        std::string(address).c_str());
    if (Clock::real().now() >= deadline)
      return make_error(ErrorCode::kUnavailable,
                        "the agent at %s keeps another connection to this one, which is not there",
                        std::string(address).c_str());
  }
}

// --- handlers

Result<RemoteOffer> AgentCore::serve(std::uint16_t method, RemoteHandler handler) {
  if (method < RemoteAgent::kFirstMethod || !handler)
    return make_error(ErrorCode::kInvalidArgument, "method %u with%s a handler; methods begin at %u", method,
                      handler ? "" : "out", RemoteAgent::kFirstMethod);
  const auto served = std::make_shared<Served>();
  served->handler = std::move(handler);
  {
    MutexLock lock(serving_mu_);
    if (!served_.emplace(method, served).second)
      return make_error(ErrorCode::kAlreadyExists, "method %u has a handler already", method);
  }
  return make_remote_offer([weak = weak_from_this(), method, served] {
    if (const std::shared_ptr<AgentCore> core = weak.lock()) {
      MutexLock lock(core->serving_mu_);
      core->served_.erase(method);
    }
    served->withdraw();
  });
}

Result<RemoteOffer> AgentCore::on_peer(PeerCallback callback) {
  if (!callback) return make_error(ErrorCode::kInvalidArgument, "on_peer() needs a callback");
  const auto watcher = std::make_shared<Served>();
  watcher->callback = std::move(callback);
  {
    MutexLock lock(serving_mu_);
    watchers_.push_back(watcher);
  }
  return make_remote_offer([weak = weak_from_this(), watcher] {
    if (const std::shared_ptr<AgentCore> core = weak.lock()) {
      MutexLock lock(core->serving_mu_);
      std::erase(core->watchers_, watcher);
    }
    watcher->withdraw();
  });
}

void AgentCore::handle(const std::shared_ptr<PeerLink>& link, const PeerLink::Job& job) {
  const LinkFrame& frame = job.frame;
  Result<std::vector<std::byte>> result = make_error(
      ErrorCode::kUnsupported, "agent %s has no handler for method %u", card_.name.c_str(), frame.method);
  if (frame.method < RemoteAgent::kFirstMethod) {
    result = own_method(job);
  } else {
    std::shared_ptr<Served> served;
    {
      MutexLock lock(serving_mu_);
      if (const auto found = served_.find(frame.method); found != served_.end()) served = found->second;
    }
    if (served != nullptr && served->enter()) {
      result = served->handler(job.peer, frame.body);
      served->leave();
    }
  }
  if (frame.kind == FrameKind::kRequest) {
    link->answer(frame.id, result);
  } else if (!result) {
    ASHLAR_LOG(LogLevel::kWarn, "remote", "a notification (method %u) of %s failed: %s", frame.method,
               link->describe().c_str(), result.error().message().c_str());
  }
}

}  // namespace ashlar::transfer
