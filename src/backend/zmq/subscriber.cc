#include "backend/zmq/subscriber.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "backend/zmq/wire.h"

namespace ashlar::backend::zmq {
namespace {

constexpr int kWatched = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                         ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                         ZMQ_EVENT_DISCONNECTED;
constexpr int kHandshakeMs = 5000;
// After this many times reconnect_max without a connection, assume that ZeroMQ gave up.
constexpr int kPatience = 4;
// The largest duration added to the current time.
constexpr std::chrono::hours kLongest(24 * 3650);
// Until the first question after a connect; doubles with every answer.
constexpr Clock::Duration kFirstQuiet = std::chrono::milliseconds(50);

int milliseconds(Clock::Duration duration) {
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::min<std::int64_t>(count, 1 << 30));
}

long long whole_ms(Clock::Duration duration) {
  return static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

bool is_inproc(const std::string& endpoint) {
  return endpoint.starts_with("inproc://");
}

std::optional<ReplyHead> head_of(const std::vector<Frame>& reply, std::size_t count) {
  std::array<FrameBytes, 4> frames;
  for (std::size_t i = 0; i < std::min<std::size_t>(count, 4); ++i) frames[i] = reply[i].bytes();
  return reply_head(frames, count);
}

}  // namespace

Result<void> SubscriberOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(check_endpoint("endpoint", endpoint));
  if (!replay_endpoint.empty()) ASHLAR_RETURN_IF_ERROR(check_endpoint("replay_endpoint", replay_endpoint));
  if (hwm < 0) return make_error(ErrorCode::kInvalidArgument, "hwm is %d; 0 means no limit", hwm);
  if (max_message_bytes < 1 || max_replay_bytes < 1)
    return make_error(ErrorCode::kInvalidArgument,
                      "max_message_bytes and max_replay_bytes must be more than 0");
  if (heartbeat < Clock::Duration::zero() || heartbeat_timeout < heartbeat)
    return make_error(ErrorCode::kInvalidArgument,
                      "heartbeat must not be negative, nor longer than heartbeat_timeout");
  if (heartbeat > Clock::Duration::zero() && hwm != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "heartbeat needs hwm = 0: libzmq aborts when it asks a peer while its queue is full");
  if (silence < Clock::Duration::zero() || silence > kLongest)
    return make_error(ErrorCode::kInvalidArgument,
                      "silence must not be negative, nor longer than ten years; 0 means never to ask");
  if (keepalive < Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "keepalive must not be negative");
  if (reconnect <= Clock::Duration::zero() || reconnect_max < reconnect)
    return make_error(ErrorCode::kInvalidArgument,
                      "reconnect must be more than 0 and not longer than reconnect_max");
  if (replay_timeout <= Clock::Duration::zero() || replay_deadline < replay_timeout)
    return make_error(ErrorCode::kInvalidArgument,
                      "replay_timeout must be more than 0 and not longer than replay_deadline");
  if (replay_deadline > kLongest)
    return make_error(ErrorCode::kInvalidArgument, "replay_deadline must not be longer than ten years");
  return {};
}

Subscriber::Subscriber(SubscriberOptions options, Socket socket, Socket watch)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      watch_(std::move(watch)),
      cannot_tell_(is_inproc(options_.endpoint)),
      heard_at_(Clock::real().now()),
      quiet_for_(options_.silence) {}

Subscriber::~Subscriber() {
  zmq_socket_monitor(socket_.get(), nullptr, 0);
  if (!bound_.empty()) socket_.unbind(bound_);
}

Result<std::unique_ptr<Subscriber>> Subscriber::create(SubscriberOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(const std::shared_ptr<Context> context, Context::shared());
  ASHLAR_TRY(Socket socket, Socket::create(context, ZMQ_SUB));
  ASHLAR_TRY(Socket watch, Socket::create(context, ZMQ_PAIR));
  auto out =
      std::unique_ptr<Subscriber>(new Subscriber(std::move(options), std::move(socket), std::move(watch)));
  ASHLAR_RETURN_IF_ERROR(out->attach());
  return out;
}

