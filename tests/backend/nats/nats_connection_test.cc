// Passwords, tokens and TLS: who is let in, what is said to who is not, and which options are none.
#include <cstdlib>
#include <fstream>

#include "backend/nats/nats_connection.h"
#include "backend/nats/nats_fixture.h"

namespace ashlar::backend::nats {
namespace {

using NatsLogin = NatsTest;

TEST_F(NatsLogin, UserAndPasswordAreChecked) {
  NatsServer server("authorization { user: ashlar, password: \"right one\", timeout: 60 }", false);
  NatsConnectionOptions options = server.options();
  Error error = error_of(options);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
  options.user = "ashlar";
  options.password = "wrong one";
  error = error_of(options);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
  EXPECT_NE(error.message().find("check user and password"), std::string::npos) << error;
  EXPECT_EQ(error.message().find("wrong one"), std::string::npos) << error;
  options.password = "right one";
  expect_round_trip(options);
  const auto sink = sink_of({.connection = options});
  EXPECT_EQ(sink->describe().find("right one"), std::string::npos);
  EXPECT_EQ(sink->describe(), "nats core ashlar.kv at " + server.url());
}

TEST_F(NatsLogin, CredentialsThatAreTakenBackEndTheConnection) {
  NatsServer server("authorization { user: ashlar, password: old, timeout: 60 }", false);
  NatsConnectionOptions options = server.options();
  options.user = "ashlar";
  options.password = "old";
  const auto source = source_of({.connection = options});
  const auto sink = sink_of({.connection = options});
  server.kill();
  server.configure("authorization { user: ashlar, password: new, timeout: 60 }");
  server.start();
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  std::string said;
  Collector got;
  while (said.find("credentials") == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    const Result<std::size_t> polled = source->poll(got, milliseconds(20));
    if (!polled) said = polled.error().message();
  }
  EXPECT_NE(said.find("credentials"), std::string::npos) << said;
  Result<void> published;
  while (published && std::chrono::steady_clock::now() < deadline)
    published = sink->publish(batch_of(0, 1).view());
  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().code(), ErrorCode::kUnavailable);
}

TEST_F(NatsLogin, OfSeveralServersOneIsEnough) {
  NatsServer server({}, false);
  NatsConnectionOptions options = server.options();
  options.urls = {"nats://127.0.0.1:" + std::to_string(free_port()), server.url()};
  expect_round_trip(options);
}

TEST_F(NatsLogin, ATokenIsChecked) {
  NatsServer server("authorization { token: sesame, timeout: 60 }", false);
  NatsConnectionOptions options = server.options();
  options.token = "open";
  EXPECT_EQ(error_of(options).code(), ErrorCode::kInvalidArgument);
  options.token = "sesame";
  expect_round_trip(options);
}

// Certificates of an authority of this test.
class NatsTlsTest : public NatsTest {
 protected:
  void SetUp() override {
    NatsTest::SetUp();
    ASHLAR_NEEDS_SERVER(!find_program("openssl").empty(), "there is no openssl");
    const std::string here = "cd " + folder_.path() + " && ";
    const auto run = [&](const std::string& command) {
      ASSERT_EQ(std::system((here + command + " >>openssl.log 2>&1").c_str()), 0) << command;  // NOLINT
    };
    std::ofstream(folder_.file("san.txt")) << "subjectAltName=DNS:localhost\n";
    for (const char* name : {"ca", "other"})
      run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" +
          std::string(name) + " -keyout " + name + ".key -out " + name + ".pem");
    for (const std::string name : {"server", "client"}) {
      run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " +
          name + ".key -out " + name + ".csr");
      run("openssl x509 -req -in " + name +
          ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san.txt -out " + name + ".pem");
    }
  }
  std::string configuration(const std::string& more = {}) const {
    return "tls { cert_file: \"" + folder_.file("server.pem") + "\", key_file: \"" +
           folder_.file("server.key") + "\", timeout: 60" + more + " }";
  }
  NatsConnectionOptions options(const NatsServer& server, const std::string& ca) const {
    NatsConnectionOptions options = server.options();
    options.urls = {server.url("localhost")};
    options.tls.enabled = true;
    options.tls.ca_file = folder_.file(ca);
    return options;
  }

  const ScratchFolder folder_;
};

TEST_F(NatsTlsTest, OnlyACertificateOfOurAuthorityForThatNameIsTrusted) {
  NatsServer server(configuration(), false);
  expect_round_trip(options(server, "ca.pem"));

  Error error = error_of(options(server, "other.pem"));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
  EXPECT_NE(error.message().find("tls.ca_file"), std::string::npos) << error;

  NatsConnectionOptions named = options(server, "ca.pem");
  named.tls.server_name = "nats.example";
  error = error_of(named);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;

  // The name is that of the URL where none is given.
  NatsConnectionOptions elsewhere = options(server, "ca.pem");
  elsewhere.urls = {server.url("127.0.0.1")};
  error = error_of(elsewhere);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;

  error = error_of(options(server, "missing.pem"));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
  EXPECT_NE(error.message().find("missing.pem"), std::string::npos) << error;
  error = error_of(options(server, "openssl.log"));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;

  NatsConnectionOptions anybody = options(server, "other.pem");
  anybody.tls.verify = false;
  expect_round_trip(anybody);

  // Who does not ask for TLS gets it all the same, and trusts whom the system trusts.
  error = error_of(server.options());
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
}

