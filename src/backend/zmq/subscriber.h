// Subscriber: the two sockets through which one publisher is heard, and what is known of the connection.
//
// Thread safety: confined; the counters may be read by anybody.
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
  // A message without the delimiter: topic, number, payload. False: it is the last that there is room for.
  using Take = std::function<bool(std::uint64_t number, Frame& topic, Frame& payload)>;

  static Result<std::unique_ptr<Subscriber>> create(SubscriberOptions options);
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;
  ~Subscriber();

  // The next message that is there. False: none. Malformed ones are counted and skipped.
  bool receive(std::uint64_t& number, Frame& topic, Frame& payload);
  // Asks for everything from `from` on, with a socket of its own. What comes is given to `take` until the end
  // marker, or until there is no room.
  // Errors: as EngineSource::replay().
  Result<void> replay(std::uint64_t from, const Take& take);

  // To be polled together; what the second one has is read by update().
  zmq_pollitem_t messages() const noexcept { return socket_.item(ZMQ_POLLIN); }
  zmq_pollitem_t changes() const noexcept { return watch_.item(ZMQ_POLLIN); }
  // Reads what happened to connections.
  void update();
  // Call it when nothing is there to be read: connects anew where ZeroMQ has given up, as it does with a peer
  // that sent something it does not understand.
  void revive();
  enum class Answer : std::uint8_t { kNone, kEmpty, kWhole };
  // Call it when receive() has nothing: asks who has been silent for options.silence for message `next` and
  // what follows, without waiting, and gives `take` what is answered, at most `limit` messages in one call.
  // kEmpty and kWhole: the answer has come to its end, without or with messages.
  Answer watch(std::uint64_t next, std::size_t limit, const Take& take);
  // The next watch() asks, however long ago something was heard.
  void ask_at_once() noexcept { heard_at_ = Clock::real().now() - options_.silence; }
  // When watch() is due.
  Clock::TimePoint watch_at() const noexcept;
  // What to poll for the answer; nothing while none is awaited.
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
  Clock::TimePoint heard_at_;       // or asked
  std::optional<Socket> question_;  // whether it is there
  bool is_asked_ = false;           // the question is on its way
  Clock::TimePoint question_at_;
  Clock::TimePoint answer_until_;  // or until there is a connection to ask
  Clock::TimePoint answer_end_;    // of the whole
  bool has_answers_ = false;       // some of it came
  bool cannot_ask_ = false;        // it was said that there is no socket to ask with
  bool is_silent_ = false;
  std::uint64_t failed_handshakes_ = 0;  // whose disconnection is still to be reported

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
