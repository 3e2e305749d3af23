// PeerLink: one control connection, as all threads share it: what waits to be sent, calls that wait for
// answers, requests that wait for handlers, and why it ended. LinkHost: what a link needs of its agent.
//
// The socket belongs to the agent's IO thread (link_loop.h), which takes frames from here and brings others.
// A link passes through: made, introduced (the handshake is done), admitted (the agent wants it), established
// (its path is open and both sides serve it), dead. Death comes once, from any thread, in any state.
//
// Thread safety: thread-safe, except where a function says that it is the IO thread's.
// Complexity:    queues are bounded: kMaxRequests requests, kMaxNotices notifications and 4 messages of the
//                largest size wait for handlers; two of the largest size and kSlackBytes wait for the socket;
//                kMaxLate answers are heard after their calls ended.
// Invariant:     a dead link never lives again, sends nothing but a bye, and has no pending calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/remote_agent.h"
#include "transfer/remote/frame.h"
#include "transfer/remote/handshake.h"

namespace ashlar::transfer {

using ClosedCallback = std::function<void(const Error&)>;

class LinkHost {
 public:
  virtual ~LinkHost() = default;
  virtual std::shared_ptr<PeerLink> make_link(Handshake::Role role, std::string where) = 0;
  // The peer has proved itself: may the link live? On the IO thread. Errors: why not.
  virtual Result<void> admit(const std::shared_ptr<PeerLink>& link) = 0;
  // Opens the path of an admitted link, on another thread.
  virtual void open_path(const std::shared_ptr<PeerLink>& link) = 0;
  // The peer serves the link. On the IO thread.
  virtual void peer_ready(const std::shared_ptr<PeerLink>& link) = 0;
  // The link has requests for handlers.
  virtual void schedule(const std::shared_ptr<PeerLink>& link) = 0;
  // The link has something for the IO thread: frames to send, or its death.
  virtual void attend(const std::shared_ptr<PeerLink>& link) = 0;
  // The link is dead.
  virtual void bury(const std::shared_ptr<PeerLink>& link, const Error& why,
                    std::vector<ClosedCallback> callbacks) = 0;
};

class PeerLink : public std::enable_shared_from_this<PeerLink> {
 public:
  static constexpr std::uint32_t kMaxRequests = 256;
  static constexpr std::uint32_t kMaxNotices = 4096;
  static constexpr std::size_t kSlackBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxLate = 1024;  // calls that ended, and whose answers are still heard

  struct Limits {
    std::uint32_t max_message_bytes = 0;
    Clock::Duration call_limit = {};
    Clock::TimePoint path_deadline = {};  // until which its path may be opened
  };
  // A request that waits for a handler.
  struct Job {
    LinkFrame frame;
    std::shared_ptr<RemotePeer> peer;
  };

  // `where`: the address at the other end, for messages.
  PeerLink(std::weak_ptr<LinkHost> host, std::uint64_t number, Handshake::Role role, std::string where,
           const Limits& limits)
      : host_(std::move(host)), number_(number), role_(role), where_(std::move(where)), limits_(limits) {}

  std::uint64_t number() const noexcept { return number_; }
  Handshake::Role role() const noexcept { return role_; }
  const std::string& where() const noexcept { return where_; }
  Clock::TimePoint path_deadline() const noexcept { return limits_.path_deadline; }

  // The IO thread's: what the peer said about itself, once.
  void introduce(const AgentCard& card) ASHLAR_EXCLUDES(mu_);
  // The peer's identity, once it is introduced.
  std::optional<AgentIdentity> known_identity() const ASHLAR_EXCLUDES(mu_);
  // Requires: introduced.
  const AgentCard& card() const noexcept { return card_; }
  // "decode-0 (00000000000000a1/…) at 10.0.0.1:7000".
  std::string describe() const ASHLAR_EXCLUDES(mu_);

  // False: the link is dead, and the path is not taken.
  bool set_path(std::shared_ptr<RemotePath> path) ASHLAR_EXCLUDES(mu_);
  // Requires: established.
  const std::shared_ptr<RemotePath>& path() const noexcept { return path_; }
  // Whether both conditions of a dialed link hold now: its path is open, and the peer is ready. An accepted
  // link has no second one. True once only.
  bool may_establish(bool path_open, bool ready) ASHLAR_EXCLUDES(mu_);
  // Requests of the peer reach handlers from now on. False: it is dead.
  bool establish(const std::shared_ptr<RemotePeer>& peer) ASHLAR_EXCLUDES(mu_);
  // Waits until the link is established, which returns its peer, or dead, which returns why. Errors:
  // kTimeout, kCancelled.
  Result<std::shared_ptr<RemotePeer>> wait_established(Clock::TimePoint deadline, const std::stop_token& stop)
      ASHLAR_EXCLUDES(mu_);
  std::shared_ptr<RemotePeer> peer() const ASHLAR_EXCLUDES(mu_);

