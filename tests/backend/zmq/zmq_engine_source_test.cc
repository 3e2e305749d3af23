#include "ashlar/backend/zmq/zmq_engine_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/zmq/raw_socket.h"
#include "support/scratch_folder.h"
#include "support/server.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;
using feed::EngineMessage;

std::unique_ptr<ZmqEngineSource> make_engine_source(SubscriberOptions options,
                                                    bool replay_on_connect = false) {
  options.replay_on_connect = replay_on_connect;
  options.reconnect = 10ms;
  options.reconnect_max = 20ms;
  // A busy machine answers late; tests of what is not answered say how long they wait.
  if (options.replay_timeout == SubscriberOptions{}.replay_timeout)
    options.replay_timeout = options.replay_deadline = 100s;
  auto made = ZmqEngineSource::create(std::move(options));
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}

std::unique_ptr<ZmqEngineSource> source_of(const EnginePublisher& publisher) {
  return make_engine_source(
      {.endpoint = publisher.endpoint(), .replay_endpoint = publisher.replay_endpoint()});
}

// The next message, through times without a connection.
EngineMessage next_of(ZmqEngineSource& source) {
  const auto give_up = Clock::real().now() + 120s;
  while (Clock::real().now() < give_up) {
    auto message = source.receive(100ms);
    if (message && message->has_value()) return std::move(**message);
  }
  ADD_FAILURE() << "no message from " << source.describe();
  return {};
}

std::vector<std::uint64_t> numbers_of(const std::vector<EngineMessage>& messages) {
  std::vector<std::uint64_t> out;
  for (const EngineMessage& message : messages) out.push_back(message.sequence);
  return out;
}

std::vector<std::uint64_t> counted(std::uint64_t from, std::uint64_t end) {
  std::vector<std::uint64_t> out;
  for (; from < end; ++from) out.push_back(from);
  return out;
}

class EveryTransport : public ::testing::TestWithParam<const char*> {
 protected:
  std::string endpoint(const std::string& name) {
    const std::string transport = GetParam();
    if (transport == "tcp") return kAnyPort;
    if (transport == "ipc") return "ipc://" + folder_.file(name);
    return "inproc://every-transport-" + name;
  }
  ScratchFolder folder_;
};

TEST_P(EveryTransport, DeliversAndReplays) {
  auto publisher = make_publisher({.endpoint = endpoint("live"), .replay_endpoint = endpoint("replay")});
  auto source = source_of(*publisher);
  ASSERT_TRUE(is_heard(*publisher));
  for (int i = 0; i < 100; ++i) publish(*publisher, "kv", "payload " + std::to_string(i));
  for (std::uint64_t i = 0; i < 100; ++i) {
    const EngineMessage message = next_of(*source);
    EXPECT_EQ(message.topic, "kv");
    EXPECT_EQ(message.sequence, i);
    EXPECT_EQ(text_of(message.payload), "payload " + std::to_string(i));
  }
  const auto replayed = source->replay(40);
  ASSERT_TRUE(replayed.has_value()) << replayed.error();
  EXPECT_EQ(numbers_of(replayed->messages), counted(40, 100));
  EXPECT_EQ(text_of(replayed->messages.front().payload), "payload 40");
  const auto nothing = source->receive(1ms);
  ASSERT_TRUE(nothing.has_value()) << nothing.error();
  EXPECT_FALSE(nothing->has_value());
  EXPECT_EQ(source->damaged(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Transports, EveryTransport, ::testing::Values("tcp", "ipc", "inproc"),
                         [](const auto& transport) { return std::string(transport.param); });

TEST(ZmqEngineSourceTest, ALateSubscriberGetsEverythingByReplay) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  for (int i = 0; i < 2000; ++i) publish(*publisher, "kv", std::string(100, 'x'));
  ASSERT_TRUE(publisher->flush(100s));
  auto source = source_of(*publisher);
  const auto replayed = source->replay(0);
  ASSERT_TRUE(replayed.has_value()) << replayed.error();
  EXPECT_EQ(numbers_of(replayed->messages), counted(0, 2000));
  EXPECT_EQ(source->stats().replays, 1U);
}

TEST(ZmqEngineSourceTest, FindsAGapOfASlowReaderAndReplaysIt) {
  auto publisher =
      make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .hwm = 1, .buffer_steps = 5000});
  auto source = make_engine_source(
      {.endpoint = publisher->endpoint(), .replay_endpoint = publisher->replay_endpoint(), .hwm = 1});
  ASSERT_TRUE(is_heard(*publisher));
  const std::string payload(20'000, 'x');
  for (int i = 0; i < 4000; ++i) publish(*publisher, "kv", payload);
  ASSERT_TRUE(publisher->flush(100s));
  std::uint64_t expected = 0;
  while (true) {
    const auto message = source->receive(500ms);
    ASSERT_TRUE(message.has_value()) << message.error();
    if (!message->has_value() || (*message)->sequence != expected) break;
    ++expected;
  }
  ASSERT_LT(expected, 4000U) << "nothing was dropped";
  const auto replayed = source->replay(expected);
  ASSERT_TRUE(replayed.has_value()) << replayed.error();
  EXPECT_EQ(numbers_of(replayed->messages), counted(expected, 4000));
}

