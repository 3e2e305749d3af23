#include "ashlar/backend/zmq/engine_publisher.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "backend/zmq/raw_socket.h"
#include "support/kvrec.h"
#include "support/scratch_folder.h"
#include "support/server.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;

std::vector<Frames> recording(const std::string& name) {
  std::vector<Frames> out;
  const auto messages = testing::parse_kvrec(
      testing::read_test_file(std::string(ASHLAR_TEST_DATA) + "/vllm/" + name + ".kvrec"));
  for (const testing::KvrecMessage& message : messages.value_or(std::vector<testing::KvrecMessage>{})) {
    Frames& frames = out.emplace_back();
    for (const auto& frame : message) frames.push_back(text_of(frame));
  }
  EXPECT_FALSE(out.empty()) << name;
  return out;
}

TEST(EnginePublisherTest, SendsTopicNumberAndPayload) {
  auto publisher = make_publisher({.endpoint = kAnyPort});
  RawSocket subscriber(ZMQ_SUB);
  subscriber.subscribe("");
  subscriber.connect(publisher->endpoint());
  ASSERT_TRUE(is_heard(*publisher));
  EXPECT_EQ(publish(*publisher, "kv", "first"), 0U);
  EXPECT_EQ(publish(*publisher, "", ""), 1U);
  EXPECT_EQ(subscriber.receive(), (Frames{"kv", std::string(8, '\0'), "first"}));
  EXPECT_EQ(subscriber.receive(), (Frames{"", std::string("\0\0\0\0\0\0\0\1", 8), ""}));
  EXPECT_TRUE(publisher->flush(100s));
  EXPECT_EQ(publisher->stats().published, 2U);
}

TEST(EnginePublisherTest, SendsAndReplaysARecordingByteForByte) {
  const std::vector<Frames> live = recording("default");
  const std::vector<Frames> replayed = recording("default.replay");
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  RawSocket subscriber(ZMQ_SUB);
  subscriber.subscribe("kv");
  subscriber.connect(publisher->endpoint());
  ASSERT_TRUE(is_heard(*publisher));
  for (const Frames& message : live) publish(*publisher, message[0], message[2]);
  for (const Frames& message : live) EXPECT_EQ(subscriber.receive(), message);
  EXPECT_EQ(ask_replay(publisher->replay_endpoint(), {"", number_frame(25)}), replayed);
  const std::vector<Frames> resets = recording("reset");
  auto second = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  for (const Frames& message : resets) publish(*second, message[0], message[2]);
  EXPECT_EQ(ask_replay(second->replay_endpoint(), {"", number_frame(0)}), recording("reset.replay"));
}

TEST(EnginePublisherTest, ReadsTheNumberOfARequestInAnyLength) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  for (int i = 0; i < 4; ++i) publish(*publisher, "t", std::to_string(i));
  const std::string& replay = publisher->replay_endpoint();
  const Frames last = {"", "t", number_frame(3), "3"};
  EXPECT_EQ(ask_replay(replay, {"", "\x03"}), (std::vector<Frames>{last, kEndMarker}));
  EXPECT_EQ(ask_replay(replay, {"", number_frame(3)}), (std::vector<Frames>{last, kEndMarker}));
  EXPECT_EQ(ask_replay(replay, {"", std::string(20, '\0') + '\x03'}),
            (std::vector<Frames>{last, kEndMarker}));
  EXPECT_EQ(ask_replay(replay, {"", ""}).size(), 5U);
  EXPECT_EQ(ask_replay(replay, {"", number_frame(4)}), std::vector<Frames>{kEndMarker});
  EXPECT_EQ(ask_replay(replay, {"", number_frame(1'000'000)}), std::vector<Frames>{kEndMarker});
  EXPECT_EQ(ask_replay(replay, {"", std::string(9, '\x01')}), std::vector<Frames>{kEndMarker});
  EXPECT_EQ(ask_replay(replay, {"", std::string(8, '\xFF')}), std::vector<Frames>{kEndMarker});
  EXPECT_EQ(ask_replay(replay, {"", "snapshot"}), std::vector<Frames>{kEndMarker});
  EXPECT_TRUE(eventually([&] { return publisher->stats().replays == 9; }));
  EXPECT_EQ(publisher->stats().invalid_requests, 0U);
}

TEST(EnginePublisherTest, IgnoresAndCountsRequestsOfAnotherForm) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  publish(*publisher, "t", "payload");
  RawSocket dealer(ZMQ_DEALER);
  dealer.connect(publisher->replay_endpoint());
  dealer.send({number_frame(0)});           // no delimiter
  dealer.send({"x", number_frame(0)});      // one that is not empty
  dealer.send({"", number_frame(0), "x"});  // too much
  dealer.send({""});                        // too little
  dealer.send({"", "", "", "", "", "", ""});
  EXPECT_TRUE(eventually([&] { return publisher->stats().invalid_requests == 5; }));
  dealer.send({"", number_frame(0)});
  EXPECT_EQ(dealer.receive(), (Frames{"", "t", number_frame(0), "payload"}));
  EXPECT_EQ(dealer.receive(), kEndMarker);
}

