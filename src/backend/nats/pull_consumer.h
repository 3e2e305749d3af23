// PullConsumer: reads a JetStream stream at the pace of its caller.
//
// cnats' own fetch waits for as many messages as it requested; this one hands over what has arrived. It
// requests more once half of a request has arrived, so messages are always in flight.
//
// Thread safety: thread-compatible.
// Complexity:    holds up to twice `ahead` messages.
#pragma once

#include <nats/nats.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "ashlar/base/result.h"
#include "backend/nats/handles.h"
#include "backend/nats/jet_stream.h"
#include "backend/nats/nats_connection.h"

namespace ashlar::backend::nats {

class PullConsumer {
 public:
  struct Options {
    std::string stream = {};
    std::string subjects = {};
    std::string durable = {};  // empty: the server forgets it some minutes after it was last used
    bool from_start = true;    // otherwise new messages only; for a new consumer
    bool acknowledge = true;   // false: no message is ever redelivered
    std::size_t ahead = 256;   // messages per request
    std::chrono::milliseconds ack_wait{30'000};
  };
  // Opens the server's durable consumer of that name, or creates one. The connection outlives it. Errors:
  // kInvalidArgument: the existing one listens to other subjects; those of JetStream.
  static Result<PullConsumer> create(NatsConnection& connection, const JetStream& jet_stream,
                                     const Options& options);
  PullConsumer(PullConsumer&&) noexcept = default;
  PullConsumer& operator=(PullConsumer&&) noexcept = default;
  // Returns unread messages to the server.
  ~PullConsumer();

  // Messages that were pending when it was created.
  std::uint64_t pending() const noexcept { return pending_; }
  // Hands over up to `count` messages; waits for the first, up to `timeout`, and acknowledges each after
  // `take`. Returns the number of messages. Errors: those of the server or of the connection; recreate the
  // consumer.
  Result<std::size_t> fetch(std::size_t count, std::chrono::milliseconds timeout,
                            const std::function<void(natsMsg*)>& take);

 private:
  using Time = std::chrono::steady_clock::time_point;

  PullConsumer(NatsConnection& connection, const Options& options) noexcept
      : connection_(&connection), ahead_(options.ahead), acknowledge_(options.acknowledge) {}
  Result<void> request();
  Result<void> read_status(natsMsg* message);

  NatsConnection* connection_;
  std::size_t ahead_;
  bool acknowledge_;
  std::string subject_;  // of requests
  Inbox inbox_;
  Subscription subscription_;
  std::uint64_t pending_ = 0;
  std::size_t asked_for_ = 0;  // requested, not yet arrived
  Time expires_;               // of the last request
  std::uint64_t generation_ = 0;
};

}  // namespace ashlar::backend::nats