TEST(ZmqEngineSourceTest, ABufferThatIsTooShortShowsInTheFirstNumber) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .buffer_steps = 10});
  for (int i = 0; i < 100; ++i) publish(*publisher, "kv", "payload");
  auto source = source_of(*publisher);
  const auto replayed = source->replay(5);
  ASSERT_TRUE(replayed.has_value()) << replayed.error();
  EXPECT_EQ(numbers_of(replayed->messages), counted(90, 100));
  const auto beyond = source->replay(100);
  ASSERT_TRUE(beyond.has_value());
  EXPECT_TRUE(beyond->messages.empty());
}

TEST(ZmqEngineSourceTest, HearsAPublisherThatDiedAndCameBack) {
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_port());
  auto publisher = make_publisher({.endpoint = endpoint, .attach = Attach::kBind});
  auto source = make_engine_source({.endpoint = endpoint});
  ASSERT_TRUE(is_heard(*publisher));
  publish(*publisher, "kv", "before");
  EXPECT_EQ(text_of(next_of(*source).payload), "before");
  EXPECT_EQ(source->stats().connected, 1U);
  publisher.reset();
  EXPECT_TRUE(eventually([&] {
    const auto message = source->receive(1ms);
    return !message && message.error().code() == ErrorCode::kUnavailable;
  }));
  EXPECT_EQ(source->stats().connected, 0U);
  EXPECT_GE(source->stats().disconnects, 1U);
  publisher = make_publisher({.endpoint = endpoint, .attach = Attach::kBind});
  ASSERT_TRUE(is_heard(*publisher));
  publish(*publisher, "kv", "after");
  const EngineMessage message = next_of(*source);
  EXPECT_EQ(message.sequence, 0U);
  EXPECT_EQ(text_of(message.payload), "after");
  EXPECT_GE(source->stats().connects, 2U);
  EXPECT_GE(source->blind_reconnects(), 1U) << "without a replay nothing tells what was missed";
}

TEST(ZmqEngineSourceTest, AReconnectThatIsExplainedIsNotBlind) {
  const EnginePublisherOptions options{.endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
                                       .attach = Attach::kBind,
                                       .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port())};
  auto publisher = make_publisher(options);
  auto source = make_engine_source({.endpoint = options.endpoint,
                                    .replay_endpoint = options.replay_endpoint,
                                    .replay_timeout = 100s,
                                    .replay_deadline = 100s},
                                   true);
  publish(*publisher, "kv", "before");
  EXPECT_EQ(text_of(next_of(*source).payload), "before");
  publisher.reset();
  EXPECT_TRUE(eventually([&] { return !source->receive(1ms); }));
  publisher = make_publisher(options);
  EXPECT_TRUE(eventually([&] { return source->receive(1ms) && source->has_looked_back(); }));
  EXPECT_EQ(source->blind_reconnects(), 0U) << "the engine said what it keeps";
  EXPECT_EQ(source->restarts(), 1U);
}

