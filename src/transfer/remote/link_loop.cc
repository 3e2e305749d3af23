#include "transfer/remote/link_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/start_thread.h"
#include "transfer/remote/socket_address.h"

namespace ashlar::transfer {
namespace {

// Numbers of links begin above these.
constexpr std::uint64_t kWakeNumber = 0;
constexpr std::uint64_t kListenerNumber = 1;

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kFlushBytes = std::size_t{1} << 20;  // of one link, before others have their turn
constexpr int kReadsPerTurn = 8;
constexpr auto kLingerTime = std::chrono::seconds(1);

std::string reason_of(int error) {
  return std::generic_category().message(error);
}

}  // namespace

LinkLoop::~LinkLoop() {
  stop();
}

Result<void> LinkLoop::start(OwnedFd listener) {
  listener_ = std::move(listener);
  epoll_ = OwnedFd(::epoll_create1(EPOLL_CLOEXEC));
  event_ = OwnedFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_event wake_event = {.events = EPOLLIN, .data = {.u64 = kWakeNumber}};
  epoll_event listen_event = {.events = EPOLLIN, .data = {.u64 = kListenerNumber}};
  if (!epoll_.valid() || !event_.valid() ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &wake_event) != 0 ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &listen_event) != 0)
    return make_error(ErrorCode::kIo, "an agent cannot watch its sockets: %s", reason_of(errno).c_str());
  chunk_.resize(kChunkBytes);
  return start_thread(&thread_, [this] { run(); });
}

void LinkLoop::wake() noexcept {
  const std::uint64_t one = 1;
  // A full counter wakes too.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

bool LinkLoop::add(const std::shared_ptr<PeerLink>& link, OwnedFd fd) {
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    arrivals_.push_back({link, std::move(fd)});
  }
  wake();
  return true;
}

void LinkLoop::attend(const std::shared_ptr<PeerLink>& link) {
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    attention_.push_back(link);
    if (attention_.size() > 1) return;  // it is awake already
  }
  wake();
}

void LinkLoop::stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  ASHLAR_CHECK(!is_current(), "the IO thread cannot wait for itself");
  wake();
  thread_.join();
}

void LinkLoop::run() {
  Clock& clock = Clock::real();
  const Clock::Duration period = std::clamp<Clock::Duration>(
      settings_.heartbeat / 4, std::chrono::milliseconds(1), std::chrono::milliseconds(250));
  Clock::TimePoint next_tick = clock.now() + period;
  std::array<epoll_event, 64> events;
  while (!stop_seen_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - clock.now());
    const int timeout = static_cast<int>(std::max<std::int64_t>(0, left.count()));
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    for (int i = 0; i < count; ++i) {
      // Copies: the kernel's structure is packed, and no reference binds to a member of it.
      const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
      const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
      if (number == kWakeNumber) {
        std::uint64_t drained = 0;
        [[maybe_unused]] const ssize_t got = ::read(event_.get(), &drained, sizeof drained);
      } else if (number == kListenerNumber) {
        accept_some();
      } else if (const auto found = wires_.find(number); found != wires_.end()) {
        on_event(*found->second, what);
        reap(number);
      }
    }
    take_commands();
    if (const Clock::TimePoint now = clock.now(); now >= next_tick) {
      tick(now);
      next_tick = clock.now() + period;
    }
  }
  for (auto& [number, wire] : wires_) {
    if (wire->phase == Phase::kLingering || wire->phase == Phase::kClosed) continue;
    lose(*wire, make_error(ErrorCode::kUnavailable, "the agent was destroyed"), true);
  }
  wires_.clear();
}

void LinkLoop::take_commands() {
  std::vector<Arrival> arrivals;
  std::vector<std::shared_ptr<PeerLink>> attention;
  {
    MutexLock lock(mu_);
    arrivals.swap(arrivals_);
    attention.swap(attention_);
    stop_seen_ = stopping_;
  }
  for (Arrival& arrival : arrivals) begin(std::move(arrival.link), std::move(arrival.fd), Phase::kConnecting);
  for (const std::shared_ptr<PeerLink>& link : attention) {
    const auto found = wires_.find(link->number());
    if (found == wires_.end()) continue;
    Wire& wire = *found->second;
    if (!link->alive()) {
      end(wire, link->says_bye());
    } else if (wire.phase == Phase::kOpen) {
      flush(wire);
    }
    reap(link->number());
  }
}