TEST(EnginePublisherTest, ARequestThatIsTooLargeCostsItsConnectionOnly) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  publish(*publisher, "t", "payload");
  RawSocket dealer(ZMQ_DEALER);
  dealer.connect(publisher->replay_endpoint());
  dealer.send({"", std::string(1 << 20, 'x')});
  EXPECT_EQ(ask_replay(publisher->replay_endpoint(), {"", ""}).size(), 2U);
}

TEST(EnginePublisherTest, AnswersAReqSocketWithItsFirstReply) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort});
  publish(*publisher, "t", "payload");
  RawSocket request(ZMQ_REQ);
  request.connect(publisher->replay_endpoint());
  request.send({number_frame(0)});
  EXPECT_EQ(request.receive(), (Frames{"t", number_frame(0), "payload"}));
}

TEST(EnginePublisherTest, KeepsTheLastMessagesOnly) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .buffer_steps = 3});
  for (int i = 0; i < 10; ++i) publish(*publisher, "t", std::to_string(i));
  const std::vector<Frames> replies = ask_replay(publisher->replay_endpoint(), {"", ""});
  ASSERT_EQ(replies.size(), 4U);
  EXPECT_EQ(replies[0], (Frames{"", "t", number_frame(7), "7"}));
  auto small = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .buffer_bytes = 2000});
  for (int i = 0; i < 10; ++i) publish(*small, "t", std::string(500, 'x'));
  EXPECT_EQ(ask_replay(small->replay_endpoint(), {"", ""}).size(), 3U);
}

TEST(EnginePublisherTest, AMessageThatIsNotSentIsReplayed) {
  auto publisher =
      make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .sends = [](std::uint64_t number) {
                        return number != 1;
                      }});
  RawSocket subscriber(ZMQ_SUB);
  subscriber.subscribe("");
  subscriber.connect(publisher->endpoint());
  ASSERT_TRUE(is_heard(*publisher));
  for (int i = 0; i < 3; ++i) publish(*publisher, "t", std::to_string(i));
  EXPECT_EQ(subscriber.receive(), (Frames{"t", number_frame(0), "0"}));
  EXPECT_EQ(subscriber.receive(), (Frames{"t", number_frame(2), "2"}));
  const std::vector<Frames> replies = ask_replay(publisher->replay_endpoint(), {"", number_frame(1)});
  ASSERT_EQ(replies.size(), 3U);
  EXPECT_EQ(replies[0], (Frames{"", "t", number_frame(1), "1"}));
}