void Subscriber::configure(Socket& socket) const {
  socket.set(ZMQ_MAXMSGSIZE, options_.max_message_bytes);
  if (options_.heartbeat > Clock::Duration::zero()) {
    socket.set(ZMQ_HEARTBEAT_IVL, milliseconds(options_.heartbeat));
    socket.set(ZMQ_HEARTBEAT_TIMEOUT, milliseconds(options_.heartbeat_timeout));
  }
  if (options_.keepalive > Clock::Duration::zero()) {
    // Idle for a third of the time, then two probes.
    const int third = std::max(1, milliseconds(options_.keepalive) / 3000);
    socket.set(ZMQ_TCP_KEEPALIVE, 1);
    socket.set(ZMQ_TCP_KEEPALIVE_IDLE, third);
    socket.set(ZMQ_TCP_KEEPALIVE_INTVL, third);
    socket.set(ZMQ_TCP_KEEPALIVE_CNT, 2);
  }
  socket.set(ZMQ_RECONNECT_IVL, milliseconds(options_.reconnect));
  socket.set(ZMQ_RECONNECT_IVL_MAX, milliseconds(options_.reconnect_max));
  socket.set(ZMQ_HANDSHAKE_IVL, kHandshakeMs);
}

Result<void> Subscriber::attach() {
  configure(socket_);
  socket_.set(ZMQ_RCVHWM, options_.hwm);
  socket_.set(ZMQ_SUBSCRIBE, options_.topic);
  // No limit: with one, the reporting thread would block.
  watch_.set(ZMQ_RCVHWM, 0);
  const std::string where = unique_inproc("watch");
  if (zmq_socket_monitor(socket_.get(), where.c_str(), kWatched) != 0)
    return socket_error("zmq_socket_monitor", where);
  ASHLAR_RETURN_IF_ERROR(watch_.connect(where));
  revive_at_ = Clock::real().now() + kPatience * options_.reconnect_max;
  if (!options_.bind) return socket_.connect(options_.endpoint);
  ASHLAR_TRY(std::string bound, socket_.bind(options_.endpoint));
  bound_ = std::move(bound);
  return {};
}

bool Subscriber::receive(std::uint64_t& number, Frame& topic, Frame& payload) {
  const std::array<Frame*, 3> frames = {&topic, &number_, &payload};
  for (;;) {
    std::size_t count = 0;
    for (bool more = true; more; ++count) {
      Frame& frame = *frames[std::min<std::size_t>(count, 2)];
      if (!socket_.receive(frame)) return false;  // only before the first frame: a message arrives whole
      more = frame.more();
    }
    const std::array<FrameBytes, 3> bytes = {topic.bytes(), number_.bytes(), payload.bytes()};
    if (const std::optional<std::uint64_t> live = live_number(bytes, count)) {
      number = *live;
      hear();
      quiet_for_ = options_.silence;
      return true;
    }
    count_damaged();
  }
}

