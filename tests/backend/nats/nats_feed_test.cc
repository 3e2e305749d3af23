// Batches through a real server: equal, in order, and found again after it was away.
#include <nats/nats.h>

#include <atomic>
#include <thread>

#include "ashlar/events/event_codec.h"
#include "backend/nats/nats_fixture.h"
#include "backend/nats/subjects.h"

namespace ashlar::backend::nats {
namespace {

class NatsModes : public NatsTest, public ::testing::WithParamInterface<NatsMode> {};
INSTANTIATE_TEST_SUITE_P(Both, NatsModes, ::testing::Values(NatsMode::kCore, NatsMode::kJetStream),
                         [](const auto& mode) {
                           return mode.param == NatsMode::kCore ? "Core" : "JetStream";
                         });

TEST_P(NatsModes, BatchesArriveAsTheyWerePublished) {
  NatsServer server;
  const auto source = source_of({.connection = server.options(), .mode = GetParam()});
  const auto sink = sink_of({.connection = server.options(), .mode = GetParam()});
  Collector got;
  const Result<std::size_t> nothing = source->poll(got, milliseconds(0));
  ASSERT_TRUE(nothing) << nothing.error();
  EXPECT_EQ(*nothing, 0u);
  std::vector<events::OwnedBatch> sent = {batch_of(0, 10), batch_of(10, 5, kStream, 3), batch_of(15, 0),
                                          snapshot_of(15, 8)};
  sent[1].events[2].location = 4;
  sent[1].locations = {{.number = 4, .name = "nvme0"}};
  for (const events::OwnedBatch& batch : sent) ASSERT_TRUE(sink->publish(batch.view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.batches.size() == sent.size(); }));
  for (std::size_t i = 0; i < sent.size(); ++i) expect_equal(got.batches[i], sent[i]);
  EXPECT_EQ(source->damaged(), 0u);
  EXPECT_EQ(sink->counters().batches, sent.size());
  EXPECT_EQ(sink->counters().in_flight, 0u);
}

TEST_P(NatsModes, AMillionEventsArriveComplete) {
  NatsServer server;
  constexpr std::uint64_t kEvents = 1'000'000;
  constexpr std::size_t kBatch = 1000;
  const auto source = source_of({.connection = server.options(), .mode = GetParam()});
  const auto sink = sink_of({.connection = server.options(), .mode = GetParam()});
  std::uint64_t wrong = 0;
  std::uint64_t next = 0;
  class Counter final : public feed::BatchConsumer {
   public:
    Counter(std::uint64_t& next, std::uint64_t& wrong) : next_(next), wrong_(wrong) {}
    void on_batch(const events::EventBatch& batch) override {
      if (batch.first != next_) ++wrong_;
      for (std::size_t i = 0; i < batch.events.size(); ++i)
        if (batch.events[i] != event_of(batch.first + i)) ++wrong_;
      next_ = batch.end();
    }

   private:
    std::uint64_t& next_;
    std::uint64_t& wrong_;
  } counter(next, wrong);
  std::thread publisher([&] {
    for (std::uint64_t first = 0; first < kEvents; first += kBatch)
      EXPECT_TRUE(sink->publish(batch_of(first, kBatch).view()));
    EXPECT_TRUE(sink->flush(seconds(300)));
  });
  const auto deadline = std::chrono::steady_clock::now() + seconds(300);
  while (next < kEvents && std::chrono::steady_clock::now() < deadline)
    EXPECT_TRUE(source->poll(counter, milliseconds(100)));
  publisher.join();
  EXPECT_EQ(next, kEvents);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(source->counters().dropped, 0u);
}

TEST_P(NatsModes, LargeBatchesAreCutAndSmallMessagesAreEnough) {
  NatsServer server("max_payload: 4KB");
  const auto source = source_of({.connection = server.options(), .mode = GetParam()});
  const auto sink = sink_of({.connection = server.options(), .mode = GetParam()});
  ASSERT_TRUE(sink->publish(batch_of(0, 1000, kStream, 2).view()));
  const events::OwnedBatch snapshot = snapshot_of(1000, 500);
  ASSERT_TRUE(sink->publish(snapshot.view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  Collector got;
  const auto parts = [&] {
    std::vector<events::OwnedBatch> out;
    for (const events::OwnedBatch& batch : got.batches)
      if (batch.head.kind == events::BatchKind::kSnapshot) out.push_back(batch);
    return out;
  };
  ASSERT_TRUE(poll_until(*source, got, [&] {
    const auto all = parts();
    return !all.empty() && all.size() == all.front().head.parts;
  }));
  EXPECT_TRUE(got.has_all(1000));
  EXPECT_GT(parts().size(), 1u);
  EXPECT_EQ(events_of(parts()), snapshot.events);
  std::uint64_t next = 0;
  for (const events::OwnedBatch& batch : got.batches) {
    if (batch.head.kind != events::BatchKind::kEvents) continue;
    EXPECT_EQ(batch.head.first, next);
    next = batch.view().end();
    for (std::size_t i = 0; i < batch.events.size(); ++i)
      EXPECT_EQ(batch.events[i].hash, event_of(batch.head.first + i).hash);
  }
  EXPECT_GT(sink->counters().messages, sink->counters().batches);
}

TEST_P(NatsModes, GarbageIsCountedAndSkipped) {
  NatsServer server;
  const auto source = source_of({.connection = server.options(), .mode = GetParam()});
  const auto sink = sink_of({.connection = server.options(), .mode = GetParam()});
  natsConnection* raw = nullptr;
  ASSERT_EQ(natsConnection_ConnectTo(&raw, server.url().c_str()), NATS_OK);
  for (const char* text : {"garbage", "", "AKEV and no more"})
    EXPECT_EQ(natsConnection_PublishString(raw, "ashlar.kv.7.1.g1", text), NATS_OK);
  EXPECT_EQ(natsConnection_FlushTimeout(raw, 60'000), NATS_OK);
  natsConnection_Destroy(raw);
  ASSERT_TRUE(sink->publish(batch_of(0, 3).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.batches.size() == 1; }));
  expect_equal(got.batches[0], batch_of(0, 3));
  EXPECT_EQ(source->damaged(), 3u);
}

TEST_P(NatsModes, ABatchUnderTheSubjectOfAnotherWorkerIsRefused) {
  NatsServer server;
  const auto source = source_of({.connection = server.options(), .mode = GetParam()});
  const auto sink = sink_of({.connection = server.options(), .mode = GetParam()});
  std::vector<std::byte> bytes;
  events::encode_batch(batch_of(0, 3).view(), bytes);
  natsConnection* raw = nullptr;
  ASSERT_EQ(natsConnection_ConnectTo(&raw, server.url().c_str()), NATS_OK);
  const events::Worker worker = batch_of(0, 3).head.stream.worker;
  const std::string id = std::to_string(worker.id.value());
  for (const std::string& token : {"999." + std::to_string(worker.rank), id + ".998", "1" + id + ".0"})
    EXPECT_EQ(natsConnection_Publish(raw, ("ashlar.kv." + token + ".g1").c_str(), bytes.data(),
                                     static_cast<int>(bytes.size())),
              NATS_OK);
  EXPECT_EQ(natsConnection_FlushTimeout(raw, 60'000), NATS_OK);
  natsConnection_Destroy(raw);
  ASSERT_TRUE(sink->publish(batch_of(0, 3).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.batches.size() == 1; }));
  expect_equal(got.batches[0], batch_of(0, 3));
  EXPECT_EQ(source->damaged(), 3u);
}

TEST_P(NatsModes, ASourceOfOneWorkerHearsNoOther) {
  NatsServer server;
  const events::StreamId other{.worker = {.id = events::WorkerId(8), .rank = 0}, .incarnation = 1};
  const auto source = source_of({.connection = server.options(), .mode = GetParam(), .worker = other.worker});
  const auto sink = sink_of({.connection = server.options(), .mode = GetParam()});
  ASSERT_TRUE(sink->publish(batch_of(0, 3).view()));
  ASSERT_TRUE(sink->publish(batch_of(0, 4, other).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return !got.batches.empty(); }));
  ASSERT_EQ(got.batches.size(), 1u);
  EXPECT_EQ(got.batches[0].head.stream, other);
}

using NatsCore = NatsTest;

// Core keeps nothing: what was on the wire is lost. The numbers show it, and the worker's snapshot mends it.
TEST_F(NatsCore, AfterARestartEverythingArrivedOrFailedOrIsFoundByItsNumbers) {
  NatsServer server;
  FixedSnapshot snapshot(snapshot_of(300, 20));
  const auto source = source_of({.connection = server.options(), .timeout = seconds(20)});
  const auto sink = sink_of(answering(server, snapshot));
  Collector got;
  const auto publish = [&](std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t i = from; i < to; i += 10) EXPECT_TRUE(sink->publish(batch_of(i, 10).view()));
  };
  publish(0, 100);
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.has_all(100); }));
  server.kill();
  EXPECT_TRUE(poll_until(*source, got, [&] {
    const Result<std::size_t> none = source->poll(got, milliseconds(1));
    return !none && none.error().code() == ErrorCode::kUnavailable;
  }));
  publish(100, 200);
  server.start();
  // A subscription that is back hears what comes from now on.
  ASSERT_TRUE(poll_until(*source, got, [&] { return source->counters().reconnects == 1; }));
  ASSERT_TRUE(poll_until(*source, got, [&] { return sink->flush(milliseconds(100)).has_value(); }));
  publish(200, 300);
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.times.contains(299); }));
  std::uint64_t missing = 300;
  for (std::uint64_t i = 0; i < 300; ++i)
    if (!got.times.contains(i)) missing = std::min(missing, i);
  EXPECT_GE(missing, 100u);
  got.batches.clear();
  const Result<bool> recovered = source->recover(kStream, missing, got);
  ASSERT_TRUE(recovered) << recovered.error();
  EXPECT_TRUE(*recovered);
  ASSERT_EQ(got.batches.size(), 1u);
  EXPECT_EQ(got.batches[0].head.first, 300u);
}

