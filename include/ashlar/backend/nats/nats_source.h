// NatsSource: receives batches of events from NATS.
//
// Core: a subscription. What comes while nobody listens, or faster than poll() takes it, is lost: the client
// drops what exceeds pending_messages or pending_bytes, and counters().dropped says so.
//
// JetStream: a consumer that pulls, and acknowledges a batch after it was delivered. With the name of a
// durable one, the server remembers how far it came: a source that is made again with that name goes on
// there, and may get the last batches twice.
//
// recover() asks, in this order: the stream of JetStream, from its start; the worker itself, by request; the
// bucket of snapshots. A server without JetStream is only asked for the second.
//
// Thread safety: thread-compatible; counters() and describe() by any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/result.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::backend::nats {

enum class NatsStart : std::uint8_t { kAll, kNew };

struct NatsSourceOptions {
  NatsConnectionOptions connection = NatsConnectionOptions();
  std::string prefix = "ashlar.kv";
  NatsMode mode = NatsMode::kCore;
  std::optional<events::Worker> worker = {};  // only this one; nothing: all

  // kCore
  std::size_t pending_messages = 65'536;
  std::size_t pending_bytes = std::size_t{256} << 20;

  // kJetStream
  NatsStreamOptions stream = NatsStreamOptions();
  std::string durable = {};           // empty: a consumer that goes with the source
  NatsStart start = NatsStart::kAll;  // of a consumer that is new
  std::size_t fetch = 256;            // messages per request
  std::chrono::milliseconds ack_wait{
      30'000};  // what was delivered and not acknowledged for so long comes again

  std::chrono::milliseconds timeout{5000};  // of requests
  std::string bucket = "ashlar_snapshots";
  // Memory for a snapshot that recover() gathers, and as much for batches that came too early. A larger
  // snapshot is not taken.
  std::size_t max_snapshot_bytes = std::size_t{256} << 20;

  Result<void> validate() const;
};

struct NatsSourceCounters {
  std::uint64_t batches = 0;  // delivered by poll()
  std::uint64_t damaged = 0;  // messages that were no batches
  std::uint64_t dropped = 0;  // messages, by the client, because poll() was too slow
  std::uint64_t reconnects = 0;
  std::uint64_t replayed = 0;   // batches that recover() read from the stream
  std::uint64_t snapshots = 0;  // that recover() got
  std::uint64_t oversized = 0;  // snapshots above max_snapshot_bytes
};

class NatsSource final : public feed::FeedSource {
 public:
  // Connects and subscribes. Errors: as NatsSink::create().
  static Result<std::unique_ptr<NatsSource>> create(NatsSourceOptions options = {});
  ~NatsSource() override;
  NatsSource(const NatsSource&) = delete;
  NatsSource& operator=(const NatsSource&) = delete;

  Result<std::size_t> poll(feed::BatchConsumer& consumer, Clock::Duration timeout) override;
  Result<bool> recover(const events::StreamId& stream, std::uint64_t from,
                       feed::BatchConsumer& consumer) override;
  std::uint64_t damaged() const noexcept override;
  std::string describe() const override;
  NatsSourceCounters counters() const;

 private:
  class Parts;
  explicit NatsSource(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ashlar::backend::nats
