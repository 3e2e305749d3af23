// Publishers that are stopped, and those that only have nothing to say.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/base/log.h"
#include "backend/zmq/publisher_process.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;

// Warnings while it lives.
class Warnings {
 public:
  std::vector<std::string> lines() {
    const std::scoped_lock lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  const ScopedLogSink sink_{[this](LogLevel level, std::string_view, std::string_view line) {
    if (level < LogLevel::kWarn) return;
    const std::scoped_lock lock(mutex_);
    lines_.emplace_back(line);
  }};
};

// Takes messages until it is so, or a minute has passed. Their numbers go to `numbers`, errors to `error`.
class Hearing {
 public:
  explicit Hearing(const SubscriberOptions& options) : source(ZmqEngineSource::create(options).value()) {}
  bool until(const std::function<bool()>& done) {
    const auto give_up = Clock::real().now() + 60s;
    while (!done() && Clock::real().now() < give_up) {
      auto message = source->receive(20ms);
      error = message ? "" : message.error().message();
      if (message && *message) numbers.push_back((*message)->sequence);
    }
    return done();
  }
  bool has(std::size_t count) {
    return until([&] { return numbers.size() >= count; });
  }
  bool is_silent() {
    return until([&] { return error.find("does not answer") != std::string::npos; });
  }

