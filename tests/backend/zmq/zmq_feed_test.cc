// Batches of our own from a sink to a source, put right by a StreamReceiver.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ashlar/events/event_codec.h"
#include "ashlar/events/event_manager.h"
#include "backend/zmq/feed_support.h"
#include "backend/zmq/raw_socket.h"
#include "support/rounds.h"
#include "support/server.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;

const EnginePublisherOptions kWithReplay = {.endpoint = kAnyPort, .replay_endpoint = kAnyPort};

// For a publisher that goes and comes back to the same place.
EnginePublisherOptions on_ports_of_its_own() {
  return {.endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
          .attach = Attach::kBind,
          .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port())};
}

// Polls until the listener is at the end of the stream.
::testing::AssertionResult hears_all(feed::StreamReceiver& receiver, TestListener& listener,
                                     const TestStream& stream) {
  const events::Worker worker = stream.id().worker;
  const bool good = eventually([&] {
    (void)receiver.poll(1ms);
    return listener.next[worker] == stream.number() && receiver.is_complete(worker);
  });
  if (!good)
    return ::testing::AssertionFailure() << "at " << listener.next[worker] << " of " << stream.number();
  if (listener.holdings[worker] != stream.holdings()) return ::testing::AssertionFailure() << "other blocks";
  return ::testing::AssertionSuccess();
}

TEST(ZmqFeedTest, DeliversBatchesAsTheyWere) {
  auto sink = make_sink(kWithReplay);
  auto source = make_source({to_hear(*sink)});
  ASSERT_TRUE(is_heard(sink->publisher()));
  TestStream stream(7, 3);
  events::EventBatch batch = stream.next(50);
  batch.keys.scheme = 9;
  batch.published_ns = 123;
  send(*sink, batch);
  TestConsumer consumer;
  ASSERT_TRUE(eventually([&] { return source->poll(consumer, 10ms).value_or(0) > 0; }));
  ASSERT_EQ(consumer.batches.size(), 1U);
  const events::EventBatch heard = consumer.batches[0].view();
  EXPECT_EQ(heard.stream, batch.stream);
  EXPECT_EQ(heard.keys, batch.keys);
  EXPECT_EQ(heard.published_ns, 123);
  ASSERT_EQ(heard.events.size(), 50U);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_EQ(heard.events[i].hash, batch.events[i].hash);
}

TEST(ZmqFeedTest, ALateReceiverHearsEverythingByReplay) {
  auto sink = make_sink(kWithReplay);
  TestStream stream(1);
  for (int i = 0; i < 200; ++i) send(*sink, stream.next(37));
  ASSERT_TRUE(sink->publisher().flush(100s));
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  send(*sink, stream.next(5));
  EXPECT_TRUE(hears_all(receiver, listener, stream));
  EXPECT_EQ(receiver.counters().gaps, 1U);
  EXPECT_EQ(receiver.counters().replayed, 1U);
  EXPECT_EQ(receiver.counters().resyncs, 0U);
}

TEST(ZmqFeedTest, WhatASlowReceiverLostIsReplayedFromTheLastBatchItHeard) {
  EnginePublisherOptions options = kWithReplay;
  options.hwm = 1;
  auto sink = make_sink(options);
  SubscriberOptions hear = to_hear(*sink);
  hear.hwm = 1;
  auto source = make_source({hear});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  TestStream stream(1);
  send(*sink, stream.next(100));
  ASSERT_TRUE(hears_all(receiver, listener, stream));
  // How much is on its way before something is lost is a matter of the system.
  for (std::uint64_t round = 0;
       round < testing::rounds(5) || (round < 100 && receiver.counters().replayed == 0); ++round) {
    for (int i = 0; i < 1000; ++i) send(*sink, stream.next(200));
    ASSERT_TRUE(sink->publisher().flush(100s));
    // The last batch may be among the lost; nobody knows before the next one comes.
    ASSERT_TRUE(eventually([&] {
      send(*sink, stream.next(1));
      (void)receiver.poll(1ms);
      return listener.next[stream.id().worker] == stream.number();
    }));
    EXPECT_TRUE(hears_all(receiver, listener, stream));
  }
  EXPECT_GT(receiver.counters().replayed, 0U) << "nothing was lost";
  EXPECT_EQ(receiver.counters().resyncs, 0U);
  EXPECT_LT(sink->publisher().stats().replayed, 2U * sink->publisher().stats().published);
}

TEST(ZmqFeedTest, WhatIsNotKeptAnyMoreComesAsASnapshotInParts) {
  EnginePublisherOptions options = kWithReplay;
  options.buffer_steps = 4;
  auto sink = make_sink(options, 7);
  TestStream stream(1);
  sink->serve_snapshots(&stream);
  for (int i = 0; i < 100; ++i) send(*sink, stream.next(64));
  ASSERT_TRUE(sink->publisher().flush(100s));
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  send(*sink, stream.next(64));
  EXPECT_TRUE(hears_all(receiver, listener, stream));
  EXPECT_EQ(receiver.counters().snapshots, 1U);
  EXPECT_EQ(stream.snapshots, 1);
  sink->serve_snapshots(nullptr);
}