TEST_F(NatsTlsTest, AServerMayAskForOurs) {
  NatsServer server(configuration(", ca_file: \"" + folder_.file("ca.pem") + "\", verify: true"), false);
  const Error error = error_of(options(server, "ca.pem"));
  EXPECT_NE(error.code(), ErrorCode::kInternal) << error;
  NatsConnectionOptions ours = options(server, "ca.pem");
  ours.tls.certificate_file = folder_.file("client.pem");
  ours.tls.key_file = folder_.file("client.key");
  expect_round_trip(ours);
}

TEST_F(NatsTlsTest, AServerWithoutTlsIsNotTalkedTo) {
  NatsServer server({}, false);
  const Error error = error_of(options(server, "ca.pem"));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
  EXPECT_NE(error.message().find("no TLS"), std::string::npos) << error;
}

TEST_F(NatsLogin, AServerWithoutJetStreamIsSaidToBe) {
  NatsServer server({}, false);
  const auto sink = NatsSink::create({.connection = server.options(), .mode = NatsMode::kJetStream});
  ASSERT_FALSE(sink);
  EXPECT_EQ(sink.error().code(), ErrorCode::kUnsupported) << sink.error();
  const auto source = NatsSource::create({.connection = server.options(), .mode = NatsMode::kJetStream});
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code(), ErrorCode::kUnsupported) << source.error();
  const auto core = sink_of({.connection = server.options()});
  EXPECT_EQ(core->put_snapshot(snapshot_of(0, 1).view()).error().code(), ErrorCode::kUnsupported);
}

TEST(NatsOptions, NobodyThereIsUnavailable) {
  const Error error = error_of({.urls = {"nats://127.0.0.1:" + std::to_string(free_port())}});
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error;
  EXPECT_NE(error.message().find("nats-server"), std::string::npos) << error;
}

TEST(NatsOptions, AServerThatSaysNothingIsUnavailable) {
  const SilentServer silent;
  NatsConnectionOptions options;
  options.urls = {"nats://127.0.0.1:" + std::to_string(silent.port())};
  options.connect_timeout = milliseconds(100);
  const Error error = error_of(options);
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error;
}

TEST(NatsOptions, WhatIsNoneIsRefusedWithoutItsSecrets) {
  const auto refused = [](const auto& change) {
    NatsSinkOptions options;
    options.connection.password = "secret";
    options.connection.user = "somebody";
    change(options);
    const auto sink = NatsSink::create(options);
    EXPECT_FALSE(sink);
    if (sink) return;
    EXPECT_EQ(sink.error().code(), ErrorCode::kInvalidArgument) << sink.error();
    EXPECT_EQ(sink.error().message().find("secret"), std::string::npos) << sink.error();
  };
  for (const char* url :
       {"", "127.0.0.1:4222", "http://a", "nats://", "nats://:4222", "nats://u:secret@host", "nats://a b"})
    refused([&](NatsSinkOptions& options) { options.connection.urls = {url}; });
  refused([](NatsSinkOptions& options) { options.connection.urls.clear(); });
  refused([](NatsSinkOptions& options) { options.connection.token = "secret"; });
  refused([](NatsSinkOptions& options) { options.connection.user.clear(); });
  refused([](NatsSinkOptions& options) { options.connection.jitter = 2; });
  refused([](NatsSinkOptions& options) { options.connection.reconnect_max = milliseconds(1); });
  refused([](NatsSinkOptions& options) { options.connection.pending_bytes = 0; });
  refused([](NatsSinkOptions& options) { options.connection.tls = {.enabled = true, .key_file = "key"}; });
  // Without TLS the password would go out in clear.
  refused([](NatsSinkOptions& options) { options.connection.tls = {.ca_file = "ca"}; });
  refused([](NatsSinkOptions& options) {
    options.connection.tls = {.certificate_file = "cert", .key_file = "key"};
  });
  refused([](NatsSinkOptions& options) { options.connection.tls = {.server_name = "name"}; });
  refused([](NatsSinkOptions& options) { options.connection.tls = {.verify = false}; });
  for (const char* prefix : {"", ".", "a..b", "a.*", "a.>", "$JS", "a b"})
    refused([&](NatsSinkOptions& options) { options.prefix = prefix; });
  refused([](NatsSinkOptions& options) { options.stream.name = "a.b"; });
  refused([](NatsSinkOptions& options) { options.stream.replicas = 0; });
  refused([](NatsSinkOptions& options) { options.bucket = "a b"; });
  refused([](NatsSinkOptions& options) { options.max_in_flight = 0; });
  refused([](NatsSinkOptions& options) { options.snapshots.emplace_back(); });
  EXPECT_FALSE(NatsSourceOptions{.fetch = 0}.validate());
  EXPECT_FALSE(NatsSourceOptions{.durable = "a.b"}.validate());
  EXPECT_TRUE(NatsSourceOptions{}.validate());
}

}  // namespace
}  // namespace ashlar::backend::nats
