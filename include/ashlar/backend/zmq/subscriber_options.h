// SubscriberOptions: how to reach one publisher: its PUB socket, and its replay socket if it has one.
//
// Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::zmq {

struct SubscriberOptions {
  std::string endpoint = {};
  bool bind = false;  // publishers connect to it; any number of them
  std::string replay_endpoint = {};
  std::string topic = {};  // prefix of the topics to receive
  int hwm = 100'000;       // unread messages; 0: no limit
  // A publisher that sends a larger frame is disconnected and reconnected.
  std::int64_t max_message_bytes = std::int64_t{256} << 20;
  // Of ZmqEngineSource: memory of one chunk of a replay. The rest is requested afterwards.
  std::size_t max_replay_bytes = std::size_t{256} << 20;
  // TCP keepalive detects a vanished machine after about this time. 0: the system's default.
  Clock::Duration keepalive = std::chrono::seconds(6);
  // A publisher that does not answer heartbeats is disconnected after heartbeat_timeout. 0: no heartbeats.
  // Requires hwm = 0: libzmq aborts the process if it sends one while its queue is full (libzmq issues 4364
  // and 4767).
  Clock::Duration heartbeat = Clock::Duration::zero();
  Clock::Duration heartbeat_timeout = std::chrono::seconds(6);
  // A connected publisher that sends nothing for this long is asked, at its replay socket, for newer
  // messages, without blocking. If it does not answer within replay_timeout of the question, or its replay
  // socket cannot be reached for that long, it is silent: stopped, or its machine is gone. The question is
  // repeated. A publisher without a replay socket may just be idle: its silence shows only in the statistics.
  // After a connect it is asked sooner, until a live message came. 0: never ask.
  Clock::Duration silence = std::chrono::seconds(10);
  // Between attempts to connect; doubles up to the second.
  Clock::Duration reconnect = std::chrono::milliseconds(100);
  Clock::Duration reconnect_max = std::chrono::seconds(2);
  // Of ZmqEngineSource: after each connect it requests what it missed at once, so that a listener learns of
  // missed messages or a restart without waiting for the next live message.
  bool replay_on_connect = true;
  // Of a replay: without any answer, and in total.
  Clock::Duration replay_timeout = std::chrono::seconds(5);
  Clock::Duration replay_deadline = std::chrono::seconds(60);

  Result<void> validate() const;
};

// State of the connection.
struct SubscriberStats {
  std::uint64_t connected = 0;  // now
  std::uint64_t connects = 0;
  std::uint64_t disconnects = 0;
  std::uint64_t replays = 0;          // requested
  std::uint64_t replay_failures = 0;  // of these: not answered completely
  std::uint64_t questions = 0;        // questions asked after a silence
  std::uint64_t silent = 0;           // 1: silent now
  std::uint64_t silences = 0;         // how often it became silent
};

}  // namespace ashlar::backend::zmq
