// NatsSink: publishes batches of events to NATS.
//
// A batch goes to `<prefix>.<worker>.<rank>.<tier>`. The last token is the tier's name when all events belong
// to one ("g1", …), "snapshot" for a snapshot, and "mixed" otherwise: numbers run through all tiers of a
// stream, so a batch is never split by tier; whole streams are at `<prefix>.*.*.*`. A batch above the
// server's message limit is split: events into consecutive batches, a snapshot into parts.
//
// Core: publish() hands the bytes to the connection. While the server is unreachable they wait in a buffer
// (pending_bytes); publish() fails when it is full. Bytes on the wire when the server dies are lost, and
// listeners detect the gap by the numbers.
//
// JetStream: publish() returns once the message is in flight, and the sink keeps it until the server has
// stored it. Messages not acknowledged in time, or in flight when the connection broke, are resent under an
// id by which the server drops duplicates. A refused message fails the next publish() and flush() and is
// retried meanwhile; no newer message is accepted before it is stored.
//
// Snapshots: requests to `<prefix>.snapshot.<worker>.<rank>.get` are answered from options.snapshots, on a
// thread of the sink; put_snapshot() writes one to a bucket, for listeners that start after the worker is
// gone.
//
// Thread safety: publish(), flush() and put_snapshot() by one thread at a time; counters() and describe() by
// any.
// Complexity:    a copy of the bytes; JetStream: max_in_flight messages and max_in_flight_bytes are kept.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::backend::nats {

// A worker whose snapshots the sink serves. The source outlives the sink, and is called by a thread of the
// sink.
struct NatsSnapshots {
  events::Worker worker;
  events::SnapshotSource* source = nullptr;
};

struct NatsSinkOptions {
  NatsConnectionOptions connection = NatsConnectionOptions();
  std::string prefix = "ashlar.kv";
  NatsMode mode = NatsMode::kCore;
  NatsStreamOptions stream = NatsStreamOptions();  // kJetStream
  std::size_t max_in_flight = 4096;
  std::size_t max_in_flight_bytes = std::size_t{64} << 20;
  // How long publish() waits for room, and after which time a message is resent.
  std::chrono::milliseconds ack_timeout{5000};
  std::vector<NatsSnapshots> snapshots = {};
  std::string bucket = "ashlar_snapshots";  // of put_snapshot(); stored as `stream` is
  // publish() also writes the stream's snapshot to the bucket, from options.snapshots, at this interval. 0:
  // never.
  std::chrono::milliseconds bucket_every{0};

  Result<void> validate() const;
};

struct NatsSinkCounters {
  std::uint64_t batches = 0;        // accepted by publish()
  std::uint64_t messages = 0;       // more than batches if some were split
  std::uint64_t bytes = 0;          // of messages
  std::uint64_t resent = 0;         // messages, JetStream
  std::uint64_t duplicates = 0;     // messages that the server already had
  std::uint64_t refused = 0;        // acknowledgements that were errors
  std::uint64_t in_flight = 0;      // messages, now
  std::uint64_t answered = 0;       // requests for snapshots
  std::uint64_t in_bucket = 0;      // snapshots written there by publish()
  std::uint64_t not_in_bucket = 0;  // of these, those that could not be
  std::uint64_t reconnects = 0;
};

class NatsSink final : public events::BatchSink {
 public:
  // Connects; JetStream: creates the stream. Errors: kInvalidArgument: an option, a file, or refused
  // credentials; kUnavailable: no server within connection.connect_wait; kCancelled: stop_waiting ended the
  // wait; kUnsupported: the server has no JetStream.
  static Result<std::unique_ptr<NatsSink>> create(NatsSinkOptions options = {});
  // Waits for messages in flight, up to ack_timeout.
  ~NatsSink() override;
  NatsSink(const NatsSink&) = delete;
  NatsSink& operator=(const NatsSink&) = delete;

  // Errors: kUnavailable: the server is unreachable and the buffer is full, or it refused earlier messages;
  // kCapacity: one event is larger than a message may be, or a snapshot needs more than
  // events::kMaxSnapshotParts of them. Publish the parts of a snapshot in order, and after an error again
  // from the first.
  Result<void> publish(const events::EventBatch& batch) override;
  // Waits until the server has read (core) or stored (JetStream) everything. Errors: kTimeout; kUnavailable:
  // the server refuses, or, with core, the connection broke and messages in flight may be lost.
  Result<void> flush(Clock::TimePoint until) override;
  Result<void> flush(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));
  // Replaces the snapshot of the stream's worker in the bucket; readers see the old one or the new one.
  // Requires: one batch of kind kSnapshot. Errors: kAlreadyExists: a later incarnation of the worker has
  // written one; kUnavailable, kUnsupported.
  Result<void> put_snapshot(const events::EventBatch& snapshot);

  NatsSinkCounters counters() const;
  std::string describe() const override;

 private:
  class Parts;
  explicit NatsSink(std::unique_ptr<Parts> parts);
  // Writes the worker's snapshot to the bucket if it is due.
  void keep_snapshot(const events::Worker& worker);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ashlar::backend::nats
