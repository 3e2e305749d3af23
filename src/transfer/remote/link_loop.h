// LinkLoop: the agent's IO thread: accepts connections, shakes hands, moves frames between sockets and links,
// and notices peers that are silent.
//
// All sockets are non-blocking and watched by one epoll. Nothing a peer does or fails to do makes the thread
// wait: an incomplete handshake is dropped after `silence`, and earlier when kMaxHalfOpen newer ones are
// there; a peer that does not read costs its own queue only, and is dead after `silence`.
//
// Thread safety: add() and attend() are thread-safe; the rest is confined to its thread.
// Complexity:    an event is O(its bytes); every quarter of a heartbeat all links are looked at.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "base/owned_fd.h"
#include "transfer/remote/frame.h"
#include "transfer/remote/handshake.h"
#include "transfer/remote/peer_link.h"

namespace ashlar::transfer {

class LinkLoop {
 public:
  static constexpr std::size_t kMaxHalfOpen = 256;

  struct Settings {
    std::string secret;
    Clock::Duration heartbeat;
    Clock::Duration silence;
  };

  // `host` and `card` outlive it.
  LinkLoop(LinkHost& host, const AgentCard& card, Settings settings)
      : host_(host), card_(card), settings_(std::move(settings)) {}
  ~LinkLoop();

  // Errors: kIo; kCapacity: no thread.
  Result<void> start(OwnedFd listener);
  // Takes over a link that is being dialed. False: the loop has stopped.
  bool add(const std::shared_ptr<PeerLink>& link, OwnedFd fd) ASHLAR_EXCLUDES(mu_);
  void attend(const std::shared_ptr<PeerLink>& link) ASHLAR_EXCLUDES(mu_);
  // Says goodbye to all, closes all sockets and ends the thread.
  void stop() ASHLAR_EXCLUDES(mu_);
  bool is_current() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  enum class Phase : std::uint8_t { kConnecting, kHandshake, kOpen, kLingering, kClosed };

  // A socket and where its conversation is.
  struct Wire {
    std::shared_ptr<PeerLink> link;
    OwnedFd fd;
    Phase phase = Phase::kHandshake;
    std::optional<Handshake> handshake;
    std::optional<FrameSealer> sealer;
    std::optional<FrameOpener> opener;
    std::vector<std::byte> out;
    std::size_t written = 0;
    std::uint32_t events = 0;        // that epoll watches
    Clock::TimePoint deadline = {};  // of the handshake of an acceptor, and of lingering
    Clock::TimePoint last_wrote = {};
    Clock::TimePoint last_ping = {};
  };
  struct Arrival {
    std::shared_ptr<PeerLink> link;
    OwnedFd fd;
  };

  void run();
  void take_commands() ASHLAR_EXCLUDES(mu_);
  void accept_some();
  void begin(std::shared_ptr<PeerLink> link, OwnedFd fd, Phase phase);
  void on_event(Wire& wire, std::uint32_t events);
  void read_some(Wire& wire);
  void consume(Wire& wire, std::span<const std::byte> bytes);
  void shake(Wire& wire, std::span<const std::byte> bytes);
  void open_frames(Wire& wire);
  void flush(Wire& wire);
  bool has_output(const Wire& wire) const noexcept { return wire.written < wire.out.size(); }
  // The link is dead or will be: tells the peer where that helps, and closes.
  void end(Wire& wire, bool politely);
  // Kills the link and ends its wire.
  void lose(Wire& wire, const Error& why, bool politely = false);
  void watch(Wire& wire, std::uint32_t events);
  void watch_listener(bool on);
  void reap(std::uint64_t number);
  void tick(Clock::TimePoint now);
  void tick(Wire& wire, Clock::TimePoint now);
  void wake() noexcept;

  LinkHost& host_;
  const AgentCard& card_;
  const Settings settings_;
  OwnedFd epoll_;
  OwnedFd event_;
  OwnedFd listener_;
  std::thread thread_;

  Mutex mu_;
  std::vector<Arrival> arrivals_ ASHLAR_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<PeerLink>> attention_ ASHLAR_GUARDED_BY(mu_);
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;

  // The thread's own.
  std::map<std::uint64_t, std::unique_ptr<Wire>> wires_;
  std::set<std::uint64_t> half_open_;  // accepted, and not introduced yet
  bool listening_ = true;
  bool stop_seen_ = false;
  std::vector<std::byte> chunk_;
};

}  // namespace ashlar::transfer
