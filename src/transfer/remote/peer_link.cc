#include "transfer/remote/peer_link.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"

namespace ashlar::transfer {

void PeerLink::introduce(const AgentCard& card) {
  MutexLock lock(mu_);
  ASHLAR_CHECK(!introduced_, "a peer introduces itself once");
  card_ = card;
  introduced_ = true;
}

std::optional<AgentIdentity> PeerLink::known_identity() const {
  MutexLock lock(mu_);
  return introduced_ ? std::optional(card_.identity) : std::nullopt;
}

std::string PeerLink::describe_locked() const {
  if (!introduced_) return "the agent at " + where_;
  return "agent " + (card_.name.empty() ? std::string() : card_.name + " ") + "(" +
         card_.identity.to_string() + ") at " + card_.address;
}

std::string PeerLink::describe() const {
  MutexLock lock(mu_);
  return describe_locked();
}

bool PeerLink::set_path(std::shared_ptr<RemotePath> path) {
  MutexLock lock(mu_);
  if (failure_) return false;
  path_ = std::move(path);
  return true;
}

bool PeerLink::may_establish(bool path_open, bool ready) {
  MutexLock lock(mu_);
  path_open_ = path_open_ || path_open;
  ready_ = ready_ || ready;
  if (failure_ || establishing_ || !path_open_ || (role_ == Handshake::Role::kDialer && !ready_))
    return false;
  establishing_ = true;
  return true;
}

bool PeerLink::establish(const std::shared_ptr<RemotePeer>& peer) {
  bool waiting = false;
  {
    MutexLock lock(mu_);
    if (failure_) return false;
    ASHLAR_CHECK(establishing_ && !established_ && path_ != nullptr, "a link is established once");
    established_ = true;
    peer_ = peer;
    waiting = scheduled_ = !jobs_.empty();
    changed_.notify_all();
  }
  if (!waiting) return true;
  if (const std::shared_ptr<LinkHost> host = host_.lock()) host->schedule(shared_from_this());
  return true;
}

Result<std::shared_ptr<RemotePeer>> PeerLink::wait_established(Clock::TimePoint deadline,
                                                               const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] {
    MutexLock lock(mu_);
    changed_.notify_all();
  });
  MutexLock lock(mu_);
  for (;;) {
    if (failure_) return Unexpected(*failure_);
    if (established_) {
      std::shared_ptr<RemotePeer> found = peer_.lock();
      if (found != nullptr) return found;
      return gone_locked();
    }
    if (stop.stop_requested())
      return make_error(ErrorCode::kCancelled, "connecting to %s was cancelled", where_.c_str());
    if (Clock::real().now() >= deadline)
      return make_error(ErrorCode::kTimeout, "%s did not answer in time", describe_locked().c_str());
    Clock::real().wait_until(changed_, mu_, deadline);
  }
}

std::shared_ptr<RemotePeer> PeerLink::peer() const {
  MutexLock lock(mu_);
  return established_ && !failure_ ? peer_.lock() : nullptr;
}

bool PeerLink::alive() const {
  MutexLock lock(mu_);
  return !failure_;
}

std::optional<Error> PeerLink::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

bool PeerLink::says_bye() const {
  MutexLock lock(mu_);
  return say_bye_;
}

Error PeerLink::gone_locked() const {
  return make_error(ErrorCode::kUnavailable, "%s is gone: %s", describe_locked().c_str(),
                    failure_ ? failure_->message().c_str() : "its agent was destroyed");
}

void PeerLink::die(const Error& why, bool say_bye) {
  std::vector<ClosedCallback> callbacks;
  {
    MutexLock lock(mu_);
    if (failure_) return;
    failure_ = why;
    say_bye_ = say_bye;
    for (const auto& [id, pending] : pending_) {
      pending->answer.emplace(Unexpected(gone_locked()));
      pending->wake.notify_all();
    }
    pending_.clear();
    late_.clear();
    out_.clear();
    out_bytes_ = 0;
    jobs_.clear();
    callbacks.swap(closed_);
    changed_.notify_all();
  }
  if (const std::shared_ptr<LinkHost> host = host_.lock()) {
    host->attend(shared_from_this());
    host->bury(shared_from_this(), why, std::move(callbacks));
  } else {
    for (const ClosedCallback& callback : callbacks) callback(why);
  }
}

void PeerLink::on_closed(ClosedCallback callback) {
  std::optional<Error> why;
  {
    MutexLock lock(mu_);
    if (!failure_) {
      closed_.push_back(std::move(callback));
      return;
    }
    why = failure_;
  }
  callback(*why);
}

std::size_t PeerLink::largest() const {
  MutexLock lock(mu_);
  return introduced_ ? std::min(limits_.max_message_bytes, card_.max_message_bytes)
                     : limits_.max_message_bytes;
}

