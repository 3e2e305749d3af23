#include "backend/nats/jet_publisher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/nats/nats_error.h"
#include "base/start_thread.h"
#include "base/wide.h"

namespace ashlar::backend::nats {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kTickMs = 50;
constexpr milliseconds kRetry(250);
constexpr int kAcksPerTurn = 4096;

// An acknowledgement is {"stream":…,"seq":…,"duplicate":true} or {"error":{"code":…,"description":"…"},…}.
std::string description_of(std::string_view ack) {
  constexpr std::string_view kKey = "\"description\":\"";
  const std::size_t at = ack.find(kKey);
  if (at == std::string_view::npos) return "the server gave no reason";
  const std::size_t begin = at + kKey.size();
  return std::string(ack.substr(begin, std::min(ack.find('"', begin), ack.size()) - begin));
}

bool is_duplicate(std::string_view ack) {
  constexpr std::string_view kKey = "\"duplicate\":";
  const std::size_t at = ack.find(kKey);
  if (at == std::string_view::npos) return false;
  ack.remove_prefix(at + kKey.size());
  ack.remove_prefix(std::min(ack.find_first_not_of(' '), ack.size()));
  return ack.starts_with("true");
}

}  // namespace

Result<std::unique_ptr<JetPublisher>> JetPublisher::create(NatsConnection& connection, Options options) {
  ASHLAR_TRY(JetStream jet_stream, JetStream::create(connection, options.ack_timeout));
  ASHLAR_RETURN_IF_ERROR(jet_stream.ensure_stream(options.stream, options.subjects));
  std::unique_ptr<JetPublisher> self(new JetPublisher(connection, std::move(options), std::move(jet_stream)));
  ASHLAR_RETURN_IF_ERROR(self->start());
  return self;
}

Result<void> JetPublisher::start() {
  Inbox inbox;
  natsStatus status = natsInbox_Create(Out(inbox));
  if (status == NATS_OK) {
    inbox_ = inbox.get();
    status = connection_.subscribe(inbox_ + ".*", acks_);
  }
  if (status == NATS_OK) status = natsSubscription_SetPendingLimits(acks_.get(), -1, -1);
  if (status != NATS_OK) return nats_error(status, "acknowledgements of JetStream");
  generation_ = connection_.reconnects();
  return start_thread(&thread_, [this] { work(); });
}

JetPublisher::~JetPublisher() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

bool JetPublisher::has_room(std::size_t bytes) const {
  return window_.empty() || (window_.size() < options_.max_messages && bytes_ + bytes <= options_.max_bytes);
}

Result<void> JetPublisher::publish(const std::string& subject, const std::string& id,
                                   std::span<const std::byte> bytes) {
  const Time deadline = std::chrono::steady_clock::now() + options_.ack_timeout;
  {
    const MutexLock lock(mu_);
    while (refused_ == 0 && !has_room(bytes.size())) {
      if (!changed_.wait_until(mu_, deadline) && !has_room(bytes.size()))
        return make_error(
            ErrorCode::kUnavailable,
            "JetStream has not stored the last %zu messages within %lld ms; publish the batch again later",
            window_.size(), static_cast<long long>(options_.ack_timeout.count()));
    }
    if (refused_ > 0)
      return make_error(ErrorCode::kUnavailable, "JetStream refuses messages to stream '%s': %s",
                        options_.stream.name.c_str(), reason_.c_str());
  }
  Message message;
  natsStatus status =
      natsMsg_Create(Out(message), subject.c_str(), (inbox_ + "." + std::to_string(next_)).c_str(),
                     reinterpret_cast<const char*>(bytes.data()), static_cast<int>(bytes.size()));
  if (status == NATS_OK) status = natsMsgHeader_Set(message.get(), "Nats-Msg-Id", id.c_str());
  if (status != NATS_OK) return nats_error(status, "a message to JetStream");
  natsMsg* const raw = message.get();
  const bool connected = connection_.is_connected();
  {
    const MutexLock lock(mu_);
    window_.push_back({.message = std::move(message),
                       .bytes = bytes.size(),
                       .sent = std::chrono::steady_clock::now(),
                       .state = connected ? State::kSent : State::kUnsent});
    bytes_ += bytes.size();
    ++next_;
    ASHLAR_CHECK(base_ + window_.size() == next_, "%zu messages from number %llu end before %llu",
                 window_.size(), wide(base_), wide(next_));
    if (!connected) return {};
    sending_ = raw;  // its acknowledgement may arrive before we are done with it
  }
  status = natsConnection_PublishMsg(connection_.get(), raw);
  const MutexLock lock(mu_);
  sending_ = nullptr;
  trim();
  // A message that the connection did not accept is resent when it is due.
  if (status != NATS_OK && !window_.empty() && window_.back().message.get() == raw)
    window_.back().sent = Time();
  changed_.notify_all();
  return {};
}

Result<void> JetPublisher::flush(milliseconds timeout) {
  const Time deadline = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(mu_);
  while (!window_.empty()) {
    ASHLAR_DCHECK(refused_ <= window_.size(), "%zu messages are counted as refused; the window has %zu",
                  std::size_t{refused_}, window_.size());
    if (changed_.wait_until(mu_, deadline) || window_.empty()) continue;
    if (refused_ > 0)
      return make_error(ErrorCode::kUnavailable, "JetStream refuses messages to stream '%s': %s",
                        options_.stream.name.c_str(), reason_.c_str());
    return make_error(ErrorCode::kTimeout, "JetStream has not stored the last %zu messages within %lld ms",
                      window_.size(), static_cast<long long>(timeout.count()));
  }
  return {};
}