  std::unique_ptr<ZmqEngineSource> source;
  std::vector<std::uint64_t> numbers;
  std::string error;
};

TEST(ZmqSilence, AnEngineThatIsStoppedIsSilentUntilItGoesOn) {
  PublisherProcess engine;
  Warnings warnings;
  engine.publish();
  engine.publish();
  Hearing hearing(engine.to_hear(100ms));
  ASSERT_TRUE(hearing.until([&] { return !hearing.numbers.empty() && hearing.numbers.back() == 1; }));

  engine.stop();
  ASSERT_TRUE(hearing.is_silent());
  EXPECT_EQ(hearing.source->stats().silent, 1u);
  EXPECT_EQ(hearing.source->stats().connected, 1u) << "the connection itself tells nothing";
  // More than one where a busy machine was taken for it before.
  const std::vector<std::string> lines = warnings.lines();
  ASSERT_FALSE(lines.empty());
  for (const std::string& line : lines) EXPECT_NE(line.find("stopped"), std::string::npos) << line;

  // Without a word of its own: it answers.
  engine.go_on();
  EXPECT_TRUE(hearing.until([&] { return hearing.source->stats().silent == 0; }));
  EXPECT_EQ(hearing.numbers.back(), 1u);

  // With one: nothing is lost.
  engine.stop();
  engine.publish();
  ASSERT_TRUE(hearing.is_silent());
  EXPECT_GE(hearing.source->stats().silences, 2u);
  engine.go_on();
  engine.publish();
  ASSERT_TRUE(hearing.until([&] { return !hearing.numbers.empty() && hearing.numbers.back() == 3; }));
  EXPECT_TRUE(hearing.until([&] { return hearing.error.empty(); }));
  EXPECT_EQ(hearing.source->stats().silent, 0u);
  EXPECT_EQ(hearing.source->restarts(), 0u);
}

TEST(ZmqSilence, AnEngineThatIsIdleIsAskedAndTellsWhatWasLost) {
  PublisherProcess engine;
  Warnings warnings;
  engine.publish();
  SubscriberOptions options = engine.to_hear(50ms);
  options.replay_timeout = 30s;
  options.replay_deadline = 60s;
  options.topic = "a";
  Hearing hearing(options);
  ASSERT_TRUE(hearing.has(1));
  // Lost on the way: other topics are not even sent.
  engine.publish('b');
  engine.publish('b');
  EXPECT_TRUE(hearing.until([&] { return hearing.numbers.back() == 2; }));
  const std::size_t heard = hearing.numbers.size();
  const std::uint64_t questions = hearing.source->stats().questions;
  EXPECT_GE(questions, 1u);
  EXPECT_TRUE(hearing.until([&] { return hearing.source->stats().questions > questions + 2; }));
  // The first may have come both live and from the past; nothing comes again later.
  EXPECT_EQ(hearing.numbers.size(), heard);
  EXPECT_EQ(std::set(hearing.numbers.begin(), hearing.numbers.end()), (std::set<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(hearing.source->stats().silences, 0u);
  EXPECT_TRUE(warnings.lines().empty());
}

TEST(ZmqSilence, WhereNobodyCanBeAskedItIsOnlyCounted) {
  PublisherProcess engine;
  Warnings warnings;
  SubscriberOptions options = engine.to_hear(50ms);
  options.replay_endpoint.clear();
  Hearing hearing(options);
  EXPECT_TRUE(hearing.until([&] { return hearing.source->stats().silent == 1; }));
  EXPECT_TRUE(hearing.error.empty()) << hearing.error;
  EXPECT_EQ(hearing.source->stats().questions, 0u);
  EXPECT_TRUE(warnings.lines().empty());
  engine.publish();
  ASSERT_TRUE(hearing.has(1));
}

TEST(ZmqSilence, OneOfSeveralPublishersIsFoundWhileTheOthersAreHeard) {
  PublisherProcess first;
  PublisherProcess second;
  Warnings warnings;
  auto source = ZmqSource::create({.publishers = {first.to_hear(100ms), second.to_hear(0ms)}}).value();
  TestConsumer consumer;
  const auto until = [&](const std::function<bool()>& done) {
    const auto give_up = Clock::real().now() + 60s;
    while (!done() && Clock::real().now() < give_up) {
      const Result<std::size_t> came = source->poll(consumer, 20ms);
      if (!came) {
        EXPECT_NE(came.error().message().find("not connected"), std::string::npos) << came.error();
      }
    }
    return done();
  };
  ASSERT_TRUE(until([&] { return source->stats(0).connected == 1 && source->stats(1).connected == 1; }));
  first.stop();
  ASSERT_TRUE(until([&] { return source->stats(0).silent == 1; }));
  second.publish();
  ASSERT_TRUE(until([&] { return consumer.batches.size() == 1; }));
  first.publish();
  first.go_on();
  ASSERT_TRUE(until([&] { return consumer.batches.size() >= 2 && source->stats(0).silent == 0; }));
  EXPECT_EQ(source->stats(1).questions, 0u);
}

TEST(ZmqSilence, ATimeBelowZeroIsNone) {
  SubscriberOptions options;
  options.endpoint = "tcp://127.0.0.1:1";
  for (const Clock::Duration wrong : {Clock::Duration(-1ms), Clock::Duration::max()}) {
    options.silence = wrong;
    EXPECT_EQ(ZmqEngineSource::create(options).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ZmqSilence, NobodyIsAskedWhileMessagesWaitToBeRead) {
  // Over inproc what is flushed is there.
  auto publisher =
      make_publisher({.endpoint = "inproc://silence-live", .replay_endpoint = "inproc://silence-replay"});
  SubscriberOptions options;
  options.endpoint = publisher->endpoint();
  options.replay_endpoint = publisher->replay_endpoint();
  options.silence = 1ns;
  const auto source = ZmqEngineSource::create(options).value();
  ASSERT_TRUE(is_heard(*publisher));
  for (int i = 0; i < 100; ++i) publish(*publisher, "kv", "payload");
  ASSERT_TRUE(publisher->flush(100s));
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto message = source->receive(100s);
    ASSERT_TRUE(message && *message);
    ASSERT_EQ((*message)->sequence, i);
  }
  EXPECT_EQ(source->stats().questions, 0u);
  EXPECT_TRUE(eventually([&] {
    const auto more = source->receive(1ms);
    EXPECT_FALSE(more && *more);
    return source->stats().questions > 2;
  }));
}

TEST(ZmqSilence, AListenerThatComesSeldomIsAnswered) {
  PublisherProcess engine;
  SubscriberOptions options = engine.to_hear(1ms);
  options.replay_timeout = 1ms;
  options.replay_on_connect = false;
  options.topic = "a";
  const auto source = ZmqEngineSource::create(options).value();
  for (int i = 0; i < 3; ++i) engine.publish('b');  // which it does not hear
  std::vector<std::uint64_t> numbers;
  EXPECT_TRUE(eventually([&] {
    std::this_thread::sleep_for(5ms);
    const auto message = source->receive(0ms);
    if (message && *message) numbers.push_back((*message)->sequence);
    return numbers.size() >= 3;
  }));
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{0, 1, 2}));
}

TEST(ZmqSilence, WhereThereIsNoSocketToAskWithItIsSaidOnce) {
  PublisherProcess engine;
  Warnings warnings;
  SubscriberOptions options = engine.to_hear(1ms);
  options.replay_endpoint = "nothing://here";
  options.replay_on_connect = false;
  Hearing hearing(options);
  ASSERT_TRUE(hearing.until([&] { return !warnings.lines().empty(); }));
  EXPECT_NE(warnings.lines().front().find("cannot be asked"), std::string::npos) << warnings.lines().front();
  EXPECT_TRUE(hearing.until([&] {
    engine.publish();
    return !hearing.numbers.empty();
  }));
  EXPECT_EQ(warnings.lines().size(), 1u);
  EXPECT_EQ(hearing.source->stats().questions, 0u);
}

TEST(ZmqSilence, ANewLifeThatIsQuietIsAskedFromItsStart) {
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_port());
  const std::string replay = "tcp://127.0.0.1:" + std::to_string(free_port());
  const EnginePublisherOptions life = {
      .endpoint = endpoint, .attach = Attach::kBind, .replay_endpoint = replay};
  auto publisher = make_publisher(life);
  SubscriberOptions options = {.endpoint = endpoint, .replay_endpoint = replay, .topic = "a"};
  options.silence = 20ms;
  options.reconnect = 10ms;
  options.reconnect_max = 20ms;
  options.replay_on_connect = false;
  Hearing hearing(options);
  for (int i = 0; i < 5; ++i) publish(*publisher, "ab", "first life");
  ASSERT_TRUE(hearing.until([&] { return !hearing.numbers.empty() && hearing.numbers.back() == 4; }));
  EXPECT_EQ(hearing.source->restarts(), 0u);
  publisher.reset();
  hearing.numbers.clear();
  publisher = make_publisher(life);
  for (int i = 0; i < 2; ++i) publish(*publisher, "b", "second life, on the quiet");
  // Something of the first life may still have been on its way.
  EXPECT_TRUE(hearing.until([&] {
    const std::vector<std::uint64_t>& heard = hearing.numbers;
    return heard.size() >= 2 && heard[heard.size() - 2] == 0 && heard.back() == 1;
  }));
  EXPECT_EQ(hearing.source->restarts(), 1u);
}

}  // namespace
}  // namespace ashlar::backend::zmq
