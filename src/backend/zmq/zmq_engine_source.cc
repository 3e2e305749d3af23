#include "ashlar/backend/zmq/zmq_engine_source.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/zmq/subscriber.h"

namespace ashlar::backend::zmq {
namespace {

// How often a replay with a hole is requested again from there: the sender drops what its socket has no room
// for.
constexpr int kReplayAttempts = 3;
// Live messages that are taken before a question; more are unread only where the caller was away for long.
constexpr std::size_t kMostReceived = 1 << 17;
// Messages of an answer before live messages are polled again.
constexpr std::size_t kAnswersAtOnce = 256;

feed::EngineMessage message_of(std::uint64_t number, const Frame& topic, const Frame& payload) {
  const std::span<const std::byte> bytes = payload.bytes();
  return {.topic = std::string(topic.text()), .sequence = number, .payload = {bytes.begin(), bytes.end()}};
}

}  // namespace

class ZmqEngineSource::State {
 public:
  explicit State(std::unique_ptr<Subscriber> made) : subscriber(std::move(made)) {}

  Result<feed::EngineReplay> replay(std::uint64_t from);
  // After a connect: moves the messages that the engine keeps to `pending`.
  void look_back();
  bool looks_back() const;  // at all
  // The live messages that were received so far.
  std::deque<feed::EngineMessage> take_received();

  // Asks an engine that was silent for long for everything after the last message. Requires: `pending` is
  // empty.
  void watch();
  // Reads connection events.
  void update();
  // Messages after this connect cannot be joined to those before.
  void go_blind(std::uint64_t connects);