TEST(EnginePublisherTest, AReaderThatTakesNothingHoldsUpNobody) {
  auto publisher =
      make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .replay_patience = 10s});
  for (int i = 0; i < 4000; ++i) publish(*publisher, "t", std::string(10'000, 'x'));
  RawSocket lazy(ZMQ_DEALER);
  lazy.set(ZMQ_RCVHWM, 1);
  lazy.set(ZMQ_RCVBUF, 4096);
  lazy.connect(publisher->replay_endpoint());
  for (int i = 0; i < 10; ++i) lazy.send({"", ""});
  EXPECT_EQ(ask_replay(publisher->replay_endpoint(), {"", number_frame(1)}).size(), 4000U);
  EXPECT_TRUE(eventually([&] { return publisher->stats().dropped_replays == 10; }));
}

TEST(EnginePublisherTest, AReaderThatGoesAwayIsForgotten) {
  auto publisher =
      make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .replay_patience = 60s});
  for (int i = 0; i < 4000; ++i) publish(*publisher, "t", std::string(10'000, 'x'));
  {
    RawSocket gone(ZMQ_DEALER);
    gone.set(ZMQ_RCVHWM, 1);
    gone.connect(publisher->replay_endpoint());
    gone.send({"", ""});
    EXPECT_TRUE(gone.receive().has_value());
  }
  EXPECT_TRUE(eventually([&] { return publisher->stats().dropped_replays == 1; }));
}

TEST(EnginePublisherTest, RefusesAndCountsWhatTheQueueHasNoRoomFor) {
  // The thread of the sockets is held in a snapshot, so that the queue stays.
  std::atomic<bool> entered{false};
  std::atomic<bool> leave{false};
  auto publisher = make_publisher({.endpoint = kAnyPort,
                                   .replay_endpoint = kAnyPort,
                                   .queue_messages = 10,
                                   .publish_wait = 1ms,
                                   .snapshot = [&]() -> std::vector<std::vector<std::byte>> {
                                     entered = true;
                                     while (!leave) std::this_thread::yield();
                                     return {};
                                   }});
  RawSocket dealer(ZMQ_DEALER);
  dealer.connect(publisher->replay_endpoint());
  dealer.send({"", "snapshot"});
  ASSERT_TRUE(eventually([&] { return entered.load(); }));
  for (int i = 0; i < 10; ++i) publish(*publisher, "t", "payload");
  const Result<std::uint64_t> refused = publisher->publish("t", bytes_of("payload"));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_FALSE(publisher->flush(1ms));
  leave = true;
  EXPECT_TRUE(publisher->flush(100s));
  EXPECT_EQ(publish(*publisher, "t", "payload"), 10U) << "a refused message has no number";
  EXPECT_EQ(publisher->stats().refused, 1U);
}

TEST(EnginePublisherTest, NumbersFollowTheCallsOfManyThreads) {
  auto publisher = make_publisher({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .publish_wait = 20s});
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::uint64_t last = 0;
      for (int i = 0; i < kEach; ++i) {
        const std::uint64_t number = publish(*publisher, "t" + std::to_string(t), std::to_string(i));
        EXPECT_TRUE(i == 0 || number > last);
        last = number;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<Frames> replies = ask_replay(publisher->replay_endpoint(), {"", ""});
  ASSERT_EQ(replies.size(), kThreads * kEach + 1U);
  std::vector<int> next(kThreads, 0);
  for (std::size_t i = 0; i + 1 < replies.size(); ++i) {
    EXPECT_EQ(replies[i][2], number_frame(i));
    const auto t = static_cast<std::size_t>(replies[i][1][1] - '0');
    EXPECT_EQ(replies[i][3], std::to_string(next[t]++));
  }
}

TEST(EnginePublisherTest, BindsOrConnectsByTheRuleOfTheEngines) {
  const ScratchFolder folder;
  const std::string path = "ipc://" + folder.file("socket");
  auto over_ipc = make_publisher({.endpoint = path});
  EXPECT_EQ(over_ipc->endpoint(), path);
  auto everywhere = make_publisher({.endpoint = "tcp://*:*"});
  EXPECT_NE(everywhere->endpoint(), "tcp://*:*");
  // Without a wildcard it connects: to a subscriber that is bound.
  RawSocket subscriber(ZMQ_SUB);
  subscriber.subscribe("");
  auto connected = make_publisher({.endpoint = subscriber.bind(kAnyPort)});
  ASSERT_TRUE(eventually([&] {
    EXPECT_FALSE(
        subscriber.receive(1ms).has_value());  // a socket that is bound looks at its peers when it is read
    return connected->stats().subscriptions == 1;
  }));
  publish(*connected, "t", "payload");
  EXPECT_EQ(subscriber.receive(), (Frames{"t", number_frame(0), "payload"}));
}

TEST(EnginePublisherTest, AnAddressIsFreeOnceThePublisherIsGone) {
  const ScratchFolder folder;
  const std::string tcp = "tcp://127.0.0.1:" + std::to_string(free_port());
  for (const std::string& endpoint : {tcp, "ipc://" + folder.file("s"), std::string("inproc://free-again")}) {
    for (int i = 0; i < 5; ++i) {
      auto publisher = make_publisher({.endpoint = endpoint, .attach = Attach::kBind});
      ASSERT_NE(publisher, nullptr);
      publish(*publisher, "t", "payload");
    }
  }
}

TEST(EnginePublisherTest, RefusesOptionsThatCannotWork) {
  const auto code_of = [](EnginePublisherOptions options) {
    const auto made = EnginePublisher::create(std::move(options));
    return made ? std::optional<ErrorCode>() : made.error().code();
  };
  EXPECT_EQ(code_of({.endpoint = "localhost:5557"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.endpoint = "carrier://pigeon"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.endpoint = kAnyPort, .replay_endpoint = "5558"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.endpoint = kAnyPort, .hwm = -1}), ErrorCode::kInvalidArgument);
  // ZeroMQ itself would bind 34463.
  for (const char* port : {"99999", "65536", "123456789012345678901", "-1", "", "x", "1x"}) {
    const std::string endpoint = std::string("tcp://127.0.0.1:") + port;
    EXPECT_EQ(code_of({.endpoint = endpoint, .attach = Attach::kBind}), ErrorCode::kInvalidArgument) << port;
    EXPECT_EQ(code_of({.endpoint = kAnyPort, .replay_endpoint = endpoint}), ErrorCode::kInvalidArgument)
        << port;
  }
  EXPECT_EQ(code_of({.endpoint = kAnyPort, .queue_messages = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.endpoint = kAnyPort, .replay_endpoint = kAnyPort, .buffer_steps = 0}),
            ErrorCode::kInvalidArgument);
  const auto login = EnginePublisher::create({.endpoint = "tcp://user:secret@127.0.0.1:5557"});
  ASSERT_FALSE(login);
  EXPECT_EQ(login.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(login.error().message().find("secret"), std::string::npos) << login.error();
  const SilentServer taken;
  EXPECT_EQ(code_of({.endpoint = "tcp://127.0.0.1:" + std::to_string(taken.port()), .attach = Attach::kBind}),
            ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace ashlar::backend::zmq