TEST(ZmqEngineSourceTest, AReconnectThatNobodyExplainsIsBlind) {
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_port());
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(free_port());
  auto publisher = make_publisher({.endpoint = endpoint, .attach = Attach::kBind});
  auto source =
      make_engine_source({.endpoint = endpoint, .replay_endpoint = nobody, .replay_timeout = 50ms}, true);
  ASSERT_TRUE(is_heard(*publisher));
  for (const std::string text : {"first", "second"}) {
    publish(*publisher, "kv", text);
    EXPECT_EQ(text_of(next_of(*source).payload), text);
  }
  EXPECT_EQ(source->blind_reconnects(), 0U) << "both came by the first connection";
  publisher.reset();
  EXPECT_TRUE(eventually([&] { return !source->receive(1ms); }));
  publisher = make_publisher({.endpoint = endpoint, .attach = Attach::kBind});
  EXPECT_TRUE(eventually([&] { return source->receive(1ms) && source->blind_reconnects() != 0; }));
}

// The new engine's first answer is late, and a message with the next number of the old one comes before it.
TEST(ZmqEngineSourceTest, AMessageBeforeTheLookBackIsBlind) {
  const EnginePublisherOptions options{.endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
                                       .attach = Attach::kBind,
                                       .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port())};
  auto old = make_publisher(options);
  auto source = make_engine_source(
      {.endpoint = options.endpoint, .replay_endpoint = options.replay_endpoint, .replay_timeout = 300ms},
      true);
  ASSERT_TRUE(is_heard(*old));
  publish(*old, "kv", "old");
  EXPECT_EQ(text_of(next_of(*source).payload), "old");
  old.reset();
  EXPECT_TRUE(eventually([&] { return !source->receive(1ms); }));
  RawSocket publisher(ZMQ_XPUB);
  RawSocket router(ZMQ_ROUTER);
  router.bind(options.replay_endpoint);
  publisher.bind(options.endpoint);
  EXPECT_TRUE(publisher.receive().has_value()) << "no subscription";
  std::atomic<bool> is_heard_first{false};
  std::atomic<bool> ends{false};
  std::thread engine([&] {
    for (bool is_first = true; !ends;) {
      const auto request = router.receive(20ms);
      if (!request) continue;
      if (std::exchange(is_first, false)) publisher.send({"kv", number_frame(1), "new"});
      if (!is_heard_first) continue;
      for (std::uint64_t number = 0; number < 2; ++number)
        if ((*request)[2] <= number_frame(number))
          router.send({(*request)[0], "", "kv", number_frame(number), "new"});
      router.send({(*request)[0], "", "", std::string(8, '\xFF'), ""});
    }
  });
  EXPECT_EQ(text_of(next_of(*source).payload), "new");
  EXPECT_EQ(source->blind_reconnects(), 1U) << "nobody had told whose number 1 this is";
  is_heard_first = true;
  EXPECT_TRUE(eventually([&] { return source->receive(1ms) && source->has_looked_back(); }));
  ends = true;
  engine.join();
}

