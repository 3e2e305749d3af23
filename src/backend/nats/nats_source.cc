#include "ashlar/backend/nats/nats_source.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/events/event_codec.h"
#include "backend/nats/jet_stream.h"
#include "backend/nats/nats_connection.h"
#include "backend/nats/nats_error.h"
#include "backend/nats/pull_consumer.h"
#include "backend/nats/replay_order.h"
#include "backend/nats/snapshot_bucket.h"
#include "backend/nats/snapshot_request.h"
#include "backend/nats/subjects.h"

namespace ashlar::backend::nats {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kReplayFetch = 512;
constexpr milliseconds kErrorPause(20);

milliseconds to_ms(Clock::Duration duration) {
  return std::clamp(std::chrono::ceil<milliseconds>(duration), milliseconds(0),
                    milliseconds(24LL * 3600 * 1000));
}

std::span<const std::byte> bytes_of(natsMsg* message) {
  return {reinterpret_cast<const std::byte*>(natsMsg_GetData(message)),
          static_cast<std::size_t>(natsMsg_GetDataLength(message))};
}

}  // namespace

class NatsSource::Parts {
 public:
  using Snapshot = Result<std::optional<std::vector<events::OwnedBatch>>>;
  explicit Parts(NatsSourceOptions given)
      : options(std::move(given)), filter(batch_filter(options.prefix, options.worker)) {}

  Result<void> subscribe();
  Result<void> make_consumer();
  Result<std::size_t> poll_core(feed::BatchConsumer& consumer, milliseconds timeout);
  Result<std::size_t> poll_stream(feed::BatchConsumer& consumer, milliseconds timeout);
  // False: damaged, or from another worker than its subject says.
  bool decode(natsMsg* message, events::OwnedBatch& out) const;
  bool deliver(natsMsg* message, feed::BatchConsumer& consumer);
  // A worker answered the roll call: delivers its snapshot first. False: it needs none, or has none now.
  bool meet(const events::StreamId& stream, feed::BatchConsumer& consumer);
  Result<bool> replay(const events::StreamId& stream, std::uint64_t from, feed::BatchConsumer& consumer);
  Snapshot read_bucket(const events::Worker& worker);

  const NatsSourceOptions options;
  const std::string filter;
  std::unique_ptr<NatsConnection> connection;
  std::optional<JetStream> jet_stream;
  Subscription subscription;  // core
  // Core: who was heard of, and in which incarnation; the others are asked for a snapshot when they answer.
  std::map<events::Worker, std::uint64_t> heard;
  std::optional<PullConsumer> consumer;  // JetStream; empty: to be recreated
  events::OwnedBatch batch;
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::uint64_t> damaged{0};
  mutable std::atomic<std::uint64_t> dropped{0};  // last known value
  std::atomic<std::uint64_t> replayed{0};
  std::atomic<std::uint64_t> snapshots{0};
  std::atomic<std::uint64_t> oversized{0};
};

Result<void> NatsSourceOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(connection.validate());
  ASHLAR_RETURN_IF_ERROR(stream.validate());
  ASHLAR_RETURN_IF_ERROR(check_prefix(prefix));
  ASHLAR_RETURN_IF_ERROR(check_name("bucket", bucket));
  if (!durable.empty()) {
    if (Result<void> good = check_name("durable consumer", durable); !good) return good;
  }
  const char* problem = nullptr;
  if (pending_messages < 1 || pending_messages > (1U << 30) || pending_bytes < 1 ||
      pending_bytes > (1U << 30)) {
    problem = "pending_messages and pending_bytes are from 1 to 2^30";
  } else if (fetch < 1 || fetch > 65'536) {
    problem = "fetch is from 1 to 65536 messages";
  } else if (ack_wait < milliseconds(10) || timeout < milliseconds(1) || timeout > std::chrono::hours(24)) {
    problem = "ack_wait is at least 10 ms, timeout from 1 ms to a day";
  }
  if (problem != nullptr) return make_error(ErrorCode::kInvalidArgument, "source of NATS: %s", problem);
  return {};
}

