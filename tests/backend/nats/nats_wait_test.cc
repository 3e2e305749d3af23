// Sinks and sources that are there before their server.
#include <array>
#include <atomic>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/base/log.h"
#include "backend/nats/nats_fixture.h"

namespace ashlar::backend::nats {
namespace {

using NatsWait = NatsTest;

// Counts the lines that say that somebody waits, and keeps the last.
class WaitLines {
 public:
  bool wait_for(std::size_t count) {
    const MutexLock lock(mu_);
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    while (count_ < count && changed_.wait_until(mu_, deadline)) {
    }
    return count_ >= count;
  }
  std::string last() const {
    const MutexLock lock(mu_);
    return last_;
  }

 private:
  void take(std::string_view message) {
    if (!message.starts_with("waiting for a server")) return;
    const MutexLock lock(mu_);
    ++count_;
    last_ = message;
    changed_.notify_all();
  }

  mutable Mutex mu_;
  CondVar changed_;
  std::size_t count_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::string last_ ASHLAR_GUARDED_BY(mu_);
  const ScopedLogSink sink_{[this](LogLevel, std::string_view, std::string_view message) { take(message); }};
};

NatsConnectionOptions waiting(const NatsServer& server) {
  NatsConnectionOptions options = server.options();
  options.connect_wait = NatsConnectionOptions::kForever;
  return options;
}

void expect_all_arrives(NatsMode mode) {
  NatsServer server;
  server.kill();
  WaitLines lines;
  auto source = std::async(std::launch::async,
                           [&] { return source_of({.connection = waiting(server), .mode = mode}); });
  ASSERT_TRUE(lines.wait_for(1));
  EXPECT_NE(lines.last().find(server.url()), std::string::npos) << lines.last();
  // What is published as soon as there is a sink arrives: core listeners are there before.
  auto sink = std::async(std::launch::async, [&] {
    auto made = sink_of({.connection = waiting(server), .mode = mode});
    return made;
  });
  ASSERT_TRUE(lines.wait_for(2));
  server.start();
  const auto listener = source.get();
  const auto publisher = sink.get();
  ASSERT_TRUE(listener && publisher);
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(publisher->publish(batch_of(i * 5, 5).view()));
  ASSERT_TRUE(publisher->flush(seconds(30)));
  Collector got;
  EXPECT_TRUE(poll_until(*listener, got, [&] { return got.has_all(100); }));
  EXPECT_EQ(got.times.size(), 100u);
}

TEST_F(NatsWait, CoreEventsArriveWhereTheServerCameLast) {
  expect_all_arrives(NatsMode::kCore);
}

TEST_F(NatsWait, JetStreamKeepsEventsWhereTheServerCameLast) {
  expect_all_arrives(NatsMode::kJetStream);
}

TEST_F(NatsWait, WhatTheServerRefusesIsNotTriedAgain) {
  // The server's own limit for that is short; a busy machine can pass it.
  NatsServer server("authorization { token: sesame, timeout: 60 }", false);
  NatsConnectionOptions options = waiting(server);
  options.token = "open";
  EXPECT_EQ(error_of(options).code(), ErrorCode::kInvalidArgument);
}

TEST(NatsWaitOptions, AStopEndsTheWait) {
  WaitLines lines;
  std::atomic<bool> stop{false};
  NatsConnectionOptions options;
  options.urls = {"nats://127.0.0.1:" + std::to_string(free_port())};
  options.connect_wait = NatsConnectionOptions::kForever;
  options.reconnect_min = options.reconnect_max = std::chrono::hours(1);
  options.stop_waiting = [&] { return stop.load(); };
  auto error = std::async(std::launch::async, [&] { return error_of(options); });
  ASSERT_TRUE(lines.wait_for(1));
  stop.store(true);
  EXPECT_EQ(error.get().code(), ErrorCode::kCancelled);
}

TEST(NatsWaitOptions, TheWaitHasAnEnd) {
  const WaitLines lines;
  NatsConnectionOptions options;
  options.urls = {"nats://127.0.0.1:" + std::to_string(free_port())};
  options.connect_wait = milliseconds(120);
  const Error error = error_of(options);
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error;
  EXPECT_NE(error.message().find("waited for"), std::string::npos) << error;
  options.connect_wait = milliseconds(-1);
  EXPECT_EQ(error_of(options).code(), ErrorCode::kInvalidArgument);
}

// Says who it is, and answers nothing: the client would wait for the answer to its ping for ever.
class InfoOnlyServer {
 public:
  ~InfoOnlyServer() {
    shutdown(listener_.listener(), SHUT_RDWR);
    thread_.join();
  }
  std::string url() const { return "nats://127.0.0.1:" + std::to_string(listener_.port()); }
  // Until somebody has said all that a client says before it waits.
  void wait_for_ping() const { pinged_.wait(false); }

 private:
  void run() {
    constexpr std::string_view kInfo =
        "INFO {\"server_id\":\"x\",\"version\":\"2.9.0\",\"max_payload\":1048576}\r\n";
    std::vector<TestSocket> clients;
    for (;;) {
      clients.emplace_back(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC));
      const int client = clients.back().get();
      if (client < 0) return;
      (void)send(client, kInfo.data(), kInfo.size(), MSG_NOSIGNAL);
      std::string heard;
      std::array<char, 4096> bytes{};
      while (heard.find("PING") == std::string::npos) {
        const ssize_t got = recv(client, bytes.data(), bytes.size(), 0);
        if (got <= 0) break;
        heard.append(bytes.data(), static_cast<std::size_t>(got));
      }
      pinged_.store(true);
      pinged_.notify_all();
    }
  }

  const SilentServer listener_;
  std::atomic<bool> pinged_{false};
  std::thread thread_{[this] { run(); }};
};

TEST(NatsWaitOptions, AServerThatDoesNotAnswerIsGivenUp) {
  const InfoOnlyServer server;
  NatsConnectionOptions options;
  options.urls = {server.url()};
  // A busy machine may not even connect in so short a time; then there is more of it.
  for (options.connect_timeout = milliseconds(50);; options.connect_timeout *= 4) {
    const Error error = error_of(options);
    ASSERT_EQ(error.code(), ErrorCode::kUnavailable) << error;
    if (error.message().find("did not answer") != std::string::npos) break;
    ASSERT_LT(options.connect_timeout, std::chrono::minutes(1)) << error;
  }
}

TEST(NatsWaitOptions, AStopEndsAnAttemptThatIsNotAnswered) {
  const InfoOnlyServer server;
  std::atomic<bool> stop{false};
  NatsConnectionOptions options;
  options.urls = {server.url()};
  options.connect_timeout = std::chrono::hours(1);
  options.stop_waiting = [&] { return stop.load(); };
  auto error = std::async(std::launch::async, [&] { return error_of(options); });
  server.wait_for_ping();
  stop.store(true);
  EXPECT_EQ(error.get().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace ashlar::backend::nats