TEST(ZmqFeedTest, WhatNobodyHasAnyMoreIsSaid) {
  EnginePublisherOptions options = kWithReplay;
  options.buffer_steps = 4;
  auto sink = make_sink(options);
  TestStream stream(1);
  for (int i = 0; i < 100; ++i) send(*sink, stream.next(10));
  auto source = make_source({to_hear(*sink)});
  TestConsumer consumer;
  const auto lost = source->recover(stream.id(), 0, consumer);
  ASSERT_TRUE(lost.has_value()) << lost.error();
  EXPECT_FALSE(*lost);
  EXPECT_TRUE(consumer.batches.empty());
  const auto kept = source->recover(stream.id(), 965, consumer);
  ASSERT_TRUE(kept.has_value()) << kept.error();
  EXPECT_TRUE(*kept);
  ASSERT_EQ(consumer.batches.size(), 4U);
  EXPECT_EQ(consumer.batches[0].head.first, 960U);
  const auto nothing = source->recover(stream.id(), 1000, consumer);
  EXPECT_TRUE(nothing.has_value() && *nothing);
  EXPECT_EQ(consumer.batches.size(), 4U);
  const auto other = source->recover(TestStream(2).id(), 0, consumer);
  ASSERT_TRUE(other.has_value()) << other.error();
}

TEST(ZmqFeedTest, RecoverFailsWhenThePublisherIsGone) {
  auto sink = make_sink(kWithReplay);
  SubscriberOptions hear = to_hear(*sink);
  hear.replay_timeout = 50ms;
  auto source = make_source({hear});
  sink.reset();
  TestConsumer consumer;
  const auto gone = source->recover(TestStream(1).id(), 0, consumer);
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code(), ErrorCode::kUnavailable);
  hear.replay_endpoint.clear();
  const auto without = make_source({hear})->recover(TestStream(1).id(), 0, consumer);
  EXPECT_TRUE(without.has_value() && !*without);
}

TEST(ZmqFeedTest, AWorkerThatDiesAndComesBackBeginsAnew) {
  const EnginePublisherOptions options = on_ports_of_its_own();
  auto sink = make_sink(options);
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  TestStream first(1, 1);
  for (int i = 0; i < 50; ++i) send(*sink, first.next(20));
  EXPECT_TRUE(hears_all(receiver, listener, first));
  sink.reset();
  TestStream second(1, 2);
  sink = make_sink(options);
  send(*sink, second.next(33));  // before anybody hears again
  ASSERT_TRUE(eventually([&] {
    (void)receiver.poll(1ms);
    return sink->publisher().stats().subscriptions == 1;
  }));
  for (int i = 0; i < 20; ++i) send(*sink, second.next(20));
  EXPECT_TRUE(hears_all(receiver, listener, second));
  EXPECT_EQ(receiver.counters().restarts, 1U);
  EXPECT_GE(source->stats(0).disconnects, 1U);
}

TEST(ZmqFeedTest, ASinkThatIsMadeAnewForTheSameStreamIsAskedFromItsStart) {
  const EnginePublisherOptions options = on_ports_of_its_own();
  auto sink = make_sink(options);
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  TestStream stream(1);
  for (int i = 0; i < 500; ++i) send(*sink, stream.next(20));
  ASSERT_TRUE(hears_all(receiver, listener, stream));
  sink.reset();
  sink = make_sink(options);
  for (int i = 0; i < 10; ++i) send(*sink, stream.next(20));
  ASSERT_TRUE(eventually([&] {
    (void)receiver.poll(1ms);
    return sink->publisher().stats().subscriptions == 1;
  }));
  send(*sink, stream.next(20));
  EXPECT_TRUE(hears_all(receiver, listener, stream));
  EXPECT_EQ(receiver.counters().resyncs, 0U);
}