void LinkLoop::watch_listener(bool on) {
  if (on == listening_) return;
  listening_ = on;
  epoll_event event = {.events = on ? std::uint32_t{EPOLLIN} : 0u, .data = {.u64 = kListenerNumber}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

void LinkLoop::accept_some() {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    OwnedFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Out of descriptors or memory: the next tick tries again, instead of spinning.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) watch_listener(false);
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return;
    }
    set_no_delay(fd.get());
    const Result<SocketAddress> from = SocketAddress::peer_of(fd.get());
    if (!from) continue;
    const bool trusted = !settings_.secret.empty() || from->is_loopback();
    // The oldest makes room: who sends nothing does not keep others out.
    if (half_open_.size() >= kMaxHalfOpen) {
      const std::uint64_t oldest = *half_open_.begin();
      lose(*wires_.at(oldest),
           make_error(ErrorCode::kCapacity, "%zu newer connections shake hands", half_open_.size()));
      reap(oldest);
    }
    std::shared_ptr<PeerLink> link = host_.make_link(Handshake::Role::kAcceptor, from->to_string());
    const std::uint64_t number = link->number();
    begin(std::move(link), std::move(fd), Phase::kHandshake);
    if (trusted) continue;
    const auto found = wires_.find(number);
    if (found == wires_.end()) continue;
    const Error why =
        make_error(ErrorCode::kInvalidArgument,
                   "this agent has no secret and hears loopback addresses only, not %s; give all "
                   "agents the same secret",
                   from->to_string().c_str());
    found->second->out = Handshake::refusal(why);
    lose(*found->second, why, true);
    reap(number);
  }
}

void LinkLoop::begin(std::shared_ptr<PeerLink> link, OwnedFd fd, Phase phase) {
  const Result<Handshake::Nonce> nonce = Handshake::draw_nonce();
  if (!nonce) return link->die(nonce.error(), false);
  if (!link->alive()) return;
  ASHLAR_CHECK(fd.valid(), "a link begins with a socket");
  auto wire = std::make_unique<Wire>();
  const std::uint64_t number = link->number();
  const Clock::TimePoint now = Clock::real().now();
  wire->handshake.emplace(link->role(), card_, settings_.secret, *nonce);
  wire->phase = phase;
  wire->deadline = now + settings_.silence;
  wire->last_wrote = now;
  link->last_heard = now;
  wire->link = std::move(link);
  wire->fd = std::move(fd);
  wire->events = phase == Phase::kConnecting ? EPOLLOUT : EPOLLIN;
  epoll_event event = {.events = wire->events, .data = {.u64 = number}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wire->fd.get(), &event) != 0)
    return wire->link->die(
        make_error(ErrorCode::kIo, "a socket cannot be watched: %s", reason_of(errno).c_str()), false);
  if (wire->link->role() == Handshake::Role::kAcceptor) half_open_.insert(number);
  ASHLAR_DCHECK(!wires_.contains(number), "a link has one socket");
  wires_.emplace(number, std::move(wire));
}

void LinkLoop::watch(Wire& wire, std::uint32_t events) {
  if (events == wire.events) return;
  wire.events = events;
  epoll_event event = {.events = events, .data = {.u64 = wire.link->number()}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, wire.fd.get(), &event);
}

void LinkLoop::on_event(Wire& wire, std::uint32_t events) {
  if (wire.phase == Phase::kConnecting) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(wire.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0)
      return lose(wire, make_error(ErrorCode::kUnavailable, "%s cannot be connected to: %s",
                                   wire.link->where().c_str(), reason_of(error).c_str()));
    if ((events & EPOLLOUT) == 0) return;
    wire.phase = Phase::kHandshake;
    wire.out = wire.handshake->take_output();
    return flush(wire);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some(wire);
  if (wire.phase != Phase::kClosed && (events & EPOLLOUT) != 0) flush(wire);
}