bool PeerLink::has_room_locked(std::size_t bytes) const {
  return out_bytes_ + bytes <= 2 * std::size_t{limits_.max_message_bytes} + kSlackBytes;
}

void PeerLink::push_locked(LinkFrame frame) {
  out_bytes_ += LinkFrame::kHeadBytes + frame.body.size();
  out_.push_back(std::move(frame));
}

void PeerLink::attend() {
  if (const std::shared_ptr<LinkHost> host = host_.lock()) host->attend(shared_from_this());
}

std::optional<Error> PeerLink::over_locked(std::uint16_t method, Clock::TimePoint deadline,
                                           const std::stop_token& stop) const {
  if (stop.stop_requested())
    return make_error(ErrorCode::kCancelled, "call %u to %s was cancelled", method,
                      describe_locked().c_str());
  if (Clock::real().now() >= deadline)
    return make_error(ErrorCode::kTimeout, "%s did not answer call %u in time", describe_locked().c_str(),
                      method);
  return std::nullopt;
}

Result<std::vector<std::byte>> PeerLink::call(std::uint16_t method, std::span<const std::byte> request,
                                              const RemoteCallLimits& limits, LateAnswer late) {
  const std::size_t most = largest();
  if (request.size() > most)
    return make_error(ErrorCode::kInvalidArgument,
                      "a request of %zu bytes to %s; max_message_bytes of both agents allows %zu",
                      request.size(), describe().c_str(), most);
  const Clock::TimePoint deadline = limits.deadline.value_or(Clock::real().now() + limits_.call_limit);
  const auto pending = std::make_shared<Pending>();
  const std::stop_callback on_stop(limits.stop, [this, &pending] {
    MutexLock lock(mu_);
    pending->wake.notify_all();
    changed_.notify_all();
  });
  std::uint64_t id = 0;
  {
    MutexLock lock(mu_);
    for (;;) {
      if (failure_) return gone_locked();
      if (std::optional<Error> ended = over_locked(method, deadline, limits.stop)) return *std::move(ended);
      if (has_room_locked(request.size())) break;
      Clock::real().wait_until(changed_, mu_, deadline);
    }
    id = next_id_++;
    pending_.emplace(id, pending);
    push_locked({FrameKind::kRequest, method, id, {request.begin(), request.end()}});
  }
  attend();
  MutexLock lock(mu_);
  while (!pending->answer) {
    if (std::optional<Error> ended = over_locked(method, deadline, limits.stop)) {
      abandon_locked(id, *pending, std::move(late));
      return *std::move(ended);
    }
    Clock::real().wait_until(pending->wake, mu_, deadline);
  }
  return *std::move(pending->answer);
}

void PeerLink::abandon_locked(std::uint64_t id, Pending& pending, LateAnswer late) {
  if (!late) {
    pending_.erase(id);
    return;
  }
  pending.late = std::move(late);
  late_.insert(id);
  if (late_.size() <= kMaxLate) return;
  // The oldest: a peer that owes so many answers is not counted on.
  pending_.erase(*late_.begin());
  late_.erase(late_.begin());
}

Result<void> PeerLink::notify(std::uint16_t method, std::span<const std::byte> request) {
  const std::size_t most = largest();
  if (request.size() > most)
    return make_error(ErrorCode::kInvalidArgument,
                      "a notification of %zu bytes to %s; max_message_bytes of both agents allows %zu",
                      request.size(), describe().c_str(), most);
  {
    MutexLock lock(mu_);
    if (failure_) return gone_locked();
    if (!has_room_locked(request.size()))
      return make_error(ErrorCode::kCapacity, "%zu bytes wait to be sent to %s; it reads too slowly",
                        out_bytes_, describe_locked().c_str());
    push_locked({FrameKind::kNotify, method, 0, {request.begin(), request.end()}});
  }
  attend();
  return {};
}

void PeerLink::answer(std::uint64_t id, const Result<std::vector<std::byte>>& result) {
  LinkFrame frame{FrameKind::kAnswer, 0, id, {}};
  const std::size_t most = largest();
  if (!result) {
    frame.kind = FrameKind::kError;
    frame.body = LinkFrame::error_body(result.error());
  } else if (result->size() > most) {
    frame.kind = FrameKind::kError;
    frame.body = LinkFrame::error_body(make_error(
        ErrorCode::kCapacity, "the answer has %zu bytes; max_message_bytes of both agents allows %zu",
        result->size(), most));
  } else {
    frame.body = *result;
  }
  bool stuck = false;
  {
    MutexLock lock(mu_);
    if (failure_) return;
    if (frame.kind == FrameKind::kAnswer && !has_room_locked(frame.body.size())) {
      frame.kind = FrameKind::kError;
      frame.body = LinkFrame::error_body(
          make_error(ErrorCode::kCapacity, "the answer has no room behind %zu bytes that were not read yet",
                     out_bytes_));
    }
    if (has_room_locked(0)) {
      push_locked(std::move(frame));
    } else {
      stuck = true;
    }
  }
  if (stuck) {
    die(make_error(ErrorCode::kCapacity, "it asks without reading answers"));
  } else {
    attend();
  }
}

