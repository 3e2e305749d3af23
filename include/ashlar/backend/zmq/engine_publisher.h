// EnginePublisher: publishes messages as inference engines do: a PUB socket, and a ROUTER socket that sends
// the last ones again.
//
// A message is three frames: topic | number, 8 bytes, most significant first, from 0 without holes | payload.
// What subscribers miss, they ask for: [empty, number] to the replay socket is answered by one message
// [empty, topic, number, payload] for each that is kept from that number on, and the end marker [empty,
// empty, eight bytes 0xFF, empty]. docs/zmq.md has the details.
//
// One thread owns the sockets. publish() hands over to it through a bounded queue; the PUB socket then drops
// what a slow subscriber has no room for, and that subscriber sees a hole in the numbers.
//
// Thread safety: thread-safe.
// Complexity:    publish() copies the payload once; replays copy nothing.
// Invariant:     the numbers of messages are in the order of the calls, and a refused message has none.
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
  // The rule of the engines: bind where the endpoint has a "*" or "::" or is ipc or inproc, else connect.
  kByEndpoint,
  kBind,
  kConnect,
};

struct EnginePublisherOptions {
  std::string endpoint = "tcp://*:5557";
  Attach attach = Attach::kByEndpoint;
  std::string replay_endpoint = {};  // bound always; empty: no replay
  int hwm = 100'000;                 // messages that wait for one subscriber; 0: no limit
  // Kept for replay.
  std::size_t buffer_steps = 10'000;
  std::size_t buffer_bytes = std::size_t{1} << 30;
  // Handed over and not yet sent.
  std::size_t queue_messages = 100'000;
  std::size_t queue_bytes = std::size_t{256} << 20;
  // How long publish() may wait for room in the queue.
  Clock::Duration publish_wait = std::chrono::milliseconds(100);
  // How long the last messages may stay with the sockets after the publisher is gone.
  Clock::Duration linger = std::chrono::seconds(1);
  // A replay whose reader takes nothing for so long is given up.
  Clock::Duration replay_patience = std::chrono::seconds(10);
  // Answers requests for a snapshot: the payloads of messages that say everything. Called by the thread of
  // the sockets.
  std::function<std::vector<std::vector<std::byte>>()> snapshot = {};
  // Of snapshots that were made for readers, and that these have not taken yet. A request that finds no room
  // waits, and is dropped after replay_patience. One snapshot is always made, whatever its size.
  std::size_t snapshot_bytes = std::size_t{256} << 20;

  Result<void> validate() const;
};

struct EnginePublisherStats {
  std::uint64_t published = 0;         // handed to the socket
  std::uint64_t refused = 0;           // the queue was full
  std::uint64_t replays = 0;           // requests that were answered to their end
  std::uint64_t replayed = 0;          // messages sent again
  std::uint64_t snapshots = 0;         // requests for one
  std::uint64_t snapshot_bytes = 0;    // of snapshots that are not yet read, now
  std::uint64_t invalid_requests = 0;  // not of the form above; not answered
  std::uint64_t dropped_replays = 0;   // the reader went away or was too slow, or there were too many
  std::uint64_t subscriptions = 0;     // now
};

class EnginePublisher {
 public:
  // Errors: kInvalidArgument: an option; kUnavailable: the address is taken; kCapacity: no sockets or threads
  // left.
  static Result<std::unique_ptr<EnginePublisher>> create(EnginePublisherOptions options = {});
  EnginePublisher(const EnginePublisher&) = delete;
  EnginePublisher& operator=(const EnginePublisher&) = delete;
  // Sends what is in the queue, then gives the addresses up.
  ~EnginePublisher();

  // Returns the number of the message. Errors: kCapacity: the queue stayed full for publish_wait; the message
  // was not taken.
  Result<std::uint64_t> publish(std::string_view topic, std::span<const std::byte> payload);
  // Waits until everything that was published is with the socket. False: not within `timeout`.
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