void LinkLoop::read_some(Wire& wire) {
  for (int i = 0; i < kReadsPerTurn && wire.phase != Phase::kClosed; ++i) {
    const ssize_t got = ::recv(wire.fd.get(), chunk_.data(), chunk_.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0)
      return lose(wire, make_error(ErrorCode::kUnavailable, "the connection to %s failed: %s",
                                   wire.link->where().c_str(), reason_of(errno).c_str()));
    if (got == 0)
      return lose(
          wire, make_error(ErrorCode::kUnavailable, "%s closed the connection", wire.link->where().c_str()));
    wire.link->last_heard = Clock::real().now();
    consume(wire, std::span(chunk_).first(static_cast<std::size_t>(got)));
    if (static_cast<std::size_t>(got) < chunk_.size()) return;
  }
}

void LinkLoop::consume(Wire& wire, std::span<const std::byte> bytes) {
  if (wire.phase == Phase::kHandshake) return shake(wire, bytes);
  if (wire.phase != Phase::kOpen) return;  // lingering: the rest does not matter
  ASHLAR_DCHECK(wire.opener && wire.sealer, "an open link has keys, or needs none");
  wire.opener->feed(bytes);
  open_frames(wire);
}

void LinkLoop::shake(Wire& wire, std::span<const std::byte> bytes) {
  Handshake& handshake = *wire.handshake;
  if (const Result<void> fed = handshake.feed(bytes); !fed) {
    wire.out = handshake.take_output();
    wire.written = 0;
    return lose(
        wire,
        make_error(fed.error().code(), "%s: %s", wire.link->where().c_str(), fed.error().message().c_str()),
        true);
  }
  if (!handshake.done()) {
    const std::vector<std::byte> output = handshake.take_output();
    wire.out.insert(wire.out.end(), output.begin(), output.end());
    return flush(wire);
  }
  half_open_.erase(wire.link->number());
  wire.link->introduce(handshake.peer());
  const bool dialed = wire.link->role() == Handshake::Role::kDialer;
  // A dialer that does not want the link proves nothing; an acceptor says why in a frame.
  const Result<void> admitted = host_.admit(wire.link);
  if (!admitted && dialed) return lose(wire, admitted.error());
  const std::vector<std::byte> proof = handshake.take_output();
  wire.out.insert(wire.out.end(), proof.begin(), proof.end());
  wire.phase = Phase::kOpen;
  wire.sealer.emplace(handshake.sending_key());
  wire.opener.emplace(handshake.receiving_key(), card_.max_message_bytes);
  const std::vector<std::byte> rest(handshake.rest().begin(), handshake.rest().end());
  wire.handshake.reset();
  if (!admitted) return lose(wire, admitted.error(), true);
  flush(wire);
  if (wire.phase != Phase::kOpen) return;
  host_.open_path(wire.link);
  wire.opener->feed(rest);
  open_frames(wire);
}

void LinkLoop::open_frames(Wire& wire) {
  while (wire.phase == Phase::kOpen) {
    Result<std::optional<LinkFrame>> frame = wire.opener->next();
    if (!frame)
      return lose(wire,
                  make_error(frame.error().code(), "%s: %s; the connection is closed",
                             wire.link->where().c_str(), frame.error().message().c_str()),
                  true);
    if (!*frame) break;
    wire.link->receive(*std::move(*frame));
    if (!wire.link->alive()) return end(wire, wire.link->says_bye());
  }
  if (wire.phase == Phase::kOpen) flush(wire);
}

