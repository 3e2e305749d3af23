// NatsSource: receives batches of events from NATS.
//
// Core: a subscription. Batches published while it does not exist, or faster than poll() takes them, are
// lost: the client drops what exceeds pending_messages or pending_bytes (counters().dropped). A new source
// calls the roll: workers that answer requests (NatsSinkOptions::snapshots) say that they are there, and
// poll() begins with their snapshots, so a late listener knows quiet workers too.
//
// JetStream: a pull consumer that acknowledges a batch after its delivery. For a durable consumer the server
// remembers the position: a new source with that name continues there, and may get the last batches twice.
//
// recover() tries, in this order: the JetStream stream, from its start; the worker, by request; the bucket of
// snapshots. Without JetStream only the second.
//
// Thread safety: thread-compatible; counters() and describe() are thread-safe.
// Complexity:    O(bytes) per batch; recover() is O(kept events). Memory: pending_bytes (core) or `fetch`
//                messages (JetStream), and up to twice max_snapshot_bytes during recover().
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
  std::optional<events::Worker> worker = {};  // only this one; nullopt: all

  // kCore
  std::size_t pending_messages = 65'536;
  std::size_t pending_bytes = std::size_t{256} << 20;

  // kJetStream
  NatsStreamOptions stream = NatsStreamOptions();
  std::string durable = {};                    // empty: a consumer that ends with the source
  NatsStart start = NatsStart::kAll;           // of a new consumer
  std::size_t fetch = 256;                     // messages per request
  std::chrono::milliseconds ack_wait{30'000};  // after which an unacknowledged batch is delivered again

  std::chrono::milliseconds timeout{5000};  // of requests
  std::string bucket = "ashlar_snapshots";
  // Memory for a snapshot that recover() collects, and as much for batches that arrive early. A larger
  // snapshot is dropped.
  std::size_t max_snapshot_bytes = std::size_t{256} << 20;

  Result<void> validate() const;
};

struct NatsSourceCounters {
  std::uint64_t batches = 0;  // delivered by poll()
  std::uint64_t damaged = 0;  // undecodable messages
  std::uint64_t dropped = 0;  // messages dropped by the client because poll() was too slow
  std::uint64_t reconnects = 0;
  std::uint64_t replayed = 0;   // batches that recover() read from the stream
  std::uint64_t snapshots = 0;  // obtained by recover()
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
