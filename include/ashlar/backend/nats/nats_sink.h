// NatsSink: publishes batches of events to NATS.
//
// A batch goes to `<prefix>.<worker>.<rank>.<tier>`. The last token is the name of the tier when all events
// are of one ("g1", …), "snapshot" for a snapshot, and "mixed" otherwise: numbers run through all tiers of a
// stream, so a batch is never taken apart by tier, and who wants whole streams listens to `<prefix>.*.*.*`.
// What is larger than a message of the server may be is cut: events into batches that follow each other, a
// snapshot into parts.
//
// Core: publish() hands the bytes to the connection. While the server is away they wait in a buffer
// (pending_bytes); when that is full publish() says so. What was on the wire when the server died is lost,
// and listeners find the gap by its numbers.
//
// JetStream: publish() returns when the message is on its way, and the sink keeps it until the server has
// stored it: what is not acknowledged in time, or was on its way when the connection broke, is sent again,
// under an id by which the server drops what it has already. A message that the server refuses is an error of
// the next publish() and flush(), and is tried again meanwhile; nothing newer is taken before it went.
//
// Snapshots: requests to `<prefix>.snapshot.<worker>.<rank>.get` are answered from options.snapshots, on a
// thread of the sink; put_snapshot() writes one to a bucket, for listeners that come when the worker is gone.
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

// Whose snapshots a sink answers with. The source outlives the sink, and is asked by a thread of the sink.
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
  // How long publish() waits for room, and after what time a message is sent again.
  std::chrono::milliseconds ack_timeout{5000};
  std::vector<NatsSnapshots> snapshots = {};
  std::string bucket = "ashlar_snapshots";  // of put_snapshot(); stored as `stream` is
  // publish() also writes the stream's snapshot to the bucket, from options.snapshots, when the last one is
  // so old. 0: never.
  std::chrono::milliseconds bucket_every{0};

  Result<void> validate() const;
};

struct NatsSinkCounters {
  std::uint64_t batches = 0;        // taken by publish()
  std::uint64_t messages = 0;       // more than batches where some were cut
  std::uint64_t bytes = 0;          // of messages
  std::uint64_t resent = 0;         // messages, JetStream
  std::uint64_t duplicates = 0;     // messages that the server had already
  std::uint64_t refused = 0;        // acknowledgements that were errors
  std::uint64_t in_flight = 0;      // messages, now
  std::uint64_t answered = 0;       // requests for snapshots
  std::uint64_t in_bucket = 0;      // snapshots written there by publish()
  std::uint64_t not_in_bucket = 0;  // of these, those that could not be
  std::uint64_t reconnects = 0;
};

class NatsSink final : public events::BatchSink {
 public:
  // Connects; JetStream: makes the stream. Errors: kInvalidArgument: an option, a file, or what the server
  // thinks of our credentials; kUnavailable: no server, also not within connection.connect_wait; kCancelled:
  // the wait for one was ended; kUnsupported: the server has no JetStream.
  static Result<std::unique_ptr<NatsSink>> create(NatsSinkOptions options = {});
  // Waits for what is in flight, up to ack_timeout.
  ~NatsSink() override;
  NatsSink(const NatsSink&) = delete;
  NatsSink& operator=(const NatsSink&) = delete;

  // Errors: kUnavailable: the server is away and there is no room to wait for it, or the last messages were
  // refused; kCapacity: one event is larger than a message may be, or a snapshot needs more than
  // events::kMaxSnapshotParts of them. Parts of a snapshot are offered in order, and after an error from the
  // first on.
  Result<void> publish(const events::EventBatch& batch) override;
  // Core: until the server has read everything; JetStream: until it has stored everything. Errors: kTimeout;
  // kUnavailable: the server refuses, or core: the connection broke meanwhile, and what was on its way may be
  // lost.
  Result<void> flush(Clock::TimePoint until) override;
  Result<void> flush(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));
  // Replaces the snapshot of the stream's worker in the bucket; readers see the old one or the new one.
  // Requires: one batch of kind kSnapshot. Errors: kAlreadyExists: a later life of the worker has written
  // there; kUnavailable, kUnsupported.
  Result<void> put_snapshot(const events::EventBatch& snapshot);

  NatsSinkCounters counters() const;
  std::string describe() const override;

 private:
  class Parts;
  explicit NatsSink(std::unique_ptr<Parts> parts);
  // Writes the worker's snapshot to the bucket, where it is time to.
  void keep_snapshot(const events::Worker& worker);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ashlar::backend::nats