TEST(ZmqEngineSourceTest, HearsWhatCameBeforeWithoutALiveMessage) {
  EnginePublisherOptions options{.endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
                                 .attach = Attach::kBind,
                                 .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port())};
  auto publisher = make_publisher(options);
  for (int i = 0; i < 10; ++i) publish(*publisher, "kv", "first life");
  ASSERT_TRUE(publisher->flush(100s));
  auto source =
      make_engine_source({.endpoint = options.endpoint, .replay_endpoint = options.replay_endpoint}, true);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(next_of(*source).sequence, i);
  const auto first_of = [&](const std::string& life) {
    for (int i = 0; i < 100; ++i) {
      const EngineMessage message = next_of(*source);
      if (text_of(message.payload) == life) return message.sequence;
    }
    return ~std::uint64_t{0};
  };
  // A shorter second life, most often all of it before the connection is made again.
  publisher.reset();
  publisher = make_publisher(options);
  for (int i = 0; i < 3; ++i) publish(*publisher, "kv", "second life");
  EXPECT_EQ(first_of("second life"), 0U);
  EXPECT_EQ(next_of(*source).sequence, 1U);
  EXPECT_EQ(next_of(*source).sequence, 2U);
  // A longer third one: what has the number of the last message is another one.
  publisher.reset();
  publisher = make_publisher(options);
  for (int i = 0; i < 5; ++i) publish(*publisher, "kv", "third life");
  EXPECT_LE(first_of("third life"), 2U);
}

TEST(ZmqEngineSourceTest, SeesThatAnEngineBeganAnewThatHasSaidNothingYet) {
  EnginePublisherOptions options{.endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
                                 .attach = Attach::kBind,
                                 .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port())};
  auto publisher = make_publisher(options);
  for (int i = 0; i < 3; ++i) publish(*publisher, "kv", "first life");
  ASSERT_TRUE(publisher->flush(100s));
  auto source =
      make_engine_source({.endpoint = options.endpoint, .replay_endpoint = options.replay_endpoint}, true);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(next_of(*source).sequence, i);
  EXPECT_EQ(source->restarts(), 0U);
  publisher.reset();
  publisher = make_publisher(options);
  EXPECT_TRUE(eventually([&] {
    static_cast<void>(source->receive(20ms));
    return source->restarts() > 0;
  }));
  EXPECT_EQ(source->restarts(), 1U);
}

// A source that is connected and does not read gets messages twice: live, and by replay. The live ones of an
// engine that is gone must not follow those of the next one.
TEST(ZmqEngineSourceTest, NothingOfAnOldEngineComesAfterTheNewOne) {
  EnginePublisherOptions options = {.endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
                                    .attach = Attach::kBind,
                                    .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port())};
  // Until it has found itself connected again, three times, before it read what was left.
  for (int round = 0, seen = 0; seen < 3; ++round) {
    ASSERT_LT(round, 200);
    auto publisher = make_publisher(options);
    auto source =
        make_engine_source({.endpoint = options.endpoint, .replay_endpoint = options.replay_endpoint}, true);
    ASSERT_TRUE(is_heard(*publisher));
    for (int i = 0; i < 3; ++i) publish(*publisher, "old", std::to_string(i));
    ASSERT_TRUE(publisher->flush(100s));
    // By replay; the live ones are on their way, or have come.
    for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(next_of(*source).sequence, i);
    publisher.reset();
    publisher = make_publisher(options);
    for (int i = 0; i < 2; ++i) publish(*publisher, "new", std::to_string(i));
    std::this_thread::sleep_for(round % 10 * 20ms);
    std::vector<std::string> topics;
    const auto hears = [&](const std::string& topic) {
      return eventually([&] {
        if (auto message = source->receive(1ms); message && *message) topics.push_back((*message)->topic);
        return topic.empty() ? publisher->stats().subscriptions == 1
                             : !topics.empty() && topics.back() == topic;
      });
    };
    ASSERT_TRUE(hears(""));
    // The first may come by replay; the second comes behind everything that was received before.
    for (const std::string topic : {"next", "last"}) {
      publish(*publisher, topic, "");
      ASSERT_TRUE(hears(topic));
    }
    const auto first_new = std::find(topics.begin(), topics.end(), "new");
    EXPECT_NE(first_new, topics.end());
    EXPECT_EQ(std::find(first_new, topics.end(), "old"), topics.end()) << "round " << round;
    seen += topics[0] == "new" ? 1 : 0;
  }
}

