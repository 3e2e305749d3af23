#include "ashlar/backend/nats/nats_sink.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/events/event_codec.h"
#include "backend/nats/batch_pieces.h"
#include "backend/nats/jet_publisher.h"
#include "backend/nats/jet_stream.h"
#include "backend/nats/nats_connection.h"
#include "backend/nats/nats_error.h"
#include "backend/nats/request_thread.h"
#include "backend/nats/snapshot_bucket.h"
#include "backend/nats/snapshot_responder.h"
#include "backend/nats/subjects.h"

namespace ashlar::backend::nats {

class NatsSink::Parts {
 public:
  explicit Parts(NatsSinkOptions given) : options(std::move(given)) {}

  Result<void> publish(const events::EventBatch& batch) {
    const std::size_t overhead = jets == nullptr ? 0 : JetPublisher::kHeaderBytes;
    const std::size_t limit = connection->max_payload();
    Result<void> sent = for_each_piece(
        batch, limit - std::min(limit, overhead), buffer,
        [this](const events::EventBatch& piece, std::span<const std::byte> bytes) {
          return send(piece, bytes);
        },
        batch.parts > 1 ? &cuts[batch.stream.worker] : nullptr);
    if (sent) {
      batches.fetch_add(1, std::memory_order_relaxed);
      const MutexLock lock(heads_mu);
      events::EventBatch& head = heads[batch.stream.worker] = {};
      head.stream = batch.stream;
      head.keys = batch.keys;
      head.first = batch.kind == events::BatchKind::kSnapshot ? batch.first : batch.end();
    }
    return sent;
  }

  // Answers a roll call: an empty batch of each worker whose snapshots can be asked for, under its subject.
  void present() {
    std::vector<events::EventBatch> known;
    {
      const MutexLock lock(heads_mu);
      for (const NatsSnapshots& one : options.snapshots)
        if (const auto at = heads.find(one.worker); at != heads.end()) known.push_back(at->second);
    }
    std::string to;
    std::vector<std::byte> bytes;
    for (const events::EventBatch& head : known) {
      batch_subject(options.prefix, head, to);
      events::encode_batch(head, bytes);
      // Lost with the connection: who has just subscribed there asks again.
      static_cast<void>(natsConnection_Publish(connection->get(), to.c_str(), bytes.data(),
                                               static_cast<int>(bytes.size())));
    }
  }

  Result<void> send(const events::EventBatch& piece, std::span<const std::byte> bytes) {
    batch_subject(options.prefix, piece, subject);
    if (jets != nullptr) {
      batch_id(piece, id);
      ASHLAR_DCHECK(id.size() < JetPublisher::kHeaderBytes,
                    "the id %s is too long for the headers of a message", id.c_str());
      if (Result<void> taken = jets->publish(subject, id, bytes); !taken) return taken;
    } else {
      const natsStatus status = natsConnection_Publish(connection->get(), subject.c_str(), bytes.data(),
                                                       static_cast<int>(bytes.size()));
      if (status == NATS_INSUFFICIENT_BUFFER)
        return make_error(
            ErrorCode::kUnavailable,
            "NATS at %s is unreachable, and its buffer of %zu bytes is full; publish the batch again later",
            options.connection.describe().c_str(), options.connection.pending_bytes);
      if (status == NATS_CONNECTION_CLOSED) return connection->unavailable();
      if (status != NATS_OK) return nats_error(status, "publishing to NATS");
    }
    messages.fetch_add(1, std::memory_order_relaxed);
    bytes_sent.fetch_add(bytes.size(), std::memory_order_relaxed);
    return {};
  }

  const NatsSinkOptions options;
  std::unique_ptr<NatsConnection> connection;
  std::unique_ptr<JetPublisher> jets;  // null: core NATS
  std::map<events::Worker, SnapshotCut> cuts;
  std::map<events::Worker, std::chrono::steady_clock::time_point> next_in_bucket;
  std::atomic<std::uint64_t> in_bucket{0};
  std::atomic<std::uint64_t> not_in_bucket{0};
  Mutex heads_mu;
  // The end of what was published, by worker; without events.
  std::map<events::Worker, events::EventBatch> heads ASHLAR_GUARDED_BY(heads_mu);
  std::vector<std::unique_ptr<SnapshotResponder>> responders;
  std::unique_ptr<RequestThread> roll_calls;
  std::optional<SnapshotBucket> bucket;
  std::vector<std::byte> buffer;
  std::string subject;
  std::string id;
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::uint64_t> messages{0};
  std::atomic<std::uint64_t> bytes_sent{0};
};

Result<void> NatsSinkOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(connection.validate());
  ASHLAR_RETURN_IF_ERROR(stream.validate());
  ASHLAR_RETURN_IF_ERROR(check_prefix(prefix));
  ASHLAR_RETURN_IF_ERROR(check_name("bucket", bucket));
  const char* problem = nullptr;
  if (max_in_flight < 1 || max_in_flight > (1U << 20) || max_in_flight_bytes < 1) {
    problem = "max_in_flight is from 1 to 2^20 messages, max_in_flight_bytes at least 1";
  } else if (ack_timeout.count() < 1 || ack_timeout > std::chrono::hours(24)) {
    problem = "ack_timeout is from 1 ms to a day";
  } else if (std::ranges::any_of(snapshots, [](const NatsSnapshots& one) { return one.source == nullptr; })) {
    problem = "snapshots without a source";
  }
  if (problem != nullptr) return make_error(ErrorCode::kInvalidArgument, "sink of NATS: %s", problem);
  return {};
}

