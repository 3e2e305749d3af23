// ZmqEngineSource: the messages of one inference engine, from its PUB socket and its replay socket.
//
// ZeroMQ reconnects by itself; stats() shows the state, and receive() returns kUnavailable if it is not
// connected and nothing came. Each replay has its own socket, so late answers are discarded.
//
// After each connect it requests earlier messages (SubscriberOptions::replay_on_connect) and delivers them
// first: all that the engine keeps, or those from the last received message on, which comes once more.
// receive() then takes as long as the replay.
//
// A stopped engine, or a vanished machine, may keep its connection for a long time. So an engine that sends
// nothing for SubscriberOptions::silence is asked for more; if it does not answer, receive() returns
// kUnavailable until it sends again.
//
// Thread safety: thread-compatible; damaged() and stats() are thread-safe.
// Complexity:    O(bytes) per message. Memory: hwm unread messages, and one chunk of a replay
//                (max_replay_bytes).
#pragma once

#include <memory>

#include "ashlar/backend/zmq/subscriber_options.h"
#include "ashlar/feed/engine_source.h"

namespace ashlar::backend::zmq {

class ZmqEngineSource final : public feed::EngineSource {
 public:
  // Errors: kInvalidArgument: an option; kUnavailable: the address to bind is taken; kCapacity: no sockets
  // left. An engine that does not run yet is not an error.
  static Result<std::unique_ptr<ZmqEngineSource>> create(SubscriberOptions options);
  ~ZmqEngineSource() override;

  Result<std::optional<feed::EngineMessage>> receive(Clock::Duration timeout) override;
  // Errors: kUnsupported: no replay_endpoint; kUnavailable: no connection; kTimeout: no complete answer.
  Result<feed::EngineReplay> replay(std::uint64_t from) override;
  std::uint64_t damaged() const noexcept override;
  std::uint64_t restarts() const noexcept override;
  bool has_looked_back() const noexcept override;
  std::uint64_t blind_reconnects() const noexcept override;
  std::string describe() const override;
  SubscriberStats stats() const noexcept;

 private:
  class State;
  explicit ZmqEngineSource(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::backend::zmq
