// Snapshots and recovery: from the stream, from the worker, from the bucket.
#include <nats/nats.h>

#include <atomic>
#include <thread>

#include "backend/nats/jet_stream.h"
#include "backend/nats/nats_connection.h"
#include "backend/nats/nats_fixture.h"
#include "backend/nats/snapshot_bucket.h"

namespace ashlar::backend::nats {
namespace {

using NatsSnapshot = NatsTest;
constexpr std::size_t kLarge = 100'000;  // 2 MB and more

TEST_F(NatsSnapshot, TheWorkerAnswersInPartsThatFit) {
  NatsServer server({}, false);
  const events::OwnedBatch large = snapshot_of(500, kLarge);
  FixedSnapshot snapshot(large);
  const auto sink = sink_of(answering(server, snapshot));
  const auto source = source_of({.connection = server.options(), .timeout = seconds(30)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 17, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  EXPECT_GT(got.batches.size(), 1u);
  EXPECT_EQ(got.batches.size(), got.batches[0].head.parts);
  EXPECT_TRUE(events_of(got.batches) == large.events);
  EXPECT_EQ(source->counters().snapshots, 1u);
  EXPECT_EQ(sink->counters().answered, 1u);
}

TEST_F(NatsSnapshot, NobodyToAskIsNoErrorAndNoSnapshot) {
  NatsServer server({}, false);
  const auto source = source_of({.connection = server.options(), .timeout = seconds(30)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 0, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_FALSE(*recovered);
}

TEST_F(NatsSnapshot, AnotherLifeOfTheWorkerIsNotThisStream) {
  NatsServer server;
  const events::StreamId later{.worker = kStream.worker, .incarnation = kStream.incarnation + 1};
  FixedSnapshot snapshot(snapshot_of(500, 3, 42, later));
  const auto sink = sink_of(answering(server, snapshot));
  ASSERT_TRUE(sink->put_snapshot(snapshot.snapshot().view()));
  const auto source = source_of({.connection = server.options(), .timeout = seconds(30)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 0, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_FALSE(*recovered);
  EXPECT_TRUE(got.batches.empty());
}

TEST_F(NatsSnapshot, TheBucketIsKeptUpToDateForThoseWhoComeWhenTheWorkerIsGone) {
  NatsServer server;
  FixedSnapshot snapshot(snapshot_of(500, 3));
  NatsSinkOptions options = answering(server, snapshot);
  options.bucket_every = milliseconds(1);
  {
    const auto sink = sink_of(options);
    ASSERT_TRUE(sink->publish(batch_of(0, 5).view()));
    EXPECT_EQ(sink->counters().in_bucket, 1u);
    EXPECT_EQ(sink->counters().not_in_bucket, 0u);
  }
  const auto source = source_of({.connection = server.options(), .timeout = seconds(30)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 0, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  ASSERT_FALSE(got.batches.empty());
  EXPECT_EQ(got.batches[0].head.first, 500u);
}

TEST_F(NatsSnapshot, AWorkerThatDoesNotAnswerIsATimeout) {
  NatsServer server;
  natsConnection* raw = nullptr;
  natsSubscription* silent = nullptr;
  ASSERT_EQ(natsConnection_ConnectTo(&raw, server.url().c_str()), NATS_OK);
  ASSERT_EQ(natsConnection_SubscribeSync(&silent, raw, "ashlar.kv.snapshot.7.1.get"), NATS_OK);
  ASSERT_EQ(natsConnection_FlushTimeout(raw, 60'000), NATS_OK);
  const auto source = source_of({.connection = server.options(), .timeout = milliseconds(300)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 0, got);
  ASSERT_FALSE(recovered);
  EXPECT_EQ(recovered.error().code(), ErrorCode::kTimeout) << recovered.error();
  natsSubscription_Destroy(silent);
  natsConnection_Destroy(raw);
}

TEST_F(NatsSnapshot, TheBucketHasTheLastOneWhenTheWorkerIsGone) {
  NatsServer server;
  const events::OwnedBatch large = snapshot_of(900, kLarge, 2);
  {
    const auto sink = sink_of({.connection = server.options()});
    ASSERT_TRUE(sink->put_snapshot(snapshot_of(100, 50, 1).view()));
    const Result<void> put = sink->put_snapshot(large.view());
    ASSERT_TRUE(put) << put.error();
    // An earlier life comes too late.
    const events::StreamId earlier{.worker = kStream.worker, .incarnation = kStream.incarnation - 1};
    const Result<void> refused = sink->put_snapshot(snapshot_of(5, 5, 3, earlier).view());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kAlreadyExists) << refused.error();
  }
  const auto source = source_of({.connection = server.options(), .timeout = seconds(30)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 800, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  EXPECT_GT(got.batches.size(), 1u);
  EXPECT_TRUE(events_of(got.batches) == large.events);
  // One that is older than what the listener knows is of no use.
  const Result<bool> older = source->recover(kStream, 901, got);
  ASSERT_TRUE(older) << older.error();
  EXPECT_FALSE(*older);
}

TEST_F(NatsSnapshot, AReaderOfTheBucketNeverMixesTwo) {
  NatsServer server("max_payload: 4KB");
  auto connection = NatsConnection::create(server.options());
  ASSERT_TRUE(connection) << connection.error();
  Result<JetStream> jet_stream = JetStream::create(**connection, seconds(10));
  ASSERT_TRUE(jet_stream);
  const NatsStreamOptions storage{.in_memory = true};
  auto writer = SnapshotBucket::open(*jet_stream, "snapshots", &storage);
  ASSERT_TRUE(writer) << writer.error();
  constexpr int kSnapshots = 60;
  const auto nth = [](int n) {
    events::OwnedBatch batch = snapshot_of(static_cast<std::uint64_t>(n), 300 + 50 * (n % 3), n);
    for (events::KvEvent& event : batch.events) event.metadata = static_cast<std::uint32_t>(n);
    return batch;
  };
  ASSERT_TRUE((*writer)->write(nth(0).view(), 3000));
  std::atomic<bool> done{false};
  std::thread writing([&] {
    for (int n = 1; n <= kSnapshots; ++n) EXPECT_TRUE((*writer)->write(nth(n).view(), 3000));
    done.store(true);
  });
  auto second = NatsConnection::create(server.options());
  ASSERT_TRUE(second);
  Result<JetStream> reading = JetStream::create(**second, seconds(10));
  auto reader = SnapshotBucket::open(*reading, "snapshots", nullptr);
  ASSERT_TRUE(reader && *reader);
  std::uint64_t last = 0;
  for (bool final_turn = false; !final_turn;) {
    final_turn = done.load();
    const auto got = (*reader)->read(kStream.worker, std::size_t{1} << 30);
    if (!got) {
      // Overtaken again and again: said, not mixed.
      EXPECT_EQ(got.error().code(), ErrorCode::kCorruption) << got.error();
      continue;
    }
    ASSERT_TRUE(*got);
    const std::uint64_t n = (*got)->front().head.first;
    EXPECT_GE(n, last);
    last = n;
    ASSERT_TRUE(events_of(**got) == nth(static_cast<int>(n)).events) << n;
  }
  writing.join();
  EXPECT_EQ(last, std::uint64_t{kSnapshots});
  const auto nobody = (*reader)->read({.id = events::WorkerId(99), .rank = 0}, std::size_t{1} << 30);
  ASSERT_TRUE(nobody);
  EXPECT_FALSE(*nobody);
}

using NatsReplay = NatsTest;

TEST_F(NatsReplay, TheStreamHasWhatIsMissing) {
  NatsServer server;
  const auto sink = sink_of({.connection = server.options(), .mode = NatsMode::kJetStream});
  for (std::uint64_t i = 0; i < 3000; i += 3) ASSERT_TRUE(sink->publish(batch_of(i, 3).view()));
  const events::StreamId other{.worker = kStream.worker, .incarnation = 9};
  ASSERT_TRUE(sink->publish(batch_of(0, 10, other).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  const auto source = source_of(
      {.connection = server.options(), .mode = NatsMode::kJetStream, .durable = "r", .timeout = seconds(30)});
  Collector got;
  Result<bool> recovered = source->recover(kStream, 1000, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  EXPECT_EQ(got.batches.front().head.first, 999u);
  EXPECT_EQ(got.batches.back().view().end(), 3000u);
  EXPECT_EQ(got.times.size(), 3000u - 999u);
  EXPECT_EQ(source->counters().replayed, got.batches.size());
  // Who knows everything is told nothing.
  Collector none;
  recovered = source->recover(kStream, 3000, none);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  EXPECT_TRUE(none.batches.empty());
  // And polling is where it was.
  Collector polled;
  EXPECT_TRUE(poll_until(*source, polled, [&] { return polled.batches.size() == 1001; }));
}

TEST_F(NatsReplay, WhatTheStreamHasForgottenComesFromTheWorker) {
  NatsServer server;
  FixedSnapshot snapshot(snapshot_of(400, 30));
  NatsSinkOptions options = answering(server, snapshot, NatsMode::kJetStream);
  options.stream.max_bytes = 20'000;
  const auto sink = sink_of(options);
  for (std::uint64_t i = 0; i < 400; i += 10) ASSERT_TRUE(sink->publish(batch_of(i, 10).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  const auto source =
      source_of({.connection = server.options(), .mode = NatsMode::kJetStream, .timeout = seconds(30)});
  Collector got;
  const Result<bool> recovered = source->recover(kStream, 0, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  ASSERT_EQ(got.batches.size(), 1u);
  EXPECT_EQ(got.batches[0].head.kind, events::BatchKind::kSnapshot);
  EXPECT_EQ(source->counters().replayed, 0u);
}

}  // namespace
}  // namespace ashlar::backend::nats