TEST(ZmqFeedTest, TwoPublishersAreHeardThroughOneSource) {
  auto one = make_sink(kWithReplay);
  auto two = make_sink(kWithReplay);
  TestStream first(1);
  TestStream second(2);
  for (int i = 0; i < 30; ++i) send(*two, second.next(11));  // missed: to be recovered from the right one
  auto source = make_source({to_hear(*one), to_hear(*two)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(one->publisher()) && is_heard(two->publisher()));
  for (int i = 0; i < 100; ++i) {
    send(*one, first.next(3));
    send(*two, second.next(5));
  }
  EXPECT_TRUE(hears_all(receiver, listener, first));
  EXPECT_TRUE(hears_all(receiver, listener, second));
  EXPECT_EQ(receiver.counters().resyncs, 0U);
  EXPECT_NE(source->describe().find("1 more"), std::string::npos);
}

TEST(ZmqFeedTest, TwoStreamsShareOnePublisher) {
  auto sink = make_sink(kWithReplay);
  TestStream first(1);
  TestStream second(2);
  for (int i = 0; i < 30; ++i) {
    send(*sink, first.next(3));
    send(*sink, second.next(5));
  }
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  send(*sink, second.next(1));
  send(*sink, first.next(1));
  EXPECT_TRUE(hears_all(receiver, listener, first));
  EXPECT_TRUE(hears_all(receiver, listener, second));
}

TEST(ZmqFeedTest, GarbageIsCountedAndDoublesAreHarmless) {
  RawSocket publisher(ZMQ_XPUB);
  auto source = make_source({{.endpoint = publisher.bind(kAnyPort)}});
  ASSERT_TRUE(publisher.receive().has_value());
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  TestStream stream(1);
  std::vector<std::byte> bytes;
  std::uint64_t number = 0;
  for (int i = 0; i < 50; ++i) {
    events::encode_batch(stream.next(16), bytes);
    const Frames good = {"ashlar", number_frame(number++), text_of(bytes)};
    Frames bent = good;
    bent[2][bent[2].size() / 2] ^= 1;
    publisher.send(bent);
    publisher.send({"ashlar", number_frame(number), std::string(static_cast<std::size_t>(i), 'x')});
    publisher.send({"ashlar", good[1]});
    publisher.send(good);
    publisher.send(good);
  }
  EXPECT_TRUE(hears_all(receiver, listener, stream));
  EXPECT_TRUE(eventually([&] {
    (void)receiver.poll(1ms);
    return receiver.counters().duplicates == 50U * 16;
  }));
  EXPECT_EQ(source->damaged(), 150U);
}

TEST(ZmqFeedTest, AMillionEventsArrive) {
  auto sink = make_sink(kWithReplay);
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(is_heard(sink->publisher()));
  TestStream stream(1);
  const std::uint64_t batches = testing::rounds(10'000);
  for (std::uint64_t i = 0; i < batches; ++i) {
    send(*sink, stream.next(100));
    if (i % 100 == 0) (void)receiver.poll(0ms);
  }
  EXPECT_EQ(stream.number(), batches * 100);
  EXPECT_TRUE(hears_all(receiver, listener, stream));
  EXPECT_EQ(source->damaged(), 0U);
}

TEST(ZmqFeedTest, AnEventManagerIsHeardFromItsFirstBlock) {
  events::StreamId id;
  id.worker.id = events::WorkerId(4);
  auto manager = events::EventManager::create({.stream = id});
  ASSERT_TRUE(manager.has_value()) << manager.error();
  EnginePublisherOptions options = kWithReplay;
  options.buffer_steps = 2;
  std::shared_ptr<ZmqBatchSink> sink = make_sink(options);
  sink->serve_snapshots(manager->get());
  ASSERT_TRUE((*manager)->add_sink(sink).has_value());
  auto source = make_source({to_hear(*sink)});
  TestListener listener;
  feed::StreamReceiver receiver(*source, listener);
  Holdings expected;
  std::vector<events::PublishHandle> handles;
  for (std::uint64_t i = 0; i < 501; ++i) {
    // Nobody knows of what was sent before the connection was made until something comes by it.
    if (i == 500) {
      ASSERT_TRUE(is_heard(sink->publisher()));
    }
    events::KvEvent block;
    block.hash = tokens::SequenceHash::root(i);
    handles.push_back((*manager)->publish(block));
    expected.emplace(block.hash, std::uint8_t{0});
    if (i % 50 == 0) {
      ASSERT_TRUE((*manager)->flush(Clock::real().now() + 100s).has_value());
    }
  }
  EXPECT_TRUE(eventually([&] {
    (void)receiver.poll(1ms);
    return listener.holdings[id.worker] == expected;
  }));
  sink->serve_snapshots(nullptr);
}

TEST(ZmqFeedTest, OneSinkAnswersForTheWorkersThatShareIt) {
  TestStream first(1);
  TestStream second(2);
  auto sink = make_sink({.endpoint = "tcp://127.0.0.1:*",
                         .attach = Attach::kBind,
                         .replay_endpoint = "tcp://127.0.0.1:*",
                         .buffer_steps = 1},
                        5);
  sink->add_snapshots(first);
  sink->add_snapshots(second);
  for (int i = 0; i < 20; ++i) {
    send(*sink, first.next(8));
    send(*sink, second.next(8));
  }
  ASSERT_TRUE(sink->publisher().flush(std::chrono::seconds(30)));
  const auto recovered = [&](const TestStream& stream) {
    auto source = make_source({to_hear(*sink)});
    TestConsumer consumer;
    const Result<bool> found = source->recover(stream.id(), 0, consumer);
    EXPECT_TRUE(found) << found.error();
    Holdings held;
    for (const events::OwnedBatch& batch : consumer.batches) {
      EXPECT_EQ(batch.head.stream, stream.id());
      for (const events::KvEvent& event : batch.events) add_up(held, event);
    }
    return held;
  };
  EXPECT_EQ(recovered(first), first.holdings());
  EXPECT_EQ(recovered(second), second.holdings());
  // Who is gone is not asked any more.
  sink->remove_snapshots(first);
  const int asked = first.snapshots.load();
  EXPECT_TRUE(recovered(first).empty());
  EXPECT_EQ(recovered(second), second.holdings());
  EXPECT_EQ(first.snapshots.load(), asked);
}

}  // namespace
}  // namespace ashlar::backend::zmq