void LinkLoop::flush(Wire& wire) {
  std::size_t sent = 0;
  while (sent < kFlushBytes) {
    if (!has_output(wire)) {
      wire.out.clear();
      wire.written = 0;
      while (wire.phase == Phase::kOpen && wire.out.size() < kChunkBytes) {
        const std::optional<LinkFrame> frame = wire.link->next_out();
        if (!frame) break;
        wire.sealer->seal(*frame, &wire.out);
      }
      if (wire.out.empty()) break;
      wire.last_wrote = Clock::real().now();
    }
    const ssize_t wrote =
        ::send(wire.fd.get(), wire.out.data() + wire.written, wire.out.size() - wire.written, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (wrote < 0) {
      if (wire.phase == Phase::kLingering) {
        wire.phase = Phase::kClosed;
        return;
      }
      return lose(wire, make_error(ErrorCode::kUnavailable, "the connection to %s failed: %s",
                                   wire.link->where().c_str(), reason_of(errno).c_str()));
    }
    wire.written += static_cast<std::size_t>(wrote);
    ASHLAR_DCHECK(wire.written <= wire.out.size(), "more was written than there was");
    sent += static_cast<std::size_t>(wrote);
    wire.last_wrote = Clock::real().now();
  }
  if (wire.phase == Phase::kLingering && !has_output(wire)) ::shutdown(wire.fd.get(), SHUT_WR);
  watch(wire, has_output(wire) || sent >= kFlushBytes ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void LinkLoop::end(Wire& wire, bool politely) {
  if (wire.phase == Phase::kLingering || wire.phase == Phase::kClosed) return;
  const Phase before = std::exchange(wire.phase, Phase::kClosed);
  if (!politely || before == Phase::kConnecting) return;
  if (before == Phase::kOpen) {
    const std::optional<Error> why = wire.link->failure();
    ASHLAR_CHECK(why.has_value(), "only dead links end");
    wire.sealer->seal({FrameKind::kBye, 0, 0, LinkFrame::error_body(*why)}, &wire.out);
  }
  if (!has_output(wire)) return;
  wire.phase = Phase::kLingering;
  wire.deadline = Clock::real().now() + kLingerTime;
  flush(wire);
}

void LinkLoop::lose(Wire& wire, const Error& why, bool politely) {
  if (wire.phase == Phase::kLingering || wire.phase == Phase::kClosed) {
    wire.phase = Phase::kClosed;
    return;
  }
  half_open_.erase(wire.link->number());
  wire.link->die(why, politely);
  end(wire, politely);
}

void LinkLoop::reap(std::uint64_t number) {
  const auto found = wires_.find(number);
  if (found == wires_.end() || found->second->phase != Phase::kClosed) return;
  half_open_.erase(number);
  wires_.erase(found);
}

void LinkLoop::tick(Clock::TimePoint now) {
  watch_listener(true);
  for (auto next = wires_.begin(); next != wires_.end();) {
    Wire& wire = *next->second;
    ++next;
    tick(wire, now);
    reap(wire.link->number());
  }
}

void LinkLoop::tick(Wire& wire, Clock::TimePoint now) {
  const bool accepted = wire.link->role() == Handshake::Role::kAcceptor;
  if (wire.phase == Phase::kLingering && now >= wire.deadline) {
    wire.phase = Phase::kClosed;
  } else if (wire.phase == Phase::kHandshake && accepted && now >= wire.deadline) {
    lose(wire,
         make_error(ErrorCode::kTimeout, "%s did not introduce itself in time", wire.link->where().c_str()));
  }
  if (wire.phase != Phase::kOpen) return;
  // This thread may have been away: what came meanwhile counts.
  if (now - wire.link->last_heard >= settings_.silence) read_some(wire);
  if (wire.phase == Phase::kOpen && now - wire.link->last_heard >= settings_.silence)
    return lose(wire,
                make_error(ErrorCode::kUnavailable, "%s said nothing for %lld ms", wire.link->where().c_str(),
                           static_cast<long long>(settings_.silence / std::chrono::milliseconds(1))));
  if (wire.phase == Phase::kOpen && has_output(wire) && now - wire.last_wrote >= settings_.silence) {
    flush(wire);
    if (wire.phase == Phase::kOpen && has_output(wire) && now - wire.last_wrote >= settings_.silence)
      return lose(
          wire, make_error(ErrorCode::kUnavailable, "%s read nothing for %lld ms", wire.link->where().c_str(),
                           static_cast<long long>(settings_.silence / std::chrono::milliseconds(1))));
  }
  if (wire.phase == Phase::kOpen && now - wire.last_ping >= settings_.heartbeat) {
    wire.last_ping = now;
    wire.link->signal(FrameKind::kPing);
  }
}

}  // namespace ashlar::transfer
