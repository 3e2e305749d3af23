// JetPublisher: publishes to a JetStream stream, keeping messages until the server has stored them.
//
// publish() puts a message into a bounded window and on the wire. A thread reads acknowledgements and resends
// refused and late messages, and after a reconnect all unacknowledged ones. The server drops duplicates by
// message id.
//
// Thread safety: publish() and flush() by one thread at a time; the rest is thread-safe.
// Invariant:     a message leaves the window only after the server acknowledged it.
#pragma once

#include <nats/nats.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "backend/nats/handles.h"
#include "backend/nats/jet_stream.h"
#include "backend/nats/nats_connection.h"

namespace ashlar::backend::nats {

class JetPublisher {
 public:
  struct Options {
    NatsStreamOptions stream = {};
    std::string subjects = {};  // of the stream
    std::size_t max_messages = 0;
    std::size_t max_bytes = 0;
    std::chrono::milliseconds ack_timeout{};
  };
  // Bytes that headers take in a message.
  static constexpr std::size_t kHeaderBytes = 256;

  // Creates the stream if missing. The connection outlives the publisher.
  static Result<std::unique_ptr<JetPublisher>> create(NatsConnection& connection, Options options);
  JetPublisher(const JetPublisher&) = delete;
  JetPublisher& operator=(const JetPublisher&) = delete;
  ~JetPublisher();

  // Errors: kUnavailable: no room within ack_timeout, or the server refuses messages; nothing was accepted.
  Result<void> publish(const std::string& subject, const std::string& id, std::span<const std::byte> bytes);
  // Waits until everything is stored. Errors: kTimeout, or why the server refuses.
  Result<void> flush(std::chrono::milliseconds timeout);

  std::size_t in_flight() const;
  std::uint64_t resent() const noexcept { return resent_.load(std::memory_order_relaxed); }
  std::uint64_t duplicates() const noexcept { return duplicates_.load(std::memory_order_relaxed); }
  std::uint64_t refused() const noexcept { return refused_total_.load(std::memory_order_relaxed); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class State : std::uint8_t { kUnsent, kSent, kRefused, kStored };
  struct Entry {
    Message message;
    std::size_t bytes = 0;
    Time sent;
    State state = State::kUnsent;
  };

  JetPublisher(NatsConnection& connection, Options options, JetStream jet_stream)
      : connection_(connection), options_(std::move(options)), jet_stream_(std::move(jet_stream)) {}
  Result<void> start();
  void work();
  void read_ack(natsMsg* ack);
  void read_nobody();
  void resend();
  // Drops stored messages from the front.
  void trim() ASHLAR_REQUIRES(mu_);
  bool has_room(std::size_t bytes) const ASHLAR_REQUIRES(mu_);

  NatsConnection& connection_;
  const Options options_;
  const JetStream jet_stream_;
  std::string inbox_;  // acknowledgements come to "<inbox>.<number>"
  Subscription acks_;
  std::uint64_t next_ = 0;        // number of the next message; used by the publishing thread
  std::uint64_t generation_ = 0;  // of the connection, as last seen by the worker thread
  Time next_retry_;               // of refused messages; used by the worker thread
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> resent_{0};
  std::atomic<std::uint64_t> duplicates_{0};
  std::atomic<std::uint64_t> refused_total_{0};

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Entry> window_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t base_ ASHLAR_GUARDED_BY(mu_) = 0;  // number of the window's first message
  std::size_t bytes_ ASHLAR_GUARDED_BY(mu_) = 0;
  const natsMsg* sending_ ASHLAR_GUARDED_BY(mu_) = nullptr;  // being sent by publish()
  std::size_t refused_ ASHLAR_GUARDED_BY(mu_) = 0;           // in the window
  bool no_stream_ ASHLAR_GUARDED_BY(mu_) = false;
  std::string reason_ ASHLAR_GUARDED_BY(mu_);  // of the last refusal

  std::thread thread_;
};

}  // namespace ashlar::backend::nats
