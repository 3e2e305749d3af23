// ZmqEngineSource: the messages of one inference engine, from its PUB socket, and again from its replay
// socket.
//
// ZeroMQ connects by itself, again and again; stats() says whether it is connected, and receive() says
// kUnavailable when it is not and nothing came. Each replay has a socket of its own, so that answers that
// come late belong to nobody.
//
// After each connection it asks for what came before (SubscriberOptions::replay_on_connect) and delivers that
// first: all that the engine keeps, or what came since the last message, which comes once more. receive()
// then takes as long as the replay does.
//
// An engine that is stopped, or whose machine is gone, keeps its connection for a while or for ever. So one
// that says nothing for SubscriberOptions::silence is asked for more; when it does not answer, receive() says
// kUnavailable until it is heard again.
//
// Thread safety: thread-compatible; damaged() and stats() may be called by anybody.
#pragma once

#include <memory>

#include "ashlar/backend/zmq/subscriber_options.h"
#include "ashlar/feed/engine_source.h"

namespace ashlar::backend::zmq {

class ZmqEngineSource final : public feed::EngineSource {
 public:
  // Errors: kInvalidArgument: an option; kUnavailable: the address to bind is taken; kCapacity: no sockets
  // left. An engine that is not there yet is no error.
  static Result<std::unique_ptr<ZmqEngineSource>> create(SubscriberOptions options);
  ~ZmqEngineSource() override;

  Result<std::optional<feed::EngineMessage>> receive(Clock::Duration timeout) override;
  // Errors: kUnsupported: no replay_endpoint; kUnavailable: nobody is there; kTimeout: no answer, or not to
  // its end.
  Result<feed::EngineReplay> replay(std::uint64_t from) override;
  std::uint64_t damaged() const noexcept override;
  std::uint64_t restarts() const noexcept override;
  std::string describe() const override;
  SubscriberStats stats() const noexcept;

 private:
  class State;
  explicit ZmqEngineSource(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::backend::zmq
