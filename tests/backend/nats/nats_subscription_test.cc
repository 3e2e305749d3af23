// Subscriptions that come and go while messages for them arrive, and what flush() promises.
#include <atomic>
#include <thread>

#include "backend/nats/nats_connection.h"
#include "backend/nats/nats_fixture.h"

namespace ashlar::backend::nats {
namespace {

using NatsSubscriptions = NatsTest;
using NatsFlush = NatsTest;

std::unique_ptr<NatsConnection> connected(const NatsServer& server) {
  Result<std::unique_ptr<NatsConnection>> made = NatsConnection::create(server.options());
  EXPECT_TRUE(made) << made.error();
  return made ? std::move(*made) : nullptr;
}

TEST_F(NatsSubscriptions, AreDroppedWhileMessagesArrive) {
  NatsServer server({}, false);
  const auto talker = connected(server);
  const auto listener = connected(server);
  ASSERT_TRUE(talker && listener);
  std::atomic<bool> stop{false};
  std::thread talk([&] {
    while (!stop.load()) natsConnection_PublishString(talker->get(), "a", "b");
  });
  for (int i = 0; i < 300; ++i) {
    Subscription subscription;
    ASSERT_EQ(listener->subscribe("a", subscription), NATS_OK);
    Message message;
    ASSERT_EQ(natsSubscription_NextMsg(Out(message), subscription.get(), 60'000), NATS_OK);
    subscription.reset();
    EXPECT_EQ(listener->retired(), 1u);
  }
  // The connection ends with a subscription that is dropped, and messages for it on their way.
  stop.store(true);
  talk.join();
}

TEST_F(NatsSubscriptions, AreDestroyedWhenTheServerHasAnswered) {
  NatsServer server({}, false);
  const auto connection = connected(server);
  ASSERT_TRUE(connection);
  std::vector<Subscription> many(5);
  for (Subscription& one : many) ASSERT_EQ(connection->subscribe("a", one), NATS_OK);
  EXPECT_EQ(connection->retired(), 0u);
  many.clear();
  EXPECT_EQ(connection->retired(), 5u);
  ASSERT_EQ(connection->flush(seconds(60)), NATS_OK);
  EXPECT_EQ(connection->retired(), 0u);
}

TEST_F(NatsSubscriptions, AreKeptInBoundsWhileTheServerIsAway) {
  NatsServer server({}, false);
  const auto connection = connected(server);
  ASSERT_TRUE(connection);
  std::vector<Subscription> many(NatsConnection::kMostRetired);
  for (Subscription& one : many) ASSERT_EQ(connection->subscribe("a", one), NATS_OK);
  server.kill();
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (connection->is_connected() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  many.clear();
  EXPECT_EQ(connection->retired(), NatsConnection::kMostRetired);
  EXPECT_NE(connection->flush(milliseconds(10)), NATS_OK);
  Subscription another;
  EXPECT_EQ(connection->subscribe("a", another), NATS_TIMEOUT);
  EXPECT_EQ(connection->retired(), NatsConnection::kMostRetired);
  server.start();
  ASSERT_TRUE(connection->wait_until_connected(seconds(60)));
  EXPECT_EQ(connection->subscribe("a", another), NATS_OK);
  EXPECT_EQ(connection->retired(), 0u);
}

TEST_F(NatsFlush, IsThatOfEverySink) {
  NatsServer server;
  for (const NatsMode mode : {NatsMode::kCore, NatsMode::kJetStream}) {
    const auto nats = sink_of({.connection = server.options(), .mode = mode});
    ASSERT_TRUE(nats);
    events::BatchSink& sink = *nats;
    for (std::uint64_t i = 0; i < 100; i += 10) ASSERT_TRUE(sink.publish(batch_of(i, 10).view()));
    const Result<void> flushed = sink.flush(Clock::real().now() + seconds(60));
    EXPECT_TRUE(flushed) << flushed.error();
    EXPECT_EQ(nats->counters().in_flight, 0u);
    EXPECT_TRUE(sink.flush(Clock::TimePoint::max()));
  }
}

TEST_F(NatsFlush, SaysThatTheServerIsAway) {
  for (const NatsMode mode : {NatsMode::kCore, NatsMode::kJetStream}) {
    NatsServer server;
    const auto sink = sink_of({.connection = server.options(), .mode = mode});
    ASSERT_TRUE(sink);
    ASSERT_TRUE(sink->publish(batch_of(0, 10).view()));
    ASSERT_TRUE(sink->flush(seconds(60)));
    server.kill();
    static_cast<void>(sink->publish(batch_of(10, 10).view()).has_value());
    const Result<void> flushed = sink->flush(Clock::real().now() + milliseconds(50));
    ASSERT_FALSE(flushed);
    EXPECT_TRUE(flushed.error().code() == ErrorCode::kTimeout ||
                flushed.error().code() == ErrorCode::kUnavailable)
        << flushed.error();
    server.start();
    // Core: what was on the wire may be lost, which one flush may say.
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    Result<void> again = sink->flush(seconds(10));
    while (!again && std::chrono::steady_clock::now() < deadline) again = sink->flush(seconds(10));
    EXPECT_TRUE(again) << again.error();
  }
}

}  // namespace
}  // namespace ashlar::backend::nats
