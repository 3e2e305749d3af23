// What tests of NATS share: streams of events, a consumer that keeps what it gets, and logins that must work
// or fail.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/backend/nats/nats_sink.h"
#include "ashlar/backend/nats/nats_source.h"
#include "backend/nats/nats_server.h"

namespace ashlar::backend::nats {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline const events::StreamId kStream{.worker = {.id = events::WorkerId(7), .rank = 1}, .incarnation = 3};

// Event `number` of any stream: nothing that a codec could leave out.
inline events::KvEvent event_of(std::uint64_t number, std::uint8_t tier = 0) {
  events::KvEvent event;
  event.hash = tokens::SequenceHash::root(number * 0x9E3779B97F4A7C15U + 1);
  event.kind = number % 3 == 2 ? events::KvEventKind::kRemoved : events::KvEventKind::kStored;
  event.tier = events::TierId(tier);
  event.block = static_cast<std::uint32_t>(number);
  event.sequence = number;
  return event;
}

inline events::OwnedBatch batch_of(std::uint64_t first, std::size_t count,
                                   const events::StreamId& stream = kStream, std::uint8_t tiers = 1) {
  events::OwnedBatch batch;
  batch.head.stream = stream;
  batch.head.keys.block_size = 16;
  batch.head.first = first;
  batch.head.published_ns = 1'000'000 + static_cast<std::int64_t>(first);
  for (std::uint64_t i = first; i < first + count; ++i)
    batch.events.push_back(event_of(i, static_cast<std::uint8_t>(i % tiers)));
  return batch;
}

inline events::OwnedBatch snapshot_of(std::uint64_t next, std::size_t count, std::int64_t when = 42,
                                      const events::StreamId& stream = kStream) {
  events::OwnedBatch batch = batch_of(0, count, stream);
  batch.head.kind = events::BatchKind::kSnapshot;
  batch.head.first = next;
  batch.head.published_ns = when;
  for (events::KvEvent& event : batch.events) {
    event.kind = events::KvEventKind::kStored;
    event.sequence = 0;  // those of a snapshot have none
  }
  return batch;
}

class Collector final : public feed::BatchConsumer {
 public:
  void on_batch(const events::EventBatch& batch) override {
    batches.push_back(events::OwnedBatch::of(batch));
    if (batch.kind == events::BatchKind::kEvents)
      for (std::uint64_t i = batch.first; i < batch.end(); ++i) ++times[i];
  }
  bool has_all(std::uint64_t end) const { return times.size() >= end; }
  // How often each number came.
  std::map<std::uint64_t, int> times;
  std::vector<events::OwnedBatch> batches;
};

inline void expect_equal(const events::OwnedBatch& got, const events::OwnedBatch& wanted) {
  EXPECT_EQ(got.head.stream, wanted.head.stream);
  EXPECT_EQ(got.head.keys, wanted.head.keys);
  EXPECT_EQ(got.head.kind, wanted.head.kind);
  EXPECT_EQ(got.head.first, wanted.head.first);
  EXPECT_EQ(got.head.published_ns, wanted.head.published_ns);
  EXPECT_EQ(got.events, wanted.events);
  EXPECT_EQ(got.locations, wanted.locations);
}

// The events of all parts of a snapshot, in order.
inline std::vector<events::KvEvent> events_of(const std::vector<events::OwnedBatch>& parts) {
  std::vector<events::KvEvent> out;
  for (const events::OwnedBatch& part : parts) out.insert(out.end(), part.events.begin(), part.events.end());
  return out;
}

// Polls until it is so, or minutes have passed.
inline bool poll_until(NatsSource& source, Collector& into, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(150);
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    const Result<std::size_t> got = source.poll(into, milliseconds(100));
    if (!got) {
      EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable) << got.error();
    }
  }
  return done();
}

// Requires: the server can be reached. It may be slow: unless the test says otherwise, it is waited for.
inline std::unique_ptr<NatsSink> sink_of(NatsSinkOptions options) {
  if (options.ack_timeout == NatsSinkOptions().ack_timeout) options.ack_timeout = seconds(30);
  Result<std::unique_ptr<NatsSink>> sink = NatsSink::create(std::move(options));
  EXPECT_TRUE(sink) << sink.error();
  return sink ? std::move(*sink) : nullptr;
}
inline std::unique_ptr<NatsSource> source_of(NatsSourceOptions options) {
  if (options.timeout == NatsSourceOptions().timeout) options.timeout = seconds(15);
  Result<std::unique_ptr<NatsSource>> source = NatsSource::create(std::move(options));
  EXPECT_TRUE(source) << source.error();
  return source ? std::move(*source) : nullptr;
}

// Why a sink is not let in.
inline Error error_of(const NatsConnectionOptions& options) {
  const auto sink = NatsSink::create({.connection = options});
  return sink ? Error(ErrorCode::kInternal, "it was let in") : sink.error();
}

inline void expect_round_trip(const NatsConnectionOptions& options) {
  const auto source = source_of({.connection = options});
  const auto sink = sink_of({.connection = options});
  ASSERT_TRUE(source && sink);
  ASSERT_TRUE(sink->publish(batch_of(0, 3).view()));
  Collector got;
  EXPECT_TRUE(poll_until(*source, got, [&] { return got.has_all(3); }));
}

// A sink that answers for kStream's worker. (Filled in by hand: g++ 12 warns of a list of designators with a
// vector in it.)
inline NatsSinkOptions answering(const NatsServer& server, events::SnapshotSource& source,
                                 NatsMode mode = NatsMode::kCore) {
  NatsSinkOptions options;
  options.connection = server.options();
  options.mode = mode;
  options.snapshots.push_back({.worker = kStream.worker, .source = &source});
  return options;
}

class NatsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASHLAR_NEEDS_SERVER(NatsServer::is_installed(), "there is no nats-server"); }
};

// A worker whose snapshots are asked for.
class FixedSnapshot final : public events::SnapshotSource {
 public:
  explicit FixedSnapshot(events::OwnedBatch batch) : batch_(std::move(batch)) {}
  events::OwnedBatch snapshot() override { return batch_; }

 private:
  const events::OwnedBatch batch_;
};

}  // namespace ashlar::backend::nats
