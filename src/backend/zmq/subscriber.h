// Subscriber: the two sockets that receive one publisher, and the state of the connection.
//
// Thread safety: confined; any thread may read the counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/backend/zmq/subscriber_options.h"
#include "backend/zmq/socket.h"

namespace ashlar::backend::zmq {

class Subscriber {
 public:
  // A message without the delimiter: topic, number, payload. False: no room for more.
  using Take = std::function<bool(std::uint64_t number, Frame& topic, Frame& payload)>;

  static Result<std::unique_ptr<Subscriber>> create(SubscriberOptions options);
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;
  ~Subscriber();

  // Receives the next waiting message. False: none. Malformed ones are counted and skipped.
  bool receive(std::uint64_t& number, Frame& topic, Frame& payload);
  // Requests everything from `from` on, over a separate socket. Passes each message to `take` until the end
  // marker, or until there is no room. Errors: as EngineSource::replay().
  Result<void> replay(std::uint64_t from, const Take& take);

  // Poll both; update() reads the second one.
  zmq_pollitem_t messages() const noexcept { return socket_.item(ZMQ_POLLIN); }
  zmq_pollitem_t changes() const noexcept { return watch_.item(ZMQ_POLLIN); }
  // Reads connection events.
  void update();
  // Call it when no message is waiting: reconnects where ZeroMQ has given up, as it does after a peer sent
  // malformed data.
  void revive();
  enum class Answer : std::uint8_t { kNone, kEmpty, kWhole };
  // Call it when receive() has nothing: asks a publisher that was silent for options.silence for message
  // `next` and later ones, without waiting, and passes the answers to `take`, at most `limit` messages per
  // call. kEmpty and kWhole: the answer is complete, without or with messages.
  Answer watch(std::uint64_t next, std::size_t limit, const Take& take);
  // The next watch() asks, regardless of when the publisher was last heard.
  void ask_at_once() noexcept { heard_at_ = Clock::real().now() - options_.silence; }
  // When watch() is due.
  Clock::TimePoint watch_at() const noexcept;
  // The item to poll for the answer; empty while none is awaited.
  std::optional<zmq_pollitem_t> answer() const noexcept;
  // It was asked and did not answer.
  bool is_silent() const noexcept { return is_silent_; }
  Error silent_error() const;
  bool is_connected() const noexcept {
    return cannot_tell_ || connected_.load(std::memory_order_relaxed) > 0;
  }

  const SubscriberOptions& options() const noexcept { return options_; }
  std::string describe() const;
  SubscriberStats stats() const noexcept;
  std::uint64_t damaged() const noexcept { return damaged_.load(std::memory_order_relaxed); }
  void count_damaged() noexcept { damaged_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Subscriber(SubscriberOptions options, Socket socket, Socket watch);
  Result<void> attach();
  void configure(Socket& socket) const;
  Result<Socket> open_dealer() const;
  bool send_request(Socket& dealer, std::uint64_t from) noexcept;
  void hear() noexcept;
  void fall_silent(bool was_asked);
  Clock::Duration patience() const noexcept {
    return options_.replay_endpoint.empty() ? options_.silence : quiet_for_;
  }
  bool open_question(Clock::TimePoint now);
  bool read_answer(std::size_t limit, const Take& take);
  Result<void> ask(Socket& dealer, std::uint64_t from, Clock::TimePoint deadline);
  Result<void> read_replies(Socket& dealer, const Take& take, Clock::TimePoint deadline);

  const SubscriberOptions options_;
  Socket socket_;
  Socket watch_;
  const bool cannot_tell_;  // inproc connections are not reported
  std::string bound_;
  Frame number_;
  Clock::TimePoint revive_at_;
  Clock::TimePoint heard_at_;  // or last asked
  // How long the publisher may be silent before it is asked. Short after a connect, until a live message
  // came: the publisher learns of the subscription later than this side of the connection, and what it sends
  // in between is lost without a trace.
  Clock::Duration quiet_for_;
  std::optional<Socket> question_;  // the pending liveness request
  bool is_asked_ = false;           // the request is in flight
  Clock::TimePoint question_at_;
  Clock::TimePoint answer_until_;  // deadline for the next message, or for a connection
  Clock::TimePoint answer_end_;    // deadline of the whole answer
  bool has_answers_ = false;       // part of it arrived
  bool cannot_ask_ = false;        // the missing request socket was already reported
  bool is_silent_ = false;
  std::uint64_t failed_handshakes_ = 0;  // whose disconnection is not reported yet

  std::atomic<std::uint64_t> connected_{0};
  std::atomic<std::uint64_t> connects_{0};
  std::atomic<std::uint64_t> disconnects_{0};
  std::atomic<std::uint64_t> replays_{0};
  std::atomic<std::uint64_t> replay_failures_{0};
  std::atomic<std::uint64_t> questions_{0};
  std::atomic<std::uint64_t> silent_{0};
  std::atomic<std::uint64_t> silences_{0};
  std::atomic<std::uint64_t> damaged_{0};
};

}  // namespace ashlar::backend::zmq