std::size_t JetPublisher::in_flight() const {
  const MutexLock lock(mu_);
  return window_.size();
}

void JetPublisher::work() {
  while (!stop_.load()) {
    Message ack;
    natsStatus status = natsSubscription_NextMsg(Out(ack), acks_.get(), kTickMs);
    for (int i = 0; status == NATS_OK || status == NATS_NO_RESPONDERS; ++i) {
      if (status == NATS_OK) {
        read_ack(ack.get());
      } else {
        read_nobody();
      }
      if (i == kAcksPerTurn) break;
      std::uint64_t queued = 0;
      if (natsSubscription_QueuedMsgs(acks_.get(), &queued) != NATS_OK || queued == 0) break;
      status = natsSubscription_NextMsg(Out(ack), acks_.get(), kTickMs);
    }
    resend();
    // With an invalid subscription this would be a busy loop.
    if (status != NATS_OK && status != NATS_TIMEOUT && status != NATS_NO_RESPONDERS) nats_Sleep(kTickMs);
  }
}

void JetPublisher::read_ack(natsMsg* ack) {
  const std::string_view subject = natsMsg_GetSubject(ack);
  const std::string_view text(natsMsg_GetData(ack), static_cast<std::size_t>(natsMsg_GetDataLength(ack)));
  std::uint64_t number = 0;
  const std::size_t dot = subject.rfind('.');
  const auto [end, error] =
      std::from_chars(subject.data() + dot + 1, subject.data() + subject.size(), number);
  if (dot == std::string_view::npos || error != std::errc()) return;
  const bool failed = text.find("\"error\"") != std::string_view::npos || text.empty();
  if (failed) refused_total_.fetch_add(1, std::memory_order_relaxed);
  if (!failed && is_duplicate(text)) duplicates_.fetch_add(1, std::memory_order_relaxed);

  const MutexLock lock(mu_);
  if (number < base_ || number - base_ >= window_.size()) return;  // a duplicate acknowledgement
  Entry& entry = window_[number - base_];
  if (entry.state == State::kStored) return;
  if (failed) {
    if (entry.state != State::kRefused) ++refused_;
    entry.state = State::kRefused;
    reason_ = description_of(text);
  } else {
    ASHLAR_DCHECK(entry.state != State::kRefused || refused_ != 0,
                  "a refused message of the window was not counted");
    if (entry.state == State::kRefused) --refused_;
    entry.state = State::kStored;
    trim();
  }
  changed_.notify_all();
}

// The client does not say which message had no responder, so all in-flight ones are marked. Acknowledgements
// correct those that were stored after all.
void JetPublisher::read_nobody() {
  refused_total_.fetch_add(1, std::memory_order_relaxed);
  const MutexLock lock(mu_);
  for (Entry& entry : window_) {
    if (entry.state != State::kSent) continue;
    entry.state = State::kRefused;
    ++refused_;
  }
  no_stream_ = true;
  reason_ = "no stream takes them, or JetStream is not ready";
  changed_.notify_all();
}

void JetPublisher::trim() {
  while (!window_.empty() && window_.front().state == State::kStored &&
         window_.front().message.get() != sending_) {
    ASHLAR_DCHECK(bytes_ >= window_.front().bytes, "%zu bytes are counted; the oldest message alone has %zu",
                  std::size_t{bytes_}, std::size_t{window_.front().bytes});
    bytes_ -= window_.front().bytes;
    window_.pop_front();
    ++base_;
  }
}

void JetPublisher::resend() {
  const Time now = std::chrono::steady_clock::now();
  if (!connection_.is_connected()) return;
  const std::uint64_t generation = connection_.reconnects();
  const bool again = generation != generation_;
  generation_ = generation;
  const bool retry = now >= next_retry_;
  std::vector<natsMsg*> messages;
  bool no_stream = false;
  {
    const MutexLock lock(mu_);
    if (window_.empty()) return;
    for (Entry& entry : window_) {
      const bool late = entry.state == State::kSent && now - entry.sent >= options_.ack_timeout;
      if (entry.message.get() == sending_ || entry.state == State::kStored) continue;
      if (!again && !late && entry.state != State::kUnsent && !(retry && entry.state == State::kRefused))
        continue;
      entry.sent = now;
      // A refusal stands until the message is stored.
      if (entry.state == State::kUnsent) entry.state = State::kSent;
      messages.push_back(entry.message.get());
    }
    if (retry && refused_ > 0) no_stream = std::exchange(no_stream_, false);
  }
  if (retry) next_retry_ = now + kRetry;
  // Acknowledgements show its success.
  if (no_stream) static_cast<void>(jet_stream_.ensure_stream(options_.stream, options_.subjects).has_value());
  // Only this thread reads acknowledgements, so the messages stay in the window.
  for (natsMsg* message : messages) {
    if (natsConnection_PublishMsg(connection_.get(), message) != NATS_OK) break;
    resent_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace ashlar::backend::nats