void PeerLink::signal(FrameKind kind) {
  {
    MutexLock lock(mu_);
    if (failure_ || (kind != FrameKind::kReady && !out_.empty())) return;
    push_locked({kind, 0, 0, {}});
  }
  attend();
}

std::optional<LinkFrame> PeerLink::next_out() {
  MutexLock lock(mu_);
  if (out_.empty()) return std::nullopt;
  LinkFrame frame = std::move(out_.front());
  out_.pop_front();
  ASHLAR_DCHECK(out_bytes_ >= LinkFrame::kHeadBytes + frame.body.size(), "more was sent than queued");
  out_bytes_ -= LinkFrame::kHeadBytes + frame.body.size();
  changed_.notify_all();
  return frame;
}

void PeerLink::receive(LinkFrame frame) {
  switch (frame.kind) {
    case FrameKind::kRequest:
    case FrameKind::kNotify:
      receive_request(std::move(frame));
      break;
    case FrameKind::kAnswer:
    case FrameKind::kError:
      receive_answer(std::move(frame));
      break;
    case FrameKind::kPing:
      signal(FrameKind::kPong);
      break;
    case FrameKind::kPong:
      break;
    case FrameKind::kReady:
      if (const std::shared_ptr<LinkHost> host = host_.lock()) host->peer_ready(shared_from_this());
      break;
    case FrameKind::kBye: {
      const Error said = LinkFrame::error_of(frame.body);
      die(make_error(said.code(), "it said goodbye: %s", said.message().c_str()), false);
      break;
    }
  }
}

void PeerLink::receive_request(LinkFrame frame) {
  const bool asks = frame.kind == FrameKind::kRequest;
  const std::uint64_t id = frame.id;
  std::optional<Error> refused;
  bool schedule = false;
  {
    MutexLock lock(mu_);
    if (failure_) return;
    const std::size_t bytes = frame.body.size();
    if ((asks ? requests_ >= kMaxRequests : notices_ >= kMaxNotices) ||
        job_bytes_ + bytes > 4 * std::size_t{limits_.max_message_bytes}) {
      refused = make_error(ErrorCode::kCapacity,
                           "%u requests and %u notifications of %zu bytes of this peer are in progress; wait "
                           "for answers before sending more",
                           requests_, notices_, job_bytes_);
    } else {
      ++(asks ? requests_ : notices_);
      job_bytes_ += bytes;
      jobs_.push_back(std::move(frame));
      schedule = established_ && !scheduled_;
      scheduled_ = scheduled_ || schedule;
    }
  }
  if (refused && asks) {
    answer(id, Unexpected(*refused));
  } else if (refused) {
    // Nobody would learn that a notification was lost.
    die(*refused);
  } else if (schedule) {
    if (const std::shared_ptr<LinkHost> host = host_.lock()) host->schedule(shared_from_this());
  }
}

void PeerLink::receive_answer(LinkFrame frame) {
  MutexLock lock(mu_);
  const auto found = pending_.find(frame.id);
  if (found == pending_.end()) return;  // its caller stopped waiting
  if (found->second->late) {
    const LateAnswer late = std::move(found->second->late);
    late_.erase(frame.id);
    pending_.erase(found);
    lock.unlock();
    if (frame.kind == FrameKind::kAnswer) late(frame.body);
    return;
  }
  if (frame.kind == FrameKind::kAnswer) {
    found->second->answer.emplace(std::move(frame.body));
  } else {
    found->second->answer.emplace(Unexpected(LinkFrame::error_of(frame.body)));
  }
  found->second->wake.notify_all();
  pending_.erase(found);
}

std::optional<PeerLink::Job> PeerLink::take_job(bool* more) {
  MutexLock lock(mu_);
  *more = false;
  std::shared_ptr<RemotePeer> peer = peer_.lock();
  if (jobs_.empty() || peer == nullptr) {
    scheduled_ = false;
    return std::nullopt;
  }
  ASHLAR_CHECK(established_ && scheduled_, "requests reach handlers of established links only");
  Job job{std::move(jobs_.front()), std::move(peer)};
  jobs_.pop_front();
  *more = scheduled_ = !jobs_.empty();
  return job;
}

void PeerLink::end_job(const LinkFrame& frame) {
  MutexLock lock(mu_);
  ASHLAR_CHECK(
      (frame.kind == FrameKind::kRequest ? requests_ : notices_) > 0 && job_bytes_ >= frame.body.size(),
      "a request ends that was not in progress");
  --(frame.kind == FrameKind::kRequest ? requests_ : notices_);
  job_bytes_ -= frame.body.size();
}

}  // namespace ashlar::transfer