  std::unique_ptr<Subscriber> subscriber;
  std::deque<feed::EngineMessage> pending;
  std::optional<std::uint64_t> last;  // number of the last delivered message
  std::uint64_t looked_back = 0;      // connects covered by look_back()
  std::uint64_t asked = 0;  // connects, up to the one known to belong to the engine run of the last message
  std::uint64_t seen = 0;   // connects
  std::uint64_t blind = 0;  // the last connect that was counted in blind_reconnects
  std::atomic<std::uint64_t> restarts{0};
  std::atomic<std::uint64_t> blind_reconnects{0};
  int attempts = 0;
};

bool ZmqEngineSource::State::looks_back() const {
  const SubscriberOptions& options = subscriber->options();
  return options.replay_on_connect && !options.replay_endpoint.empty() && !options.bind;
}

// An engine that kept running still keeps the last message. One that does not keep it was restarted.
void ZmqEngineSource::State::look_back() {
  const std::uint64_t connects = subscriber->stats().connects;
  if (!looks_back() || connects == looked_back || !subscriber->is_connected()) return;
  // Received before the question, so the answer has those of this engine too. Others are of an engine that is
  // gone, and must not be delivered after messages of this one.
  std::deque<feed::EngineMessage> received = take_received();
  Result<feed::EngineReplay> kept = replay(last.value_or(0));
  if (!kept) pending = std::move(received);
  const bool is_first = !last.has_value();
  if (kept && last && (kept->messages.empty() || kept->messages.front().sequence != *last)) {
    // It keeps more than one message; without the last one it was restarted. An engine disconnected for
    // longer than it keeps messages looks the same, and its state is unknown too.
    if (kept->messages.empty()) kept = replay(0);
    if (kept) {
      ++restarts;
      last.reset();
    }
  }
  const bool tries_again = !kept && ++attempts < kReplayAttempts;
  if (!kept && !is_first && (!tries_again || !pending.empty())) go_blind(connects);
  if (tries_again) return;  // with the next call
  attempts = 0;
  // Messages that did not fit are requested after these are delivered.
  if (!kept || !kept->is_cut) looked_back = connects;
  if (!kept) return;
  asked = connects;
  // Received, and no longer kept.
  while (is_first && !received.empty() && !kept->messages.empty() &&
         received.front().sequence < kept->messages.front().sequence) {
    pending.push_back(std::move(received.front()));
    received.pop_front();
  }
  std::move(kept->messages.begin(), kept->messages.end(), std::back_inserter(pending));
}

void ZmqEngineSource::State::update() {
  subscriber->update();
  const std::uint64_t connects = subscriber->stats().connects;
  if (connects == seen) return;
  const SubscriberOptions& options = subscriber->options();
  if (seen != 0 && options.replay_endpoint.empty() && !options.bind) go_blind(connects);
  seen = connects;
}

void ZmqEngineSource::State::go_blind(std::uint64_t connects) {
  if (connects <= 1) return;  // there is nothing before
  if (std::exchange(blind, connects) == connects) return;
  ++blind_reconnects;
  last.reset();  // whatever is asked from now on is asked from the start
}

std::deque<feed::EngineMessage> ZmqEngineSource::State::take_received() {
  std::deque<feed::EngineMessage> received;
  std::uint64_t number = 0;
  Frame topic;
  Frame payload;
  while (received.size() < kMostReceived && subscriber->receive(number, topic, payload))
    received.push_back(message_of(number, topic, payload));
  return received;
}

// After a connect without look_back(), asks for the last message too: an engine that does not keep it was
// restarted.
void ZmqEngineSource::State::watch() {
  const std::uint64_t connects = subscriber->stats().connects;
  const bool is_sure = connects == asked || connects <= 1;
  const std::uint64_t next = last ? *last + (is_sure ? 1 : 0) : 0;
  std::size_t bytes = 0;
  const auto take = [&](std::uint64_t number, Frame& topic, Frame& payload) {
    const std::optional<std::uint64_t> known = pending.empty() ? last : pending.back().sequence;
    if (known && number <= *known) return true;
    pending.push_back(message_of(number, topic, payload));
    bytes += pending.back().bytes();
    return bytes < subscriber->options().max_replay_bytes;
  };
  const Subscriber::Answer answer = subscriber->watch(next, kAnswersAtOnce, take);
  if (answer == Subscriber::Answer::kNone) return;
  if (answer == Subscriber::Answer::kEmpty && !is_sure && last) {
    ++restarts;
    last.reset();
    subscriber->ask_at_once();
  }
  asked = connects;
}

ZmqEngineSource::ZmqEngineSource(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ZmqEngineSource::~ZmqEngineSource() = default;

Result<std::unique_ptr<ZmqEngineSource>> ZmqEngineSource::create(SubscriberOptions options) {
  ASHLAR_TRY(std::unique_ptr<Subscriber> subscriber, Subscriber::create(std::move(options)));
  return std::unique_ptr<ZmqEngineSource>(
      new ZmqEngineSource(std::make_unique<State>(std::move(subscriber))));
}

Result<std::optional<feed::EngineMessage>> ZmqEngineSource::receive(Clock::Duration timeout) {
  Subscriber& subscriber = *state_->subscriber;
  const Clock::TimePoint deadline = Clock::real().now() + timeout;
  std::uint64_t number = 0;
  Frame topic;
  Frame payload;
  for (;;) {
    state_->update();
    if (state_->pending.empty()) state_->look_back();
    if (!state_->pending.empty()) {
      std::optional<feed::EngineMessage> message = std::move(state_->pending.front());
      state_->pending.pop_front();
      state_->last = message->sequence;
      return message;
    }
    if (subscriber.receive(number, topic, payload)) {
      state_->update();  // its connection may be newer than the last look
      // It may be of an engine that nobody has asked yet whether it is the one of the last message. A later
      // look asks for this one, and could no longer tell.
      const std::uint64_t connects = subscriber.stats().connects;
      if (state_->last && state_->looks_back() && connects != state_->looked_back) state_->go_blind(connects);
      state_->last = number;
      return std::optional(message_of(number, topic, payload));
    }
    state_->watch();
    if (!state_->pending.empty()) continue;
    const Clock::TimePoint now = Clock::real().now();
    if (now >= deadline) break;
    const std::optional<zmq_pollitem_t> answer = subscriber.answer();
    std::array<zmq_pollitem_t, 3> items = {subscriber.messages(), subscriber.changes(),
                                           answer.value_or(zmq_pollitem_t{})};
    poll_items(std::span(items).first(answer ? 3 : 2), std::min(deadline, subscriber.watch_at()) - now);
  }
  subscriber.revive();
  if (subscriber.is_silent()) return subscriber.silent_error();
  if (subscriber.is_connected()) return std::optional<feed::EngineMessage>();
  return make_error(ErrorCode::kUnavailable, "%s is not connected; it connects again by itself",
                    subscriber.options().endpoint.c_str());
}

Result<feed::EngineReplay> ZmqEngineSource::replay(std::uint64_t from) {
  return state_->replay(from);
}

Result<feed::EngineReplay> ZmqEngineSource::State::replay(std::uint64_t from) {
  feed::EngineReplay out;
  std::size_t bytes = 0;
  bool accept_holes = false;
  for (int attempt = 1;; ++attempt) {
    accept_holes = accept_holes || attempt == kReplayAttempts;
    const std::size_t before = out.messages.size();
    bool has_hole = false;
    ASHLAR_RETURN_IF_ERROR(subscriber->replay(from, [&](std::uint64_t number, Frame& topic, Frame& payload) {
      std::vector<feed::EngineMessage>& messages = out.messages;
      if (number < from || (!messages.empty() && number <= messages.back().sequence)) return true;
      if (!messages.empty() && number != messages.back().sequence + 1) has_hole = true;
      if (has_hole && !accept_holes) return true;
      messages.push_back(message_of(number, topic, payload));
      bytes += messages.back().bytes();
      // The caller may know the first message already: at least two make progress.
      out.is_cut = bytes >= subscriber->options().max_replay_bytes && messages.size() > 1;
      return !out.is_cut;
    }));
    if (out.is_cut || !has_hole || accept_holes) break;
    accept_holes = out.messages.size() == before;  // the engine no longer keeps them
    from = out.messages.back().sequence + 1;
  }
  ASHLAR_CHECK(!out.is_cut || out.messages.size() > 1,
               "a replay was cut after %zu messages; its reader makes no progress", out.messages.size());
  return out;
}

std::uint64_t ZmqEngineSource::restarts() const noexcept {
  return state_->restarts.load(std::memory_order_relaxed);
}

bool ZmqEngineSource::has_looked_back() const noexcept {
  return state_->subscriber->is_connected() && state_->asked != 0 && state_->pending.empty() &&
         state_->asked == state_->subscriber->stats().connects;
}

std::uint64_t ZmqEngineSource::blind_reconnects() const noexcept {
  return state_->blind_reconnects.load(std::memory_order_relaxed);
}

std::uint64_t ZmqEngineSource::damaged() const noexcept {
  return state_->subscriber->damaged();
}
std::string ZmqEngineSource::describe() const {
  return state_->subscriber->describe();
}
SubscriberStats ZmqEngineSource::stats() const noexcept {
  return state_->subscriber->stats();
}

}  // namespace ashlar::backend::zmq