TEST_F(NatsCore, AFullBufferIsAnErrorWhileTheServerIsAway) {
  NatsServer server;
  NatsConnectionOptions connection = server.options();
  connection.pending_bytes = 64 * 1024;
  const auto sink = sink_of({.connection = connection});
  ASSERT_TRUE(sink->publish(batch_of(0, 10).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  server.kill();
  Result<void> result;
  for (std::uint64_t i = 1; result && i < 10'000; ++i) result = sink->publish(batch_of(i * 10, 10).view());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable) << result.error();
  EXPECT_FALSE(sink->flush(milliseconds(50)));
  server.start();
  // The connection comes back by itself.
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (!sink->publish(batch_of(0, 10).view()) && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_TRUE(sink->publish(batch_of(0, 10).view()));
  // Told by a thread of the client.
  while (sink->counters().reconnects == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(sink->counters().reconnects, 1u);
}

TEST_F(NatsCore, ASlowConsumerIsNoticed) {
  NatsServer server;
  const auto source =
      source_of({.connection = server.options(), .pending_messages = 4, .timeout = seconds(30)});
  const auto sink = sink_of({.connection = server.options()});
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(sink->publish(batch_of(i, 1).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  // Of the same connection: behind everything that the server had to send.
  EXPECT_TRUE(source->recover(kStream, 0, *std::make_unique<Collector>()));
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.batches.size() == 4; }));
  EXPECT_EQ(source->counters().dropped, 96u);
  // It goes on with what comes.
  ASSERT_TRUE(sink->publish(batch_of(100, 1).view()));
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.times.contains(100); }));
}

using NatsJetStream = NatsTest;

TEST_F(NatsJetStream, WhatWasAcknowledgedIsThereOnceAfterAKill) {
  NatsServer server;
  const auto sink = sink_of({.connection = server.options(),
                             .mode = NatsMode::kJetStream,
                             .max_in_flight = 64,
                             .ack_timeout = milliseconds(500)});
  constexpr std::uint64_t kBatches = 2000;
  // It goes on until the server was killed for the last time, in the midst of batches.
  std::atomic<bool> killed{false};
  std::atomic<std::uint64_t> published{0};
  std::thread publisher([&] {
    while (published < kBatches || !killed) {
      const events::OwnedBatch batch = batch_of(published++ * 10, 10);
      const auto deadline = std::chrono::steady_clock::now() + seconds(60);
      while (!sink->publish(batch.view()) && std::chrono::steady_clock::now() < deadline) {
      }
    }
    EXPECT_TRUE(sink->flush(seconds(60)));
  });
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t before = sink->counters().batches;
    while (sink->counters().batches < before + 300) std::this_thread::yield();
    server.kill();
    if (i == 2) killed = true;
    server.start();
  }
  publisher.join();
  const std::uint64_t all = published * 10;
  EXPECT_GT(sink->counters().reconnects, 0u);
  const auto source = source_of({.connection = server.options(), .mode = NatsMode::kJetStream});
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.has_all(all); }));
  // Nothing more, and nothing twice.
  const Result<std::size_t> more = source->poll(got, milliseconds(200));
  ASSERT_TRUE(more) << more.error();
  EXPECT_EQ(*more, 0u);
  EXPECT_EQ(got.times.size(), all);
  for (const auto& [number, times] : got.times) ASSERT_EQ(times, 1) << number;
}

