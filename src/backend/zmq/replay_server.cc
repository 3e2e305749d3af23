#include "backend/zmq/replay_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/zmq/wire.h"

namespace ashlar::backend::zmq {
namespace {

constexpr std::size_t kRequestsPerStep = 64;
constexpr std::size_t kMessagesPerStep = 1024;
// Overhead of a message beside its bytes.
constexpr std::size_t kOverhead = 192;
static_assert(kSnapshotRequest != ~std::uint64_t{0}, "all ones mark the end of a reply");

}  // namespace

ReplayServer::ReplayServer(Socket router, const EnginePublisherOptions& options)
    : router_(std::move(router)),
      limit_(options.buffer_steps),
      byte_limit_(options.buffer_bytes),
      patience_(options.replay_patience),
      make_snapshot_(options.snapshot),
      snapshot_budget_(std::make_shared<ByteBudget>(options.snapshot_bytes)) {}

void ReplayServer::keep(std::uint64_t number, const Frame& topic, const Frame& payload) {
  if (kept_.empty()) first_ = number;
  ASHLAR_CHECK(number == first_ + kept_.size(), "message %llu follows %llu: a hole",
               static_cast<unsigned long long>(number),
               static_cast<unsigned long long>(first_ + kept_.size() - 1));
  kept_.push_back({.topic = topic.shared(), .payload = payload.shared()});
  bytes_ += payload.size() + kOverhead;
  while (kept_.size() > limit_ || (bytes_ > byte_limit_ && kept_.size() > 1)) forget_oldest();
}

void ReplayServer::forget_oldest() {
  ASHLAR_DCHECK(bytes_ >= kept_.front().payload.size() + kOverhead,
                "%zu bytes are kept, the oldest message has more", bytes_);
  bytes_ -= kept_.front().payload.size() + kOverhead;
  kept_.pop_front();
  ++first_;
}

void ReplayServer::take_requests() {
  for (std::size_t i = 0; i < kRequestsPerStep; ++i) {
    const std::size_t count = router_.receive(request_, 3);
    if (count == 0) break;
    accept(request_, count);
  }
}

void ReplayServer::send_replies(std::uint64_t next) {
  if (replies_.empty()) return;
  const Clock::TimePoint now = Clock::real().now();
  for (auto reply = replies_.begin(); reply != replies_.end();) {
    if (!reply->end) reply->end = next;
    Progress progress = Progress::kDone;
    if (reply->wants_snapshot) progress = prepare_snapshot(*reply, next);
    if (progress == Progress::kDone) progress = advance(*reply);
    switch (progress) {
      case Progress::kDone:
        replays.fetch_add(1);
        reply = replies_.erase(reply);
        break;
      case Progress::kGone:
        dropped_replays.fetch_add(1);
        reply = replies_.erase(reply);
        break;
      case Progress::kLater:
        if (now >= reply->give_up) {
          dropped_replays.fetch_add(1);
          reply = replies_.erase(reply);
        } else {
          ++reply;
        }
        break;
    }
  }
  // A request after the next message gets a newer snapshot.
  if (replies_.empty() || snapshot_at_ != next) snapshot_.clear();
}

ReplayServer::Progress ReplayServer::prepare_snapshot(Reply& reply, std::uint64_t next) {
  if (snapshot_.empty() || snapshot_at_ != next) {
    snapshot_.clear();
    const std::size_t used = snapshot_budget_->used();
    // Its size is not known in advance; assume that of the last one.
    if (used != 0 && used + snapshot_size_ > snapshot_budget_->limit()) return Progress::kLater;
    try {
      std::vector<std::vector<std::byte>> parts = make_snapshot_();
      snapshot_size_ = 0;
      for (std::vector<std::byte>& part : parts) {
        snapshot_size_ += part.size();
        snapshot_.push_back(Frame::of(std::move(part), snapshot_budget_));
      }
    } catch (...) {  // the snapshot callback has no memory now; the reader asks again
      snapshot_.clear();
      return Progress::kGone;
    }
    snapshot_at_ = next;
  }
  ASHLAR_DCHECK(snapshot_at_ == next, "a reply at message %llu gets the snapshot of another moment",
                static_cast<unsigned long long>(next));
  for (const Frame& part : snapshot_) reply.snapshot.push_back(part.shared());
  reply.wants_snapshot = false;
  return Progress::kDone;
}

void ReplayServer::accept(std::vector<Frame>& request, std::size_t count) {
  const std::array<FrameBytes, 3> frames = {request[0].bytes(), count > 1 ? request[1].bytes() : FrameBytes(),
                                            count > 2 ? request[2].bytes() : FrameBytes()};
  const std::optional<std::uint64_t> asked = requested_number(frames, count);
  if (!asked) {
    invalid_requests.fetch_add(1);
    return;
  }
  if (replies_.size() >= kMaxReplies) {
    dropped_replays.fetch_add(1);
    return;
  }
  const std::uint64_t number = *asked;
  Reply reply;
  reply.identity = std::move(request[0]);
  reply.next = number;
  reply.give_up = Clock::real().now() + patience_;
  if (number == kSnapshotRequest) {
    snapshots.fetch_add(1);
    reply.wants_snapshot = static_cast<bool>(make_snapshot_);
  }
  replies_.push_back(std::move(reply));
}

ReplayServer::Progress ReplayServer::advance(Reply& reply) {
  const auto moved = [&] { reply.give_up = Clock::real().now() + patience_; };
  ASHLAR_DCHECK(reply.end && !reply.wants_snapshot,
                "a reply is sent before its end and its snapshot are known");
  std::size_t sent = 0;
  for (; !reply.snapshot.empty() && sent < kMessagesPerStep; ++sent) {
    const Progress progress =
        send(reply.identity, Frame(), Frame::of_number(*reply.end), reply.snapshot.front().shared());
    if (progress != Progress::kDone) return progress;
    reply.snapshot.pop_front();
    moved();
  }
  for (; reply.next < *reply.end && sent < kMessagesPerStep; ++sent) {
    reply.next = std::max(reply.next, first_);
    if (reply.next >= first_ + kept_.size()) {
      reply.next = *reply.end;
      break;
    }
    const Kept& kept = kept_[reply.next - first_];
    const Progress progress =
        send(reply.identity, kept.topic.shared(), Frame::of_number(reply.next), kept.payload.shared());
    if (progress != Progress::kDone) return progress;
    ++reply.next;
    replayed.fetch_add(1);
    moved();
  }
  if (!reply.snapshot.empty() || reply.next < *reply.end) return Progress::kLater;
  return send(reply.identity, Frame(), Frame::of_number(~std::uint64_t{0}), Frame());
}

// A message once begun has room to its end: the library counts whole ones.
ReplayServer::Progress ReplayServer::send(const Frame& identity, Frame topic, Frame number, Frame payload) {
  if (!router_.send(identity.shared(), ZMQ_SNDMORE | ZMQ_DONTWAIT))
    return zmq_errno() == EAGAIN ? Progress::kLater : Progress::kGone;
  const bool whole = router_.send(Frame(), ZMQ_SNDMORE | ZMQ_DONTWAIT) &&
                     router_.send(topic, ZMQ_SNDMORE | ZMQ_DONTWAIT) &&
                     router_.send(number, ZMQ_SNDMORE | ZMQ_DONTWAIT) && router_.send(payload, ZMQ_DONTWAIT);
  return whole ? Progress::kDone : Progress::kGone;
}

}  // namespace ashlar::backend::zmq
