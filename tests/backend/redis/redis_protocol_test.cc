// Redis volumes and servers that say what no server should: a connection is never used after that.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/backend/redis/redis_volume.h"
#include "support/server.h"
#include "support/silent_volume.h"
#include "support/volume_objects.h"
#include "tiers/volume/silent_volume_scenario.h"

namespace ashlar::backend::redis {
namespace {

using namespace tiers;  // NOLINT(google-build-using-namespace): the helpers' names

// Connection number i gets answers[i], or the last of them, whenever it has sent something.
class RawServer {
 public:
  explicit RawServer(std::vector<std::string> answers)
      : answers_(std::move(answers)), thread_([this] { run(); }) {}
  ~RawServer() {
    stop_.store(true);
    thread_.join();
  }
  int connections() const { return static_cast<int>(accepted_.load()); }
  std::unique_ptr<Volume> attach_volume() const {
    return attach({.name = "test",
                   .kind = "redis",
                   .location = "127.0.0.1:" + std::to_string(listener_.port()),
                   .options = {{"retries", "1"}, {"backoff_ms", "2"}, {"timeout_ms", "2000"}}})
        .value();
  }

 private:
  void run() {
    std::vector<TestSocket> clients;
    std::vector<char> bytes(1 << 16);
    while (!stop_.load()) {
      std::vector<pollfd> watched{{.fd = listener_.listener(), .events = POLLIN, .revents = 0}};
      for (const TestSocket& client : clients)
        watched.push_back({.fd = client.get(), .events = POLLIN, .revents = 0});
      if (poll(watched.data(), watched.size(), 20) <= 0) continue;
      for (std::size_t i = 0; i < clients.size(); ++i) {
        if (watched[i + 1].revents == 0) continue;
        const std::string& answer = answers_[std::min(i, answers_.size() - 1)];
        const bool good = recv(clients[i].get(), bytes.data(), bytes.size(), 0) > 0 &&
                          send(clients[i].get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0;
        if (!good) clients[i].close();
      }
      if (watched[0].revents == 0) continue;
      clients.emplace_back(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC));
      accepted_.fetch_add(1);
    }
  }

