// EnginePublisher: publishes messages as inference engines do: a PUB socket, and a ROUTER socket that replays
// recent ones.
//
// A message is three frames: topic | number, 8 bytes, big-endian, from 0 without gaps | payload. Subscribers
// ask for missed messages: the replay socket answers [empty, number] by a message [empty, topic, number,
// payload] for each kept one from that number on, and the end marker [empty, empty, eight bytes 0xFF, empty].
// docs/zmq.md has the details.
//
// One thread owns the sockets. publish() hands messages to it through a bounded queue. The PUB socket drops
// messages that a slow subscriber has no room for, and that subscriber sees a gap in the numbers.
//
// Thread safety: thread-safe.
// Complexity:    publish() copies the payload once; replays copy nothing.
// Invariant:     messages are numbered in the order of the calls, and a refused message has no number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::zmq {

// Which end of a connection a socket is.
enum class Attach : std::uint8_t {
  // The rule of the engines: bind if the endpoint has a "*" or "::" or is ipc or inproc, otherwise connect.
  kByEndpoint,
  kBind,
  kConnect,
};

struct EnginePublisherOptions {
  std::string endpoint = "tcp://*:5557";
  Attach attach = Attach::kByEndpoint;
  std::string replay_endpoint = {};  // always bound; empty: no replay
  int hwm = 100'000;                 // queued messages per subscriber; 0: no limit
  // Kept for replay.
  std::size_t buffer_steps = 10'000;
  std::size_t buffer_bytes = std::size_t{1} << 30;
  // Published but not yet sent.
  std::size_t queue_messages = 100'000;
  std::size_t queue_bytes = std::size_t{256} << 20;
  // How long publish() may wait for room in the queue.
  Clock::Duration publish_wait = std::chrono::milliseconds(100);
  // How long the sockets may keep the last messages after the publisher is destroyed.
  Clock::Duration linger = std::chrono::seconds(1);
  // A replay whose reader takes nothing for this long is abandoned.
  Clock::Duration replay_patience = std::chrono::seconds(10);
  // Answers requests for a snapshot with the payloads of its messages. Called by the socket thread.
  std::function<std::vector<std::vector<std::byte>>()> snapshot = {};
  // Memory of unread snapshots. A request that finds no room waits, and is dropped after replay_patience. One
  // snapshot is always taken, whatever its size.
  std::size_t snapshot_bytes = std::size_t{256} << 20;
  // For tests of listeners: a message whose number it refuses is kept for replay, but not sent. Called by the
  // socket thread.
  std::function<bool(std::uint64_t)> sends = {};

  Result<void> validate() const;
};

struct EnginePublisherStats {
  std::uint64_t published = 0;         // handed to the socket
  std::uint64_t refused = 0;           // the queue was full
  std::uint64_t replays = 0;           // requests answered completely
  std::uint64_t replayed = 0;          // messages sent again
  std::uint64_t snapshots = 0;         // requests for one
  std::uint64_t snapshot_bytes = 0;    // of snapshots not read yet
  std::uint64_t invalid_requests = 0;  // malformed; not answered
  std::uint64_t dropped_replays = 0;   // the reader left or was too slow, or there were too many
  std::uint64_t subscriptions = 0;     // now
};

class EnginePublisher {
 public:
  // Errors: kInvalidArgument: an option; kUnavailable: the address is taken; kCapacity: no sockets or threads
  // left.
  static Result<std::unique_ptr<EnginePublisher>> create(EnginePublisherOptions options = {});
  EnginePublisher(const EnginePublisher&) = delete;
  EnginePublisher& operator=(const EnginePublisher&) = delete;
  // Sends queued messages, then unbinds.
  ~EnginePublisher();

  // Returns the number of the message. Errors: kCapacity: the queue stayed full for publish_wait; the message
  // was not accepted.
  Result<std::uint64_t> publish(std::string_view topic, std::span<const std::byte> payload);
  // Waits until the socket has all published messages. Returns false after `timeout`.
  bool flush(Clock::Duration timeout);

  // As bound, with the port that the system chose for "*".
  const std::string& endpoint() const noexcept;
  const std::string& replay_endpoint() const noexcept;
  EnginePublisherStats stats() const noexcept;

 private:
  class State;
  explicit EnginePublisher(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

// A request for this number is one for a snapshot; "snapshot" in ASCII. Engines answer it with the end marker
// alone.
inline constexpr std::uint64_t kSnapshotRequest = 0x736E'6170'7368'6F74;

}  // namespace ashlar::backend::zmq