Result<std::unique_ptr<NatsSink>> NatsSink::create(NatsSinkOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto parts = std::make_unique<Parts>(std::move(options));
  const NatsSinkOptions& given = parts->options;
  ASHLAR_TRY(parts->connection, NatsConnection::create(given.connection));
  if (given.mode == NatsMode::kJetStream) {
    ASHLAR_TRY(parts->jets,
               JetPublisher::create(*parts->connection, {.stream = given.stream,
                                                         .subjects = batch_filter(given.prefix, std::nullopt),
                                                         .max_messages = given.max_in_flight,
                                                         .max_bytes = given.max_in_flight_bytes,
                                                         .ack_timeout = given.ack_timeout}));
  }
  for (const NatsSnapshots& one : given.snapshots) {
    ASHLAR_TRY(std::unique_ptr<SnapshotResponder> responder,
               SnapshotResponder::create(*parts->connection, request_subject(given.prefix, one.worker),
                                         *one.source));
    parts->responders.push_back(std::move(responder));
  }
  if (!given.snapshots.empty()) {
    Parts* const self = parts.get();
    ASHLAR_TRY(parts->roll_calls,
               RequestThread::create(*parts->connection, roll_call_subject(given.prefix),
                                     [self](const char*, std::span<const std::byte>) { self->present(); }));
  }
  // From here on requests are answered.
  const natsStatus status = parts->connection->flush(given.connection.connect_timeout);
  if (status != NATS_OK) return nats_error(status, "subscribing at NATS");
  return std::unique_ptr<NatsSink>(new NatsSink(std::move(parts)));
}

NatsSink::NatsSink(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

NatsSink::~NatsSink() {
  parts_->roll_calls.reset();
  parts_->responders.clear();
  if (parts_->connection->is_connected()) static_cast<void>(flush(parts_->options.ack_timeout).has_value());
}

Result<void> NatsSink::publish(const events::EventBatch& batch) {
  Result<void> published = parts_->publish(batch);
  if (published) keep_snapshot(batch.stream.worker);
  return published;
}

void NatsSink::keep_snapshot(const events::Worker& worker) {
  Parts& parts = *parts_;
  const auto now = std::chrono::steady_clock::now();
  if (parts.options.bucket_every.count() == 0 || now < parts.next_in_bucket[worker]) return;
  const auto at = std::ranges::find(parts.options.snapshots, worker, &NatsSnapshots::worker);
  if (at == parts.options.snapshots.end()) return;
  parts.next_in_bucket[worker] = now + parts.options.bucket_every;
  const events::OwnedBatch snapshot = at->source->snapshot();
  auto& counter = put_snapshot(snapshot.view()) ? parts.in_bucket : parts.not_in_bucket;
  counter.fetch_add(1, std::memory_order_relaxed);
}

Result<void> NatsSink::flush(Clock::TimePoint until) {
  // Rounded up, and clamped to what waits accept.
  const Clock::TimePoint now = Clock::real().now();
  const Clock::Duration left =
      until <= now ? Clock::Duration(0) : std::min<Clock::Duration>(until - now, std::chrono::hours(24));
  return flush(std::chrono::ceil<std::chrono::milliseconds>(left));
}

Result<void> NatsSink::flush(std::chrono::milliseconds timeout) {
  if (parts_->jets != nullptr) return parts_->jets->flush(timeout);
  NatsConnection& connection = *parts_->connection;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Messages queued for an absent server go out when it is back.
  if (!connection.wait_until_connected(timeout)) return connection.unavailable();
  const std::uint64_t generation = connection.generation();
  const natsStatus status = connection.flush(
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  const bool same = connection.generation() == generation;
  if (status == NATS_OK && same) return {};
  if (!same || status == NATS_CONNECTION_DISCONNECTED || !connection.is_connected())
    return make_error(ErrorCode::kUnavailable,
                      "the connection to NATS at %s broke, and messages in flight may be lost",
                      parts_->options.connection.describe().c_str());
  return nats_error(status, "flushing to NATS");
}

Result<void> NatsSink::put_snapshot(const events::EventBatch& snapshot) {
  if (!parts_->bucket) {
    ASHLAR_TRY(const JetStream jet_stream,
               JetStream::create(*parts_->connection, parts_->options.ack_timeout));
    ASHLAR_TRY(parts_->bucket,
               SnapshotBucket::open(jet_stream, parts_->options.bucket, &parts_->options.stream));
  }
  const std::size_t limit = parts_->connection->max_payload();
  Result<void> written = parts_->bucket->write(snapshot, limit - std::min(limit, JetPublisher::kHeaderBytes));
  // The bucket may be lost with its server.
  if (!written && written.error().code() != ErrorCode::kAlreadyExists) parts_->bucket.reset();
  return written;
}

NatsSinkCounters NatsSink::counters() const {
  const Parts& parts = *parts_;
  NatsSinkCounters out{.batches = parts.batches.load(std::memory_order_relaxed),
                       .messages = parts.messages.load(std::memory_order_relaxed),
                       .bytes = parts.bytes_sent.load(std::memory_order_relaxed),
                       .reconnects = parts.connection->reconnects()};
  if (parts.jets != nullptr) {
    out.resent = parts.jets->resent();
    out.duplicates = parts.jets->duplicates();
    out.refused = parts.jets->refused();
    out.in_flight = parts.jets->in_flight();
  }
  out.in_bucket = parts.in_bucket.load(std::memory_order_relaxed);
  out.not_in_bucket = parts.not_in_bucket.load(std::memory_order_relaxed);
  for (const auto& responder : parts.responders) out.answered += responder->answered();
  return out;
}

std::string NatsSink::describe() const {
  const NatsSinkOptions& options = parts_->options;
  return (parts_->jets == nullptr ? "nats core " : "nats jetstream " + options.stream.name + " ") +
         options.prefix + " at " + options.connection.describe();
}

}  // namespace ashlar::backend::nats