  SilentServer listener_;
  const std::vector<std::string> answers_;
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> accepted_{0};
  std::thread thread_;
};

TEST(RedisProtocolTest, WhatIsNoReplyEndsTheConnectionAndTheNextOneAnswers) {
  const std::vector<std::string> nonsense{
      "HTTP/1.1 400 Bad Request\r\n\r\n",
      "$5\r\nhelloXX",                         // does not end where it says
      "$99999999999999999999\r\n",             // no number
      "$-2\r\n",                               // no size
      "$5x\r\nhello\r\n",                      //
      "*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n",  // several values
      "\r\n",
      std::string(20'000, 'x'),  // a line without an end
      ":notanumber\r\n",
      ":1x\r\n",
      "*0\r\n",
      "*-1\r\n",
      "*99999999999999999999\r\n",
  };
  for (const std::string& answer : nonsense) {
    const RawServer server({answer, "$5\r\nhello\r\n"});
    const std::unique_ptr<Volume> volume = server.attach_volume();
    const Result<Bytes> got = get_one(*volume, "k", 5);
    ASSERT_TRUE(got) << answer.substr(0, 40) << ": " << got.error();
    EXPECT_EQ(std::memcmp(got->data(), "hello", 5), 0);
    EXPECT_EQ(server.connections(), 2) << answer.substr(0, 40);
  }
}

TEST(RedisProtocolTest, AServerThatOnlyTalksNonsenseIsUnavailable) {
  const RawServer server({"nonsense\r\n"});
  const std::unique_ptr<Volume> volume = server.attach_volume();
  EXPECT_EQ(code_of(get_one(*volume, "k", 5)), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(put_one(*volume, "k", make_bytes(5, 1))), ErrorCode::kUnavailable);
  EXPECT_EQ(server.connections(), 4);
}

TEST(RedisProtocolTest, MoreThanWasAskedForIsNobodysAnswer) {
  const RawServer server({"+OK\r\n+OK\r\n"});
  const std::unique_ptr<Volume> volume = server.attach_volume();
  EXPECT_TRUE(put_one(*volume, "a", make_bytes(5, 1)));
  EXPECT_TRUE(put_one(*volume, "b", make_bytes(5, 1)));
  EXPECT_EQ(server.connections(), 2);
}

TEST(RedisProtocolTest, AReplyOfAnotherKindIsAnError) {
  const RawServer server({":1\r\n"});
  const std::unique_ptr<Volume> volume = server.attach_volume();
  EXPECT_EQ(code_of(get_one(*volume, "k", 5)), ErrorCode::kIo);
  EXPECT_EQ(code_of(put_one(*volume, "k", make_bytes(5, 1))), ErrorCode::kIo);
  const RawServer value({"$5\r\nhello\r\n"});
  EXPECT_EQ(code_of(put_one(*value.attach_volume(), "k", make_bytes(5, 1))), ErrorCode::kUnavailable);
}

TEST(RedisProtocolTest, ErrorsThatPassAreWaitedForAndOthersAreNot) {
  const RawServer loading({"-LOADING Redis is loading the dataset in memory\r\n"});
  const std::unique_ptr<Volume> volume = loading.attach_volume();
  const Result<Bytes> got = get_one(*volume, "k", 5);
  ASSERT_EQ(code_of(got), ErrorCode::kUnavailable);
  EXPECT_NE(got.error().message().find("LOADING"), std::string::npos) << got.error();
  const RawServer moved({"-MOVED 3999 s3cr3t-arguments\r\n"});
  const Result<Bytes> elsewhere = get_one(*moved.attach_volume(), "k", 5);
  ASSERT_EQ(code_of(elsewhere), ErrorCode::kIo);
  EXPECT_EQ(elsewhere.error().message().find("s3cr3t"), std::string::npos) << elsewhere.error();
}

TEST(RedisProtocolTest, AValueMuchLargerThanExpectedIsNotRead) {
  const RawServer server({"$500000000\r\nxxxxxxxxxxxxxxxxxxxx", "$5\r\nhello\r\n"});
  const std::unique_ptr<Volume> volume = server.attach_volume();
  EXPECT_EQ(code_of(get_one(*volume, "k", 5)), ErrorCode::kCorruption);
  EXPECT_TRUE(get_one(*volume, "k", 5));
  EXPECT_EQ(server.connections(), 2);
}

// The most memory that this process has had mapped, in KiB.
std::uint64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmPeak:")) return std::stoull(line.substr(7));
  return 0;
}

TEST(RedisProtocolTest, NoMemoryIsTakenForWhatAServerAnnounces) {
  for (const std::string announced :
       {"*100000000\r\n", "*1\r\n*100000000\r\n", "$4000000000000000000\r\nx"}) {
    const RawServer server({announced});
    const std::unique_ptr<Volume> volume = server.attach_volume();
    const std::uint64_t before = peak_kib();
    ASSERT_GT(before, 0u);
    EXPECT_FALSE(get_one(*volume, "k", 5));
    EXPECT_FALSE(put_one(*volume, "k", make_bytes(5, 1)));
    EXPECT_FALSE(contains_one(*volume, "k"));
    EXPECT_LT(peak_kib() - before, 400'000u) << announced;  // 100 million pointers are 800 MB
  }
}

// ---- servers that never answer

std::unique_ptr<Volume> attach_patiently(int port, std::map<std::string, std::string> options = {}) {
  options.merge(std::map<std::string, std::string>{
      {"connect_timeout_ms", "36000000"}, {"timeout_ms", "36000000"}, {"deadline_ms", "36000000"}});
  return attach({.name = "test",
                 .kind = "redis",
                 .location = "127.0.0.1:" + std::to_string(port),
                 .options = std::move(options)})
      .value();
}
std::unique_ptr<Volume> attach_anonymously(int port) {
  return attach_patiently(port);
}
std::unique_ptr<Volume> attach_with_password(int port) {
  return attach_patiently(port, {{"password", "p"}});
}

TEST(RedisLimitsTest, CallsOfASilentServerEndByTheirLimits) {
  expect_calls_end_by_their_limits(attach_anonymously);
  expect_calls_end_by_their_limits(attach_with_password);
  expect_connecting_ends_by_the_limits(attach_anonymously);
}

TEST(RedisLimitsTest, CallsOfAServerThatStopsInTheMiddleEndByTheirLimits) {
  expect_calls_end_by_their_limits(attach_with_password, "+O");
  expect_calls_end_by_their_limits(attach_with_password, "+OK\r\n");
  expect_calls_end_by_their_limits(attach_anonymously, "$3145728\r\nsome bytes");
}

// A pause before the next attempt is no reason to stay.
TEST(RedisLimitsTest, ACallEndsByItsLimitsBetweenTwoAttempts) {
  const int nobody = free_port();
  const std::unique_ptr<Volume> volume = attach({.name = "test",
                                                 .kind = "redis",
                                                 .location = "127.0.0.1:" + std::to_string(nobody),
                                                 .options = {{"backoff_ms", "36000000"}}})
                                             .value();
  for (const LimitedCall& call : limited_calls()) {
    const auto codes = call.run(*volume, {.deadline = Clock::real().now() + std::chrono::milliseconds(20)});
    EXPECT_EQ(codes, std::vector<std::optional<ErrorCode>>(codes.size(), ErrorCode::kTimeout)) << call.name;
  }
}

TEST(RedisLimitsTest, NobodyWaitsForASilentServer) {
  const BlackholeServer server;
  expect_nobody_waits_for_a_silent_volume(
      {.options =
           [&] {
             VolumeRegistry kinds;
             kinds.add("redis", attach);
             return VolumeTier::options(
                 {{.name = "v",
                   .kind = "redis",
                   .location = "127.0.0.1:" + std::to_string(server.port()),
                   .options = {{"timeout_ms", "36000000"}, {"deadline_ms", "36000000"}}}},
                 std::move(kinds));
           },
       .calls = server.heard()});
}

}  // namespace
}  // namespace ashlar::backend::redis