TEST_F(NatsJetStream, ABatchThatIsPublishedTwiceIsStoredOnce) {
  NatsServer server;
  // Nothing is sent again by itself: that would be one more that was there.
  const auto sink =
      sink_of({.connection = server.options(), .mode = NatsMode::kJetStream, .ack_timeout = seconds(60)});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(sink->publish(batch_of(0, 10).view()));
  // One that has grown is another.
  ASSERT_TRUE(sink->publish(batch_of(0, 12).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  EXPECT_EQ(sink->counters().duplicates, 2u);
  const auto source = source_of({.connection = server.options(), .mode = NatsMode::kJetStream});
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return got.times.contains(11); }));
  EXPECT_EQ(got.batches.size(), 2u);
}

TEST_F(NatsJetStream, ADurableConsumerGoesOnWhereItWas) {
  NatsServer server;
  // What the first source had asked for and did not take comes again after ack_wait, in whatever order.
  const NatsSourceOptions options{.connection = server.options(),
                                  .mode = NatsMode::kJetStream,
                                  .durable = "router",
                                  .fetch = 4,
                                  .ack_wait = milliseconds(500)};
  const auto sink = sink_of({.connection = server.options(), .mode = NatsMode::kJetStream});
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(sink->publish(batch_of(i, 1).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  Collector first;
  {
    const auto source = source_of(options);
    const Result<std::size_t> got = source->poll(first, seconds(60));
    ASSERT_TRUE(got) << got.error();
    EXPECT_GE(*got, 1u);
    EXPECT_LE(*got, 4u);
  }
  const std::size_t heard = first.batches.size();
  Collector second;
  {
    const auto source = source_of(options);
    ASSERT_TRUE(poll_until(*source, second, [&] {
      for (std::uint64_t i = heard; i < 10; ++i)
        if (!second.times.contains(i)) return false;
      return true;
    }));
  }
  NatsSourceOptions other = options;
  other.worker = kStream.worker;
  const Result<std::unique_ptr<NatsSource>> refused = NatsSource::create(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument) << refused.error();
}

TEST_F(NatsJetStream, ANewConsumerMayBeginNow) {
  NatsServer server;
  const auto sink = sink_of({.connection = server.options(), .mode = NatsMode::kJetStream});
  ASSERT_TRUE(sink->publish(batch_of(0, 5).view()));
  ASSERT_TRUE(sink->flush(seconds(60)));
  const auto source = source_of({.connection = server.options(),
                                 .mode = NatsMode::kJetStream,
                                 .durable = "late",
                                 .start = NatsStart::kNew});
  ASSERT_TRUE(sink->publish(batch_of(5, 5).view()));
  Collector got;
  ASSERT_TRUE(poll_until(*source, got, [&] { return !got.batches.empty(); }));
  EXPECT_EQ(got.batches[0].head.first, 5u);
}

// Changes the streams of a server by a connection of its own.
class Administrator {
 public:
  explicit Administrator(const NatsServer& server) {
    EXPECT_EQ(natsConnection_ConnectTo(&connection_, server.url().c_str()), NATS_OK);
    EXPECT_EQ(natsConnection_JetStream(&streams_, connection_, nullptr), NATS_OK);
  }
  ~Administrator() {
    jsCtx_Destroy(streams_);
    natsConnection_Destroy(connection_);
  }
  Administrator(const Administrator&) = delete;
  Administrator& operator=(const Administrator&) = delete;

  jsCtx* streams() const { return streams_; }

 private:
  natsConnection* connection_ = nullptr;
  jsCtx* streams_ = nullptr;
};

TEST_F(NatsJetStream, ARefusalIsAnErrorUntilTheServerTakesIt) {
  NatsServer server;
  const auto sink = sink_of({.connection = server.options(), .prefix = "a.b", .mode = NatsMode::kJetStream});
  const Administrator administrator(server);
  ASSERT_EQ(js_DeleteStream(administrator.streams(), "ASHLAR_KV", nullptr, nullptr), NATS_OK);
  // A stream of that name that takes nothing of ours.
  jsStreamConfig config;
  jsStreamConfig_Init(&config);
  const char* subject = "elsewhere";
  config.Name = "ASHLAR_KV";
  config.Subjects = &subject;
  config.SubjectsLen = 1;
  ASSERT_EQ(js_AddStream(nullptr, administrator.streams(), &config, nullptr, nullptr), NATS_OK);
  ASSERT_TRUE(sink->publish(batch_of(0, 5).view()));
  Result<void> result;
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  for (std::uint64_t i = 1; result && std::chrono::steady_clock::now() < deadline; ++i)
    result = sink->publish(batch_of(i * 5, 5).view());
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(sink->flush(milliseconds(20)));
  // It takes them now, and nothing that the sink took is lost. (Deleting the stream here, while the sink
  // looks for it four times a second, would race in nats-server 2.9: docs/nats.md.)
  const std::string ours = batch_filter("a.b", std::nullopt);
  subject = ours.c_str();
  ASSERT_EQ(js_UpdateStream(nullptr, administrator.streams(), &config, nullptr, nullptr), NATS_OK);
  const Result<void> flushed = sink->flush(seconds(60));
  EXPECT_TRUE(flushed) << flushed.error();
  const auto source =
      source_of({.connection = server.options(), .prefix = "a.b", .mode = NatsMode::kJetStream});
  Collector got;
  const std::uint64_t taken = sink->counters().batches * 5;
  EXPECT_TRUE(poll_until(*source, got, [&] { return got.has_all(taken); }));
}

TEST_F(NatsJetStream, AStreamThatIsGoneIsMadeAgain) {
  NatsServer server;
  const auto sink = sink_of({.connection = server.options(), .prefix = "a.b", .mode = NatsMode::kJetStream});
  const Administrator administrator(server);
  ASSERT_EQ(js_DeleteStream(administrator.streams(), "ASHLAR_KV", nullptr, nullptr), NATS_OK);
  ASSERT_TRUE(sink->publish(batch_of(0, 5).view()));
  const Result<void> flushed = sink->flush(seconds(60));
  EXPECT_TRUE(flushed) << flushed.error();
  EXPECT_GE(sink->counters().refused, 1u);
  const auto source =
      source_of({.connection = server.options(), .prefix = "a.b", .mode = NatsMode::kJetStream});
  Collector got;
  EXPECT_TRUE(poll_until(*source, got, [&] { return got.has_all(5); }));
}

}  // namespace
}  // namespace ashlar::backend::nats