Result<void> NatsSource::Parts::subscribe() {
  ASHLAR_TRY(JetStream made, JetStream::create(*connection, options.timeout));
  jet_stream = std::move(made);
  if (options.mode == NatsMode::kJetStream) return make_consumer();
  natsStatus status = connection->subscribe(filter, subscription);
  if (status == NATS_OK)
    status = natsSubscription_SetPendingLimits(subscription.get(), static_cast<int>(options.pending_messages),
                                               static_cast<int>(options.pending_bytes));
  // Everything published from here on arrives.
  if (status == NATS_OK)
    status = natsConnection_Publish(connection->get(), roll_call_subject(options.prefix).c_str(), "", 0);
  if (status == NATS_OK) status = connection->flush(options.connection.connect_timeout);
  if (status != NATS_OK) return nats_error(status, "subscribing at NATS");
  return {};
}

Result<void> NatsSource::Parts::make_consumer() {
  const std::string subjects = batch_filter(options.prefix, std::nullopt);
  ASHLAR_RETURN_IF_ERROR(jet_stream->ensure_stream(options.stream, subjects));
  ASHLAR_TRY(PullConsumer made, PullConsumer::create(*connection, *jet_stream,
                                                     {.stream = options.stream.name,
                                                      .subjects = filter,
                                                      .durable = options.durable,
                                                      .from_start = options.start == NatsStart::kAll,
                                                      .ahead = options.fetch,
                                                      .ack_wait = options.ack_wait}));
  consumer = std::move(made);
  return {};
}

bool NatsSource::Parts::decode(natsMsg* message, events::OwnedBatch& out) const {
  return events::decode_batch(bytes_of(message), out) &&
         is_subject_of(natsMsg_GetSubject(message), options.prefix, out.head.stream.worker);
}