TEST(ZmqEngineSourceTest, NoticesAPeerThatIsSilentWithItsConnectionOpen) {
  // Accepts and never says a word, as a process that is stopped does.
  const SilentServer frozen;
  auto source = make_engine_source({.endpoint = "tcp://127.0.0.1:" + std::to_string(frozen.port())});
  const auto message = source->receive(50ms);
  ASSERT_FALSE(message.has_value());
  EXPECT_EQ(message.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(source->stats().connected, 0U);
}

TEST(ZmqEngineSourceTest, HeartbeatsEndTheConnectionToAStoppedProcess) {
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_port());
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    void* context = zmq_ctx_new();
    void* socket = zmq_socket(context, ZMQ_PUB);
    zmq_bind(socket, endpoint.c_str());
    for (;;) pause();
  }
  auto source =
      make_engine_source({.endpoint = endpoint, .hwm = 0, .heartbeat = 50ms, .heartbeat_timeout = 200ms});
  const auto state_is = [&](std::uint64_t connected) {
    return eventually([&] {
      (void)source->receive(1ms);
      return source->stats().connected == connected;
    });
  };
  EXPECT_TRUE(state_is(1));
  kill(child, SIGSTOP);
  EXPECT_TRUE(state_is(0));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(ZmqEngineSourceTest, CountsMessagesOfAnotherForm) {
  RawSocket publisher(ZMQ_XPUB);
  auto source = make_engine_source({.endpoint = publisher.bind(kAnyPort)});
  ASSERT_TRUE(publisher.receive().has_value()) << "no subscription";
  publisher.send({"kv"});
  publisher.send({"kv", number_frame(0)});
  publisher.send({"kv", "7 bytes", "payload"});
  publisher.send({"kv", "", "payload"});
  publisher.send({"kv", number_frame(1), "payload", "more"});
  publisher.send(Frames(5000, "x"));
  publisher.send({"", "", ""});
  publisher.send({"kv", number_frame(2), ""});
  publisher.send({"kv", number_frame(2), ""});
  publisher.send({"kv", number_frame(1), std::string(3, '\0')});
  EXPECT_EQ(next_of(*source).sequence, 2U);
  EXPECT_EQ(source->damaged(), 7U);
  EXPECT_EQ(next_of(*source).sequence, 2U) << "doubles are delivered";
  const EngineMessage last = next_of(*source);
  EXPECT_EQ(last.sequence, 1U) << "order is that of arrival";
  EXPECT_EQ(last.payload.size(), 3U);
}

TEST(ZmqEngineSourceTest, TakesLargeMessagesAndDisconnectsGiantOnes) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  auto source = make_engine_source({.endpoint = publisher->endpoint(), .max_message_bytes = 32 << 20});
  ASSERT_TRUE(is_heard(*publisher));
  publish(*publisher, "kv", std::string(30 << 20, 'x'));
  EXPECT_EQ(next_of(*source).payload.size(), std::size_t{30} << 20);
  publish(*publisher, "kv", std::string(40 << 20, 'x'));
  EXPECT_TRUE(eventually([&] {
    const auto message = source->receive(1ms);
    EXPECT_FALSE(message && message->has_value());
    return source->stats().disconnects == 1 && source->stats().connects == 2;
  }));
  ASSERT_TRUE(is_heard(*publisher));
  EXPECT_TRUE(eventually([&] {
    publish(*publisher, "kv", "small");
    const auto message = source->receive(10ms);
    return message && message->has_value();
  }));
}

TEST(ZmqEngineSourceTest, TakesTheTopicsThatBeginAsAsked) {
  auto publisher = make_publisher({.endpoint = kAnyPort});
  auto source = make_engine_source({.endpoint = publisher->endpoint(), .topic = "kv@a"});
  ASSERT_TRUE(is_heard(*publisher));
  publish(*publisher, "kv@b", "other");
  publish(*publisher, "kv@a1", "mine");
  const EngineMessage message = next_of(*source);
  EXPECT_EQ(message.topic, "kv@a1");
  EXPECT_EQ(message.sequence, 1U);
}