void Subscriber::update() {
  std::vector<Frame> event;
  while (watch_.receive(event, 2) > 0) {
    std::uint16_t kind = 0;
    if (event[0].size() < sizeof kind) continue;
    std::memcpy(&kind, event[0].bytes().data(), sizeof kind);
    if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      heard_at_ = Clock::real().now();
      quiet_for_ = std::min(kFirstQuiet, options_.silence);
      question_.reset();  // it was meant for the previous peer
      connects_.fetch_add(1, std::memory_order_relaxed);
      connected_.fetch_add(1, std::memory_order_relaxed);
    } else if (kind != ZMQ_EVENT_DISCONNECTED) {
      ++failed_handshakes_;
    } else if (failed_handshakes_ > 0) {
      --failed_handshakes_;
    } else {
      revive_at_ = Clock::real().now() + kPatience * options_.reconnect_max;
      disconnects_.fetch_add(1, std::memory_order_relaxed);
      if (connected_.load(std::memory_order_relaxed) > 0) connected_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

void Subscriber::revive() {
  if (options_.bind || is_connected()) return;
  const Clock::TimePoint now = Clock::real().now();
  if (now < revive_at_) return;
  revive_at_ = now + std::max(kPatience * options_.reconnect_max,
                              Clock::Duration(std::chrono::milliseconds(kHandshakeMs)));
  zmq_disconnect(socket_.get(), options_.endpoint.c_str());
  zmq_connect(socket_.get(), options_.endpoint.c_str());
}

Result<void> Subscriber::replay(std::uint64_t from, const Take& take) {
  if (options_.replay_endpoint.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "%s has no replay endpoint; configure one to recover missed messages",
                      options_.endpoint.c_str());
  }
  replays_.fetch_add(1, std::memory_order_relaxed);
  Result<void> result;
  const Clock::TimePoint deadline = Clock::real().now() + options_.replay_deadline;
  Result<Socket> dealer = open_dealer();
  if (dealer) {
    result = ask(*dealer, from, deadline);
    if (result) result = read_replies(*dealer, take, deadline);
  } else {
    result = std::move(dealer).error();
  }
  if (result) {
    hear();
  } else {
    replay_failures_.fetch_add(1, std::memory_order_relaxed);
  }
  return result;
}

Result<Socket> Subscriber::open_dealer() const {
  Result<Socket> dealer = Socket::create(socket_.context(), ZMQ_DEALER);
  if (!dealer) return dealer;
  configure(*dealer);
  dealer->set(ZMQ_RCVHWM, 0);
  dealer->set(ZMQ_IMMEDIATE, 1);  // so that a missing peer is detected
  ASHLAR_RETURN_IF_ERROR(dealer->connect(options_.replay_endpoint));
  return dealer;
}

bool Subscriber::send_request(Socket& dealer, std::uint64_t from) noexcept {
  return dealer.send(Frame(), ZMQ_SNDMORE | ZMQ_DONTWAIT) &&
         dealer.send(Frame::of_number(from), ZMQ_DONTWAIT);
}

void Subscriber::hear() noexcept {
  heard_at_ = Clock::real().now();
  if (silent_.load(std::memory_order_relaxed) == 0) {
    ASHLAR_DCHECK(!is_silent_, "a publisher is silent and its gauge says that it is not");
    return;
  }
  is_silent_ = false;
  silent_.store(0, std::memory_order_relaxed);
  ASHLAR_LOG(LogLevel::kInfo, "zmq", "%s is heard again", options_.endpoint.c_str());
}

void Subscriber::fall_silent(bool was_asked) {
  heard_at_ = Clock::real().now();  // ask again after the same time
  is_silent_ = was_asked;
  if (silent_.exchange(1, std::memory_order_relaxed) != 0) return;
  silences_.fetch_add(1, std::memory_order_relaxed);
  if (was_asked) {
    log(LogLevel::kWarn, "zmq", silent_error().message());
  } else {
    ASHLAR_LOG(LogLevel::kInfo, "zmq", "%s sent nothing for %lld ms; it has no replay endpoint to ask",
               options_.endpoint.c_str(), whole_ms(options_.silence));
  }
}

Error Subscriber::silent_error() const {
  return make_error(
      ErrorCode::kUnavailable,
      "%s sent nothing for %lld ms, and %s does not answer: the process is stopped, or its machine is "
      "gone; it is asked again",
      options_.endpoint.c_str(), whole_ms(options_.silence), options_.replay_endpoint.c_str());
}

Subscriber::Answer Subscriber::watch(std::uint64_t next, std::size_t limit, const Take& take) {
  if (options_.silence == Clock::Duration::zero() || options_.bind) return Answer::kNone;
  if (!is_connected()) {
    // The missing connection is already reported elsewhere.
    question_.reset();
    is_silent_ = false;
    silent_.store(0, std::memory_order_relaxed);
    return Answer::kNone;
  }
  const Clock::TimePoint now = Clock::real().now();
  bool is_new = false;
  if (!question_) {
    if (now < heard_at_ + patience()) return Answer::kNone;
    if (options_.replay_endpoint.empty()) {
      fall_silent(false);
      return Answer::kNone;
    }
    if (!open_question(now)) return Answer::kNone;
    is_new = true;
  }
  if (!is_asked_ && send_request(*question_, next)) {
    is_asked_ = true;
    is_new = true;
    answer_end_ = now + options_.replay_deadline;
    answer_until_ = now + options_.replay_timeout;
  }
  if (is_asked_ && read_answer(limit, take)) {
    question_.reset();
    hear();
    quiet_for_ = std::min(2 * quiet_for_, options_.silence);
    return has_answers_ ? Answer::kWhole : Answer::kEmpty;
  }
  // Never in the call that opened the socket, or sent the question: a caller that polls rarely must look for
  // an answer first.
  if (is_new || now < answer_until_) return Answer::kNone;
  question_.reset();
  // Unless it was heard meanwhile. One that was asked early has the whole time to answer a second question.
  if (heard_at_ >= question_at_) return Answer::kNone;
  if (std::exchange(quiet_for_, options_.silence) >= options_.silence) {
    fall_silent(true);
  } else {
    heard_at_ = now;
  }
  return Answer::kNone;
}

bool Subscriber::open_question(Clock::TimePoint now) {
  Result<Socket> dealer = open_dealer();
  if (!dealer) {
    heard_at_ = now;  // try again after the same time
    if (!std::exchange(cannot_ask_, true))
      ASHLAR_LOG(LogLevel::kWarn, "zmq", "%s sends nothing, and cannot be asked: %s",
                 options_.endpoint.c_str(), dealer.error().message().c_str());
    return false;
  }
  cannot_ask_ = false;
  question_ = std::move(*dealer);
  is_asked_ = false;
  has_answers_ = false;
  question_at_ = now;
  answer_until_ = now + options_.replay_timeout;  // to connect
  questions_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// True: the answer is complete.
bool Subscriber::read_answer(std::size_t limit, const Take& take) {
  ASHLAR_DCHECK(question_ && is_asked_, "an answer is read without a question that was sent");
  std::vector<Frame> reply;
  for (std::size_t read = 0; read < limit; ++read) {
    const std::size_t count = question_->receive(reply, 4);
    if (count == 0) return false;
    const std::optional<ReplyHead> head = head_of(reply, count);
    if (!head) {
      count_damaged();
      continue;
    }
    if (head->is_end) return true;
    has_answers_ = true;
    hear();
    answer_until_ = std::min(answer_end_, heard_at_ + options_.replay_timeout);
    if (!take(head->number, reply[1], reply[3])) break;
  }
  return false;
}

Clock::TimePoint Subscriber::watch_at() const noexcept {
  if (options_.silence == Clock::Duration::zero() || options_.bind || !is_connected())
    return Clock::TimePoint::max();
  return question_ ? answer_until_ : heard_at_ + patience();
}

std::optional<zmq_pollitem_t> Subscriber::answer() const noexcept {
  if (!question_) return std::nullopt;
  return question_->item(is_asked_ ? ZMQ_POLLIN : ZMQ_POLLOUT);
}

Result<void> Subscriber::ask(Socket& dealer, std::uint64_t from, Clock::TimePoint deadline) {
  const Clock::TimePoint give_up = std::min(deadline, Clock::real().now() + options_.replay_timeout);
  for (;;) {
    if (send_request(dealer, from)) return {};
    const Clock::TimePoint now = Clock::real().now();
    if (now >= give_up) {
      return make_error(ErrorCode::kUnavailable, "the replay endpoint %s does not answer",
                        options_.replay_endpoint.c_str());
    }
    std::array<zmq_pollitem_t, 1> items = {dealer.item(ZMQ_POLLOUT)};
    poll_items(items, give_up - now);
  }
}

Result<void> Subscriber::read_replies(Socket& dealer, const Take& take, Clock::TimePoint deadline) {
  std::vector<Frame> reply;
  std::uint64_t taken = 0;
  Clock::TimePoint give_up = std::min(deadline, Clock::real().now() + options_.replay_timeout);
  for (;;) {
    const std::size_t count = dealer.receive(reply, 4);
    if (count == 0) {
      const Clock::TimePoint now = Clock::real().now();
      if (now >= give_up) {
        return make_error(ErrorCode::kTimeout,
                          "the replay from %s stopped after %llu messages without its end",
                          options_.replay_endpoint.c_str(), static_cast<unsigned long long>(taken));
      }
      std::array<zmq_pollitem_t, 1> items = {dealer.item(ZMQ_POLLIN)};
      poll_items(items, give_up - now);
      continue;
    }
    give_up = std::min(deadline, Clock::real().now() + options_.replay_timeout);
    const std::optional<ReplyHead> head = head_of(reply, count);
    if (!head) {
      count_damaged();
      continue;
    }
    if (head->is_end) return {};
    if (!take(head->number, reply[1], reply[3])) return {};
    ++taken;
    // Stop reading a replay that never ends.
    if ((taken & 1023) == 0 && Clock::real().now() >= deadline) {
      return make_error(ErrorCode::kTimeout, "the replay from %s did not end in time; %llu messages came",
                        options_.replay_endpoint.c_str(), static_cast<unsigned long long>(taken));
    }
  }
}

std::string Subscriber::describe() const {
  std::string out = "zmq " + options_.endpoint;
  if (!options_.topic.empty()) out += " topic '" + options_.topic + "'";
  out += options_.replay_endpoint.empty() ? ", no replay" : ", replay " + options_.replay_endpoint;
  return out;
}

SubscriberStats Subscriber::stats() const noexcept {
  return {.connected = connected_.load(std::memory_order_relaxed),
          .connects = connects_.load(std::memory_order_relaxed),
          .disconnects = disconnects_.load(std::memory_order_relaxed),
          .replays = replays_.load(std::memory_order_relaxed),
          .replay_failures = replay_failures_.load(std::memory_order_relaxed),
          .questions = questions_.load(std::memory_order_relaxed),
          .silent = silent_.load(std::memory_order_relaxed),
          .silences = silences_.load(std::memory_order_relaxed)};
}

}  // namespace ashlar::backend::zmq
