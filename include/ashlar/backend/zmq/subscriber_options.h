// SubscriberOptions: how to reach one publisher: its PUB socket, and its replay socket where it has one.
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
  bool bind = false;  // where publishers connect; any number of them may
  std::string replay_endpoint = {};
  std::string topic = {};  // messages whose topic begins so
  int hwm = 100'000;       // messages that wait to be read; 0: no limit
  // A publisher that sends a larger frame is disconnected, and connected again.
  std::int64_t max_message_bytes = std::int64_t{256} << 20;
  // Of an engine's source: what it holds of a replay at once. The rest is asked for when that is done with.
  std::size_t max_replay_bytes = std::size_t{256} << 20;
  // A machine that is gone without a word is found out after about so long, by TCP keepalive. 0: as the
  // system does.
  Clock::Duration keepalive = std::chrono::seconds(6);
  // A publisher that is stopped, and does not answer questions whether it lives, is disconnected after the
  // timeout. 0: never. Only with hwm = 0: libzmq aborts the process when it asks while its queue is full
  // (libzmq issues 4364 and 4767).
  Clock::Duration heartbeat = Clock::Duration::zero();
  Clock::Duration heartbeat_timeout = std::chrono::seconds(6);
  // A publisher that is connected and says nothing for so long is asked, at its replay socket, for what it
  // said since; nobody waits for the answer. One that does not answer within replay_timeout, counted from
  // when the question was sent, is silent: stopped, or its machine is gone; so is one to whose replay socket
  // there is no connection for so long. It is asked again and again. One without a replay socket may as well
  // be idle: that is in the statistics only. 0: never.
  Clock::Duration silence = std::chrono::seconds(10);
  // Between attempts to connect; doubles up to the second.
  Clock::Duration reconnect = std::chrono::milliseconds(100);
  Clock::Duration reconnect_max = std::chrono::seconds(2);
  // Of an engine's source: each time it is connected, what came before, or in the meantime, is asked for at
  // once, so that a listener need not wait for the next live message to see that it missed some, or that the
  // engine began anew.
  bool replay_on_connect = true;
  // Of a replay: without any answer, and in all.
  Clock::Duration replay_timeout = std::chrono::seconds(5);
  Clock::Duration replay_deadline = std::chrono::seconds(60);

  Result<void> validate() const;
};

// What became of the connection.
struct SubscriberStats {
  std::uint64_t connected = 0;  // now
  std::uint64_t connects = 0;
  std::uint64_t disconnects = 0;
  std::uint64_t replays = 0;          // asked for
  std::uint64_t replay_failures = 0;  // of those, not answered to the end
  std::uint64_t questions = 0;        // whether it is there, after a silence
  std::uint64_t silent = 0;           // 1: it does not answer now, or there is nobody to ask
  std::uint64_t silences = 0;         // how often it became so
};

}  // namespace ashlar::backend::zmq