TEST(ZmqEngineSourceTest, ManyPublishersConnectToASourceThatIsBound) {
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_port());
  auto source = make_engine_source({.endpoint = endpoint, .bind = true});
  auto one = make_publisher({.endpoint = endpoint});
  auto two = make_publisher({.endpoint = endpoint});
  ASSERT_TRUE(eventually([&] {
    (void)source->receive(1ms);  // a socket that is bound looks at its peers when it is read
    return one->stats().subscriptions == 1 && two->stats().subscriptions == 1;
  }));
  publish(*one, "one", "x");
  publish(*two, "two", "x");
  std::vector<std::string> topics = {next_of(*source).topic, next_of(*source).topic};
  std::sort(topics.begin(), topics.end());
  EXPECT_EQ(topics, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(source->stats().connected, 2U);
}

TEST(ZmqEngineSourceTest, WithoutAReplayEndpointReplayIsUnsupported) {
  auto publisher = make_publisher({.endpoint = kAnyPort});
  auto source = make_engine_source({.endpoint = publisher->endpoint()});
  const auto replayed = source->replay(0);
  ASSERT_FALSE(replayed.has_value());
  EXPECT_EQ(replayed.error().code(), ErrorCode::kUnsupported);
}

TEST(ZmqEngineSourceTest, AReplayThatNobodyAnswersFailsInTime) {
  auto publisher = make_publisher({.endpoint = kAnyPort});
  auto nobody = make_engine_source({.endpoint = publisher->endpoint(),
                                    .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(free_port()),
                                    .replay_timeout = 50ms});
  const auto unavailable = nobody->replay(0);
  ASSERT_FALSE(unavailable.has_value());
  EXPECT_EQ(unavailable.error().code(), ErrorCode::kUnavailable);

  // Where it takes longer to connect, nobody was there in time.
  RawSocket silent(ZMQ_ROUTER);
  const std::string endpoint = silent.bind(kAnyPort);
  for (Clock::Duration patience = 50ms; patience < 100s; patience *= 4) {
    auto mute = make_engine_source(
        {.endpoint = publisher->endpoint(), .replay_endpoint = endpoint, .replay_timeout = patience});
    const auto timeout = mute->replay(0);
    ASSERT_FALSE(timeout.has_value());
    EXPECT_EQ(mute->stats().replay_failures, 1U);
    if (timeout.error().code() == ErrorCode::kTimeout) return;
    EXPECT_EQ(timeout.error().code(), ErrorCode::kUnavailable);
  }
  ADD_FAILURE() << "it is never connected";
}

TEST(ZmqEngineSourceTest, LateAnswersToAnOldRequestAreNotTakenForNewOnes) {
  auto publisher = make_publisher({.endpoint = kAnyPort});
  // Where the machine is slower than the patience it shows nothing: once more, with more of it.
  for (std::chrono::milliseconds patience = 300ms; patience < 100s; patience *= 4) {
    RawSocket router(ZMQ_ROUTER);
    auto source = make_engine_source({.endpoint = publisher->endpoint(),
                                      .replay_endpoint = router.bind(kAnyPort),
                                      .replay_timeout = patience});
    EXPECT_FALSE(source->replay(1).has_value());
    const auto old_request = router.receive(patience);
    if (!old_request) continue;
    std::thread engine([&] {
      const auto request = router.receive(2 * patience);
      if (!request) return;
      EXPECT_EQ((*request)[2], number_frame(2));
      router.send({(*old_request)[0], "", "kv", number_frame(1), "late"});
      router.send({(*old_request)[0], "", "", std::string(8, '\xFF'), ""});
      router.send({(*request)[0], "", "kv", number_frame(2), "right"});
      router.send({(*request)[0], "junk"});
      router.send({(*request)[0], "", "", std::string(8, '\xFF'), ""});
    });
    const auto replayed = source->replay(2);
    engine.join();
    if (!replayed) continue;
    ASSERT_EQ(replayed->messages.size(), 1U);
    EXPECT_EQ(text_of(replayed->messages.front().payload), "right");
    EXPECT_EQ(source->damaged(), 1U);
    return;
  }
  ADD_FAILURE() << "no replay is answered in time";
}

