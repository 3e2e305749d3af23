// Redis volumes: the suite of all volumes over TCP and over a unix socket, and what only this backend does.
#include "ashlar/backend/redis/redis_volume.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "backend/redis/redis_server.h"
#include "support/volume_conformance.h"

namespace ashlar::backend::redis {
namespace {

using namespace tiers;  // NOLINT(google-build-using-namespace): the suite's names
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

Result<std::unique_ptr<Volume>> attach_to(std::string location,
                                          std::map<std::string, std::string> options = {}) {
  // A server on a busy machine is slow, not dead.
  options.emplace("connect_timeout_ms", "100000");
  options.emplace("timeout_ms", "100000");
  return attach(
      {.name = "test", .kind = "redis", .location = std::move(location), .options = std::move(options)});
}

std::string at_port(int port) {
  return "127.0.0.1:" + std::to_string(port);
}

class RedisInTest final : public VolumeInTest {
 public:
  explicit RedisInTest(bool over_socket) {
    volume_ = over_socket ? attach_to("unix:" + server_.socket(), {{"pipeline", "3"}}).value()
                          : attach_to(at_port(server_.port()), {{"prefix", "kv:"}, {"db", "3"}}).value();
  }
  Volume& volume() override { return *volume_; }

 private:
  RedisServer server_;
  std::unique_ptr<Volume> volume_;
};

std::unique_ptr<VolumeInTest> make_case(bool over_socket) {
  return RedisServer::is_installed() ? std::make_unique<RedisInTest>(over_socket) : nullptr;
}

INSTANTIATE_TEST_SUITE_P(
    Redis, VolumeTest,
    ::testing::Values(VolumeCase{.name = "redis_tcp", .make = [] { return make_case(false); }},
                      VolumeCase{.name = "redis_unix", .make = [] { return make_case(true); }}),
    volume_case_name);

class RedisTest : public ::testing::Test {
 protected:
  void SetUp() override { ASHLAR_NEEDS_SERVER(RedisServer::is_installed(), "redis-server is missing"); }
};

TEST_F(RedisTest, AServerKilledInMidBatchLosesOnlyWhatItDidNotAnswer) {
  RedisServer server;
  constexpr std::size_t kObjects = 64;
  Writes writes;
  Reads reads;
  for (std::size_t i = 0; i < kObjects; ++i) {
    writes.add("k" + std::to_string(i), make_bytes(1 << 20, i));
    reads.add("k" + std::to_string(i), 1 << 20);
  }
  Proxy proxy(server.port(), (64 + 20) << 20, [&] { server.kill(); });
  const std::unique_ptr<Volume> volume =
      attach_to(at_port(proxy.port()), {{"retries", "2"}, {"backoff_ms", "10"}, {"pipeline", "8"}}).value();
  for (const Result<void>& result : volume->put(writes.objects())) ASSERT_TRUE(result) << result.error();
  const std::vector<Result<void>> results = volume->get(reads.objects());
  const std::size_t good = count_whole_or_unavailable(reads, writes, results);
  EXPECT_GT(good, 5U);
  EXPECT_LT(good, 30U);
  EXPECT_EQ(code_of(contains_one(*volume, "k0")), ErrorCode::kUnavailable);
  // The same volume works when the server is back, empty as it is.
  server.start();
  EXPECT_FALSE(contains_one(*volume, "k0").value());
  EXPECT_TRUE(put_one(*volume, "k0", make_bytes(100, 1)));
}

TEST_F(RedisTest, APutIntoAServerThatDiesIsUnavailableFromThereOn) {
  RedisServer server;
  Writes writes;
  for (std::size_t i = 0; i < 64; ++i) writes.add("k" + std::to_string(i), make_bytes(1 << 20, i));
  Proxy proxy(server.port(), 20 << 20, [&] { server.kill(); });
  const std::unique_ptr<Volume> volume =
      attach_to(at_port(proxy.port()), {{"retries", "1"}, {"backoff_ms", "5"}}).value();
  const std::vector<Result<void>> results = volume->put(writes.objects());
  // In order: what was answered, then what was not.
  std::size_t good = 0;
  while (good < results.size() && results[good]) ++good;
  EXPECT_LT(good, 30U);
  for (std::size_t i = good; i < results.size(); ++i)
    EXPECT_EQ(code_of(results[i]), ErrorCode::kUnavailable) << i;
}

TEST_F(RedisTest, ARestartBetweenBatchesIsNotNoticed) {
  RedisServer server;
  const std::unique_ptr<Volume> volume = attach_to(at_port(server.port()), {{"retries", "0"}}).value();
  ASSERT_TRUE(put_one(*volume, "a", make_bytes(100, 1)));
  server.kill();
  server.start();
  EXPECT_FALSE(contains_one(*volume, "a").value());
}

TEST_F(RedisTest, ASilentServerIsGivenUpInTime) {
  const SilentServer silent;
  const std::unique_ptr<Volume> volume =
      attach_to(at_port(silent.port()), {{"timeout_ms", "100"}, {"retries", "2"}, {"backoff_ms", "10"}})
          .value();
  Reads reads;
  for (int i = 0; i < 1000; ++i) reads.add("k" + std::to_string(i), 1000);
  const auto start = steady_clock::now();
  for (const Result<void>& result : volume->get(reads.objects()))
    EXPECT_EQ(code_of(result), ErrorCode::kUnavailable);
  const auto took = steady_clock::now() - start;
  EXPECT_GE(took, milliseconds(300));
  EXPECT_LT(took, seconds(100)) << "each object by itself would take 300 s";
}

TEST_F(RedisTest, NobodyListeningIsUnavailableAfterTheRetries) {
  const std::unique_ptr<Volume> volume =
      attach_to(at_port(free_port()), {{"retries", "1"}, {"backoff_ms", "5"}}).value();
  const Result<void> result = put_one(*volume, "a", make_bytes(10, 1));
  ASSERT_EQ(code_of(result), ErrorCode::kUnavailable);
  EXPECT_NE(result.error().message().find("2 attempts"), std::string::npos) << result.error();
}

TEST_F(RedisTest, AFullServerIsCapacity) {
  RedisServer server({"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"});
  const std::unique_ptr<Volume> volume = attach_to(at_port(server.port())).value();
  Writes writes;
  for (std::size_t i = 0; i < 16; ++i) writes.add("k" + std::to_string(i), make_bytes(1 << 20, i));
  const std::vector<Result<void>> results = volume->put(writes.objects());
  EXPECT_TRUE(results.front()) << results.front().error();
  ASSERT_EQ(code_of(results.back()), ErrorCode::kCapacity);
  EXPECT_NE(results.back().error().message().find("maxmemory"), std::string::npos);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const std::string key(writes.key(i));
    if (results[i]) {
      EXPECT_TRUE(get_one(*volume, key, 1 << 20).value() == writes.bytes(i));
    } else {
      EXPECT_EQ(code_of(results[i]), ErrorCode::kCapacity);
      EXPECT_FALSE(contains_one(*volume, key).value());
    }
  }
}

TEST_F(RedisTest, ObjectsBeyondTheLimitAreRefusedBeforeTheyAreSent) {
  RedisServer server;
  const std::unique_ptr<Volume> volume =
      attach_to(at_port(server.port()), {{"max_object_bytes", "1000"}}).value();
  Writes writes;
  writes.add("large", make_bytes(1001, 1));
  writes.add("fits", make_bytes(1000, 2));
  const std::vector<Result<void>> results = volume->put(writes.objects());
  EXPECT_EQ(code_of(results[0]), ErrorCode::kCapacity);
  EXPECT_TRUE(results[1]);
}

TEST_F(RedisTest, AServerWithASmallerLimitOfItsOwnBreaksOffAndHarmsNothing) {
  RedisServer server({"--proto-max-bulk-len", "1mb"});
  const std::unique_ptr<Volume> volume =
      attach_to(at_port(server.port()), {{"retries", "1"}, {"backoff_ms", "5"}}).value();
  ASSERT_TRUE(put_one(*volume, "before", make_bytes(100, 1)));
  Writes writes;
  writes.add("first", make_bytes(100, 3));
  writes.add("large", make_bytes(3 << 20, 2));
  writes.add("second", make_bytes(100, 4));
  const std::vector<Result<void>> results = volume->put(writes.objects());
  EXPECT_TRUE(results[0]) << results[0].error();
  EXPECT_EQ(code_of(results[1]), ErrorCode::kCapacity) << results[1].error();
  EXPECT_TRUE(results[2]) << results[2].error();
  EXPECT_TRUE(get_one(*volume, "before", 100).value() == make_bytes(100, 1));
}

TEST_F(RedisTest, ObjectsExpireAfterTheirTimeToLive) {
  RedisServer server;
  const std::unique_ptr<Volume> mortal = attach_to(at_port(server.port()), {{"ttl_seconds", "1"}}).value();
  const std::unique_ptr<Volume> immortal = attach_to(at_port(server.port())).value();
  ASSERT_TRUE(put_one(*immortal, "immortal", make_bytes(100, 2)));
  // On a busy machine it may be gone before anybody looks.
  bool seen = false;
  for (int i = 0; i < 100 && !seen; ++i) {
    ASSERT_TRUE(put_one(*mortal, "mortal", make_bytes(100, 1)));
    seen = contains_one(*immortal, "mortal").value();
  }
  EXPECT_TRUE(seen);
  const auto start = steady_clock::now();
  while (contains_one(*immortal, "mortal").value() && steady_clock::now() - start < seconds(100))
    std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(code_of(get_one(*mortal, "mortal", 100)), ErrorCode::kNotFound);
  EXPECT_TRUE(contains_one(*immortal, "immortal").value());
}

TEST_F(RedisTest, CredentialsOpenTheServerAndAppearNowhere) {
  RedisServer server(
      {"--requirepass", "s3cr3t-default", "--user", "kv", "on", ">s3cr3t-kv", "~kv:*", "+@all"});
  const std::string place = at_port(server.port());
  const std::map<std::string, std::string> fast{{"retries", "0"}};
  const auto with = [&](std::map<std::string, std::string> options) {
    options.merge(std::map(fast));
    return attach_to(place, std::move(options)).value();
  };
  EXPECT_TRUE(put_one(*with({{"password", "s3cr3t-default"}}), "a", make_bytes(10, 1)));
  EXPECT_TRUE(put_one(*with({{"username", "kv"}, {"password", "s3cr3t-kv"}, {"prefix", "kv:"}}), "a",
                      make_bytes(10, 1)));

  const std::vector<std::unique_ptr<Volume>> refused = [&] {
    std::vector<std::unique_ptr<Volume>> volumes;
    volumes.push_back(with({}));
    volumes.push_back(with({{"password", "s3cr3t-wrong"}}));
    volumes.push_back(with({{"username", "kv"}, {"password", "s3cr3t-wrong"}}));
    volumes.push_back(with({{"username", "kv"}, {"password", "s3cr3t-kv"}, {"prefix", "other:"}}));
    volumes.push_back(with({{"password", "s3cr3t-default"}, {"db", "1000"}}));
    return volumes;
  }();
  for (const std::unique_ptr<Volume>& volume : refused) {
    const Result<void> result = put_one(*volume, "a", make_bytes(10, 1));
    ASSERT_EQ(code_of(result), ErrorCode::kIo) << volume->describe();
    EXPECT_EQ(result.error().message().find("s3cr3t"), std::string::npos) << result.error();
    EXPECT_EQ(volume->describe().find("s3cr3t"), std::string::npos);
  }
}

TEST_F(RedisTest, SomethingElseUnderTheKeyIsCorrupt) {
  RedisServer server;
  TestSocket raw = connect_to(server.port());
  const std::string command = "RPUSH list x\r\n";
  ASSERT_EQ(send(raw.get(), command.data(), command.size(), 0), static_cast<ssize_t>(command.size()));
  std::array<char, 64> reply{};
  ASSERT_GT(recv(raw.get(), reply.data(), reply.size(), 0), 0);
  const std::unique_ptr<Volume> volume = attach_to(at_port(server.port())).value();
  EXPECT_EQ(code_of(get_one(*volume, "list", 1)), ErrorCode::kCorruption);
}

TEST_F(RedisTest, AHundredMebibytesGoThroughWhole) {
  RedisServer server;
  const std::unique_ptr<Volume> volume = attach_to("unix:" + server.socket()).value();
  const Bytes bytes = make_bytes(100 << 20, 1);
  ASSERT_TRUE(put_one(*volume, "large", bytes));
  EXPECT_TRUE(same_bytes(get_one(*volume, "large", bytes.size()).value(), bytes));
  EXPECT_EQ(code_of(get_one(*volume, "large", 10)), ErrorCode::kCorruption);
}

TEST(RedisOptionsTest, AttachSaysWhatIsWrongAndNeverTheValue) {
  const std::vector<std::pair<std::string, std::map<std::string, std::string>>> bad{
      {"", {}},
      {"host:0", {}},
      {"host:99999", {}},
      {"host:port", {}},
      {"redis://:s3cr3t@host:6379", {}},
      {"unix:relative", {}},
      {"[::1", {}},
      {"host", {{"db", "s3cr3t"}}},
      {"host", {{"pasword", "s3cr3t"}}},
      {"host", {{"username", "s3cr3t"}}},
      {"host", {{"prefix", "s3cr3t "}}},
      {"host", {{"max_object_bytes", "999999999999"}}},
  };
  for (const auto& [location, options] : bad) {
    const auto attached = attach_to(location, options);
    ASSERT_EQ(code_of(attached), ErrorCode::kInvalidArgument) << location;
    EXPECT_EQ(attached.error().message().find("s3cr3t"), std::string::npos) << attached.error();
  }
  EXPECT_EQ(attach_to("host").value()->describe(), "redis host:6379 db 0");
  EXPECT_EQ(attach_to("[::1]:7", {{"db", "2"}, {"prefix", "kv:"}}).value()->describe(),
            "redis [::1]:7 db 2 kv:");
  EXPECT_EQ(attach_to("unix:/run/redis").value()->describe(), "redis unix:/run/redis db 0");
}

TEST(RedisRegistryTest, OneLineRegistersTheKind) {
  VolumeRegistry registry = VolumeRegistry::with_builtin();
  registry.add("redis", backend::redis::attach);
  EXPECT_TRUE(registry.attach({.name = "v", .kind = "redis", .location = "localhost:6379"}));
}

}  // namespace
}  // namespace ashlar::backend::redis