  bool alive() const ASHLAR_EXCLUDES(mu_);
  // The longest message that both ends take.
  std::size_t largest() const ASHLAR_EXCLUDES(mu_);
  std::optional<Error> failure() const ASHLAR_EXCLUDES(mu_);
  // The first reason stays. `say_bye`: tells the peer.
  void die(const Error& why, bool say_bye = true) ASHLAR_EXCLUDES(mu_);
  bool says_bye() const ASHLAR_EXCLUDES(mu_);
  void on_closed(ClosedCallback callback) ASHLAR_EXCLUDES(mu_);

  Result<std::vector<std::byte>> call(std::uint16_t method, std::span<const std::byte> request,
                                      const RemoteCallLimits& limits, LateAnswer late = {})
      ASHLAR_EXCLUDES(mu_);
  Result<void> notify(std::uint16_t method, std::span<const std::byte> request) ASHLAR_EXCLUDES(mu_);
  // Sends the answer of a request.
  void answer(std::uint64_t id, const Result<std::vector<std::byte>>& result) ASHLAR_EXCLUDES(mu_);
  // Sends a frame without a body that is only worth sending while nothing else is: ping, pong; or kReady.
  void signal(FrameKind kind) ASHLAR_EXCLUDES(mu_);

  // The IO thread's: the next frame to send; a frame that came.
  std::optional<LinkFrame> next_out() ASHLAR_EXCLUDES(mu_);
  void receive(LinkFrame frame) ASHLAR_EXCLUDES(mu_);
  // When the peer was heard last. The IO thread's.
  Clock::TimePoint last_heard = {};

  // The next request, if there is one. *more: others wait, and the link is to be scheduled again.
  std::optional<Job> take_job(bool* more) ASHLAR_EXCLUDES(mu_);
  void end_job(const LinkFrame& frame) ASHLAR_EXCLUDES(mu_);

 private:
  struct Pending {
    std::optional<Result<std::vector<std::byte>>> answer;
    CondVar wake;
    LateAnswer late;  // set when the call has ended: hears the answer in its place
  };

  // Why a call ends now without an answer, if it does.
  std::optional<Error> over_locked(std::uint16_t method, Clock::TimePoint deadline,
                                   const std::stop_token& stop) const ASHLAR_REQUIRES(mu_);
  Error gone_locked() const ASHLAR_REQUIRES(mu_);
  // The caller of a request that was sent does not wait any longer.
  void abandon_locked(std::uint64_t id, Pending& pending, LateAnswer late) ASHLAR_REQUIRES(mu_);
  bool has_room_locked(std::size_t bytes) const ASHLAR_REQUIRES(mu_);
  void push_locked(LinkFrame frame) ASHLAR_REQUIRES(mu_);
  std::string describe_locked() const ASHLAR_REQUIRES(mu_);
  void receive_request(LinkFrame frame) ASHLAR_EXCLUDES(mu_);
  void receive_answer(LinkFrame frame) ASHLAR_EXCLUDES(mu_);
  void attend();

  const std::weak_ptr<LinkHost> host_;
  const std::uint64_t number_;
  const Handshake::Role role_;
  const std::string where_;
  const Limits limits_;

  mutable Mutex mu_;
  CondVar changed_;  // established, dead, or room in out_
  // Written once under mu_, before introduced_ and path_open_; constant after that.
  AgentCard card_;
  std::shared_ptr<RemotePath> path_;
  bool introduced_ ASHLAR_GUARDED_BY(mu_) = false;
  bool path_open_ ASHLAR_GUARDED_BY(mu_) = false;
  bool ready_ ASHLAR_GUARDED_BY(mu_) = false;
  bool establishing_ ASHLAR_GUARDED_BY(mu_) = false;
  bool established_ ASHLAR_GUARDED_BY(mu_) = false;
  bool say_bye_ ASHLAR_GUARDED_BY(mu_) = false;
  std::weak_ptr<RemotePeer> peer_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Error> failure_ ASHLAR_GUARDED_BY(mu_);
  std::vector<ClosedCallback> closed_ ASHLAR_GUARDED_BY(mu_);

  std::deque<LinkFrame> out_ ASHLAR_GUARDED_BY(mu_);
  std::size_t out_bytes_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Pending>> pending_ ASHLAR_GUARDED_BY(mu_);
  std::set<std::uint64_t> late_ ASHLAR_GUARDED_BY(mu_);  // of pending_: those that were abandoned
  std::uint64_t next_id_ ASHLAR_GUARDED_BY(mu_) = 1;

  std::deque<LinkFrame> jobs_ ASHLAR_GUARDED_BY(mu_);
  bool scheduled_ ASHLAR_GUARDED_BY(mu_) = false;
  // Of requests that wait or run.
  std::uint32_t requests_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint32_t notices_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::size_t job_bytes_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::transfer