TEST(ZmqEngineSourceTest, AReplayWithAHoleIsAskedAgainFromThere) {
  auto publisher = make_publisher({.endpoint = kAnyPort});
  RawSocket router(ZMQ_ROUTER);
  auto source =
      make_engine_source({.endpoint = publisher->endpoint(), .replay_endpoint = router.bind(kAnyPort)});
  std::vector<std::string> asked;
  std::thread engine([&] {
    const std::vector<std::vector<std::uint64_t>> answers = {{3, 4, 7}, {5, 6, 7}};
    for (const auto& answer : answers) {
      const auto request = router.receive();
      ASSERT_TRUE(request.has_value());
      asked.push_back((*request)[2]);
      for (const std::uint64_t number : answer)
        router.send({(*request)[0], "", "kv", number_frame(number), "x"});
      router.send({(*request)[0], "", "", std::string(8, '\xFF'), ""});
    }
  });
  const auto replayed = source->replay(3);
  engine.join();
  ASSERT_TRUE(replayed.has_value()) << replayed.error();
  EXPECT_EQ(numbers_of(replayed->messages), counted(3, 8));
  EXPECT_EQ(asked, (std::vector<std::string>{number_frame(3), number_frame(5)}));
}

// What a source holds of a replay is bounded; the rest is asked for when that has been delivered.
TEST(ZmqEngineSourceTest, AReplayThatDoesNotFitIsDeliveredInTurns) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  for (int i = 0; i < 100; ++i) publish(*publisher, "kv", std::string(1000, 'x'));
  ASSERT_TRUE(publisher->flush(100s));
  auto source = make_engine_source({.endpoint = publisher->endpoint(),
                                    .replay_endpoint = publisher->replay_endpoint(),
                                    .max_replay_bytes = 10'000},
                                   true);
  const auto first = source->replay(0);
  ASSERT_TRUE(first.has_value()) << first.error();
  EXPECT_TRUE(first->is_cut);
  EXPECT_EQ(numbers_of(first->messages), counted(0, first->messages.size()));
  EXPECT_LE(first->messages.size(), 10U);
  std::uint64_t expected = 0;
  while (expected < 100) {
    const EngineMessage message = next_of(*source);
    ASSERT_LE(message.sequence, expected) << "nothing is left out";
    expected = std::max(expected, message.sequence + 1);
  }
  EXPECT_GT(source->stats().replays, 10U);
}

TEST(ZmqEngineSourceTest, RefusesOptionsThatCannotWork) {
  for (SubscriberOptions options : std::vector<SubscriberOptions>{
           {.endpoint = ""},
           {.endpoint = kAnyPort, .replay_endpoint = "x"},
           {.endpoint = "tcp://127.0.0.1:1", .hwm = -1},
           {.endpoint = "tcp://127.0.0.1:1", .max_message_bytes = 0},
           {.endpoint = "tcp://127.0.0.1:1", .hwm = 0, .heartbeat = 2s, .heartbeat_timeout = 1s},
           {.endpoint = "tcp://127.0.0.1:1", .heartbeat = 2s},
           {.endpoint = "tcp://127.0.0.1:1", .keepalive = -1s},
           {.endpoint = "tcp://127.0.0.1:1", .reconnect = 0s},
           {.endpoint = "tcp://127.0.0.1:1", .replay_timeout = 0s},
           {.endpoint = "tcp://no port"}}) {
    const auto made = ZmqEngineSource::create(options);
    ASSERT_FALSE(made.has_value()) << options.endpoint;
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument) << made.error();
  }
}

}  // namespace
}  // namespace ashlar::backend::zmq