bool NatsSource::Parts::deliver(natsMsg* message, feed::BatchConsumer& to) {
  if (!decode(message, batch)) {
    damaged.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const bool is_answer = batch.head.kind == events::BatchKind::kEvents && batch.events.empty();
  if (is_answer && options.mode == NatsMode::kCore && meet(batch.head.stream, to)) return true;
  heard[batch.head.stream.worker] = batch.head.stream.incarnation;
  to.on_batch(batch.view());
  batches.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool NatsSource::Parts::meet(const events::StreamId& stream, feed::BatchConsumer& to) {
  if (const auto at = heard.find(stream.worker); at != heard.end() && at->second >= stream.incarnation)
    return false;
  const Snapshot snapshot = request_snapshot(*connection, request_subject(options.prefix, stream.worker),
                                             stream, options.timeout, options.max_snapshot_bytes);
  connection->sweep();
  // Without one the next event leads to recover().
  if (!snapshot || !*snapshot) return false;
  heard[stream.worker] = stream.incarnation;
  for (const events::OwnedBatch& part : **snapshot) to.on_batch(part.view());
  snapshots.fetch_add(1, std::memory_order_relaxed);
  batches.fetch_add((*snapshot)->size(), std::memory_order_relaxed);
  return true;
}

Result<std::size_t> NatsSource::Parts::poll_core(feed::BatchConsumer& to, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::size_t delivered = 0;
  milliseconds wait = timeout;
  while (true) {
    // Reads what is queued now, not what arrives meanwhile, so that a poll ends.
    std::uint64_t queued = 0;
    if (natsSubscription_QueuedMsgs(subscription.get(), &queued) != NATS_OK) return connection->unavailable();
    std::uint64_t left = std::max<std::uint64_t>(1, queued);
    for (; left > 0; --left) {
      Message message;
      const natsStatus status =
          natsSubscription_NextMsg(Out(message), subscription.get(), queued > 0 ? 1 : wait.count());
      // Messages were dropped; the counter has their number, and the next call returns the next message.
      if (status == NATS_SLOW_CONSUMER) continue;
      if (status == NATS_TIMEOUT) break;
      if (status != NATS_OK) return connection->unavailable();
      if (deliver(message.get(), to)) ++delivered;
    }
    wait = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (delivered > 0) return delivered;
    if (wait.count() <= 0) break;
  }
  if (!connection->is_connected()) return connection->unavailable();
  return delivered;
}

Result<std::size_t> NatsSource::Parts::poll_stream(feed::BatchConsumer& to, milliseconds timeout) {
  if (!connection->wait_until_connected(timeout)) return connection->unavailable();
  if (!consumer) {
    if (Result<void> made = make_consumer(); !made)
      return Error(ErrorCode::kUnavailable, made.error().message());
  }
  std::size_t delivered = 0;
  Result<std::size_t> got = consumer->fetch(options.fetch, timeout, [&](natsMsg* message) {
    if (deliver(message, to)) ++delivered;
  });
  if (!got) {
    consumer.reset();
    return Error(ErrorCode::kUnavailable, got.error().message() + "; the consumer is made again");
  }
  if (*got == 0 && !connection->is_connected()) return connection->unavailable();
  return delivered;
}

Result<bool> NatsSource::Parts::replay(const events::StreamId& stream, std::uint64_t from,
                                       feed::BatchConsumer& to) {
  ASHLAR_TRY(PullConsumer reader,
             PullConsumer::create(*connection, *jet_stream,
                                  {.stream = options.stream.name,
                                   .subjects = batch_filter(options.prefix, stream.worker),
                                   .acknowledge = false,
                                   .ahead = kReplayFetch}));
  ReplayOrder order(stream, from, to, options.max_snapshot_bytes);
  std::uint64_t left = reader.pending();
  const auto take = [&](natsMsg* message) {
    events::OwnedBatch next;
    if (decode(message, next)) {
      order.add(std::move(next));
    } else {
      damaged.fetch_add(1, std::memory_order_relaxed);
    }
  };
  while (left > 0) {
    ASHLAR_TRY(const std::size_t got,
               reader.fetch(std::min<std::uint64_t>(left, kReplayFetch), options.timeout, take));
    if (got == 0) break;  // the oldest may have expired meanwhile
    left -= std::min<std::uint64_t>(left, got);
  }
  replayed.fetch_add(order.delivered(), std::memory_order_relaxed);
  oversized.fetch_add(order.oversized(), std::memory_order_relaxed);
  return order.has_recovered();
}

NatsSource::Parts::Snapshot NatsSource::Parts::read_bucket(const events::Worker& worker) {
  ASHLAR_TRY(std::optional<SnapshotBucket> bucket,
             SnapshotBucket::open(*jet_stream, options.bucket, nullptr));
  if (!bucket) return std::optional<std::vector<events::OwnedBatch>>();
  return bucket->read(worker, options.max_snapshot_bytes);
}

Result<std::unique_ptr<NatsSource>> NatsSource::create(NatsSourceOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto parts = std::make_unique<Parts>(std::move(options));
  ASHLAR_TRY(parts->connection, NatsConnection::create(parts->options.connection));
  ASHLAR_RETURN_IF_ERROR(parts->subscribe());
  return std::unique_ptr<NatsSource>(new NatsSource(std::move(parts)));
}

NatsSource::NatsSource(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

NatsSource::~NatsSource() {
  parts_->consumer.reset();
  // Flushes the last acknowledgements.
  if (parts_->connection->is_connected())
    static_cast<void>(parts_->connection->flush(parts_->options.timeout));
}

Result<std::size_t> NatsSource::poll(feed::BatchConsumer& consumer, Clock::Duration timeout) {
  const milliseconds wait = to_ms(timeout);
  Result<std::size_t> got = parts_->options.mode == NatsMode::kCore ? parts_->poll_core(consumer, wait)
                                                                    : parts_->poll_stream(consumer, wait);
  // An immediate, repeated failure must not turn the poller into a busy loop.
  if (!got) nats_Sleep(std::min(wait, kErrorPause).count());
  return got;
}

Result<bool> NatsSource::recover(const events::StreamId& stream, std::uint64_t from,
                                 feed::BatchConsumer& consumer) {
  Parts& parts = *parts_;
  if (!parts.connection->is_connected()) return parts.connection->unavailable();
  // The requests below hold memory until swept.
  struct Sweep {
    NatsConnection& connection;
    ~Sweep() { connection.sweep(); }
  } const sweep{*parts.connection};
  const std::uint64_t generation = parts.connection->generation();
  // If one way fails the next may succeed; report the failure only when none did.
  std::optional<Error> failure;
  if (parts.options.mode == NatsMode::kJetStream) {
    const Result<bool> replayed = parts.replay(stream, from, consumer);
    if (replayed && *replayed) return true;
    if (!replayed && replayed.error().code() != ErrorCode::kNotFound) failure = replayed.error();
  }
  for (const bool ask_worker : {true, false}) {
    Parts::Snapshot snapshot =
        ask_worker ? request_snapshot(*parts.connection, request_subject(parts.options.prefix, stream.worker),
                                      stream, parts.options.timeout, parts.options.max_snapshot_bytes)
                   : parts.read_bucket(stream.worker);
    if (!snapshot) {
      const ErrorCode code = snapshot.error().code();
      if (code == ErrorCode::kCorruption) parts.damaged.fetch_add(1, std::memory_order_relaxed);
      if (code == ErrorCode::kCapacity) {
        parts.oversized.fetch_add(1, std::memory_order_relaxed);
        log(LogLevel::kWarn, "nats", snapshot.error().message());
      }
      if (!failure && (code == ErrorCode::kTimeout || code == ErrorCode::kUnavailable))
        failure = snapshot.error();
      continue;
    }
    if (!*snapshot || (*snapshot)->front().head.stream != stream || (*snapshot)->front().head.first < from)
      continue;
    for (const events::OwnedBatch& part : **snapshot) consumer.on_batch(part.view());
    parts.snapshots.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  // The request was lost with the connection, or the responder has not reconnected yet.
  if (!parts.connection->is_connected() || parts.connection->generation() != generation ||
      parts.connection->is_new(parts.options.timeout))
    return make_error(ErrorCode::kUnavailable,
                      "the connection to NATS was just re-established, and no responder has answered yet%s%s",
                      failure ? ": " : "", failure ? failure->message().c_str() : "");
  if (failure) {
    const bool timeout = failure->code() == ErrorCode::kTimeout;
    return Error(timeout ? ErrorCode::kTimeout : ErrorCode::kUnavailable, failure->message());
  }
  return false;
}

std::uint64_t NatsSource::damaged() const noexcept {
  return parts_->damaged.load(std::memory_order_relaxed);
}

NatsSourceCounters NatsSource::counters() const {
  const Parts& parts = *parts_;
  // A subscription closed with its connection can no longer be queried.
  std::int64_t dropped = 0;
  if (parts.subscription != nullptr &&
      natsSubscription_GetDropped(parts.subscription.get(), &dropped) == NATS_OK)
    parts.dropped.store(static_cast<std::uint64_t>(dropped), std::memory_order_relaxed);
  return {.batches = parts.batches.load(std::memory_order_relaxed),
          .damaged = parts.damaged.load(std::memory_order_relaxed),
          .dropped = parts.dropped.load(std::memory_order_relaxed),
          .reconnects = parts.connection->reconnects(),
          .replayed = parts.replayed.load(std::memory_order_relaxed),
          .snapshots = parts.snapshots.load(std::memory_order_relaxed),
          .oversized = parts.oversized.load(std::memory_order_relaxed)};
}

std::string NatsSource::describe() const {
  const NatsSourceOptions& options = parts_->options;
  return (options.mode == NatsMode::kCore ? "nats core " : "nats jetstream " + options.stream.name + " ") +
         parts_->filter + " at " + options.connection.describe();
}

}  // namespace ashlar::backend::nats
