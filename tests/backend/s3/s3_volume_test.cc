// S3 volumes against a store that checks signatures: the suite of all volumes, credentials, TLS, a store that
// is killed.
#include "ashlar/backend/s3/s3_volume.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "backend/s3/s3_server.h"
#include "support/scratch_folder.h"
#include "support/volume_conformance.h"

namespace ashlar::backend::s3 {
namespace {

using namespace tiers;  // NOLINT(google-build-using-namespace): the suite's names
using Settings = std::map<std::string, std::string>;

// One for all cases; those that kill it have their own.
S3Server& shared_server() {
  static S3Server server;
  return server;
}

Settings settings_of(const S3Server& server, const Settings& more = {}, int port = 0) {
  Settings settings = more;
  settings.merge(
      Settings{{"endpoint", "http://127.0.0.1:" + std::to_string(port == 0 ? server.port() : port)},
               {"access_key", server.access_key},
               {"secret_key", server.secret_key},
               {"backoff_ms", "10"},
               {"retries", "2"},
               // A store on a busy machine is slow, not dead.
               {"connect_timeout_ms", "100000"},
               {"stall_seconds", "100"},
               {"deadline_ms", "400000"}});
  return settings;
}

std::unique_ptr<Volume> attach_to(const std::string& prefix, Settings settings) {
  return attach({.name = "test",
                 .kind = "s3",
                 .location = S3Server::kBucket + (prefix.empty() ? "" : "/" + prefix),
                 .options = std::move(settings)})
      .value();
}

class S3InTest final : public VolumeInTest {
 public:
  explicit S3InTest(bool host_style) {
    static std::atomic<int> next{0};
    Settings settings = settings_of(shared_server(), {{"multipart_bytes", "5242880"},
                                                      {"part_bytes", "5242880"},
                                                      {"part_requests", "2"},
                                                      {"requests", "8"}});
    if (host_style) {
      settings["addressing"] = "host";
      settings["endpoint"] = "http://localhost:" + std::to_string(shared_server().port());
    }
    volume_ = attach_to("case/" + std::to_string(next++), std::move(settings));
  }
  Volume& volume() override { return *volume_; }

 private:
  std::unique_ptr<Volume> volume_;
};

std::unique_ptr<VolumeInTest> make_case(bool host_style) {
  return S3Server::is_installed() ? std::make_unique<S3InTest>(host_style) : nullptr;
}

INSTANTIATE_TEST_SUITE_P(S3, VolumeTest,
                         ::testing::Values(VolumeCase{.name = "s3_path_style",
                                                      .make = [] { return make_case(false); }}),
                         volume_case_name);

class S3Test : public ::testing::Test {
 protected:
  void SetUp() override {
    ASHLAR_NEEDS_SERVER(S3Server::is_installed(), "the S3 server for tests is missing");
  }
};

TEST_F(S3Test, BucketsMayBePartOfTheHostName) {
  const std::unique_ptr<VolumeInTest> by_host = make_case(true);
  ASSERT_TRUE(put_one(by_host->volume(), "a/b", make_bytes(10'000, 1)));
  ASSERT_TRUE(put_one(by_host->volume(), "large", make_bytes(6 << 20, 2)));
  EXPECT_TRUE(get_one(by_host->volume(), "a/b", 10'000).value() == make_bytes(10'000, 1));
  EXPECT_TRUE(get_one(by_host->volume(), "large", 6 << 20).value() == make_bytes(6 << 20, 2));
}

TEST_F(S3Test, AWrongSecretIsRefusedAndAppearsNowhere) {
  const S3Server& server = shared_server();
  std::string wrong = server.secret_key;
  wrong.back() = wrong.back() == 'x' ? 'y' : 'x';
  ASSERT_TRUE(put_one(*attach_to("auth", settings_of(server)), "there", make_bytes(10, 1)));
  const std::vector<Settings> refused{settings_of(server, {{"secret_key", wrong}}),
                                      settings_of(server, {{"access_key", "AKIAS3CR3TS3CR3TS3CR"}}),
                                      settings_of(server, {{"session_token", "s3cr3t-token"}})};
  for (std::size_t i = 0; i < refused.size(); ++i) {
    const std::unique_ptr<Volume> volume = attach_to("auth", refused[i]);
    const std::string_view key = "there";
    std::vector<Error> errors;
    const auto keep = [&](const auto& result) {
      ASSERT_FALSE(result) << i;
      errors.push_back(result.error());
    };
    keep(put_one(*volume, "there", make_bytes(10, 1)));
    keep(put_one(*volume, "large", make_bytes(40 << 20, 1)));
    keep(get_one(*volume, "there", 10));
    keep(contains_one(*volume, key));
    keep(volume->remove(std::span(&key, 1)).at(0));
    for (const Error& error : errors) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << error;
      EXPECT_NE(error.message().find(i < 2 ? "403" : "400"), std::string::npos) << error;
      for (const std::string& secret :
           {wrong, server.secret_key, server.access_key, std::string("S3CR3T"), std::string("s3cr3t")})
        EXPECT_EQ((error.message() + volume->describe()).find(secret), std::string::npos) << error;
    }
  }
  const std::unique_ptr<Volume> wrong_secret = attach_to("auth", refused[0]);
  EXPECT_NE(put_one(*wrong_secret, "k", {}).error().message().find("SignatureDoesNotMatch"),
            std::string::npos);
  // Nothing of it happened.
  EXPECT_TRUE(contains_one(*attach_to("auth", settings_of(server)), "there").value());
}

TEST_F(S3Test, TemporaryCredentialsNeedTheirToken) {
  const S3Server& server = shared_server();
  const Settings session{{"access_key", server.session_access_key},
                         {"secret_key", server.session_secret_key}};
  EXPECT_FALSE(put_one(*attach_to("session", settings_of(server, session)), "a", make_bytes(10, 1)));
  Settings with_token = session;
  with_token["session_token"] = server.session_token;
  const std::unique_ptr<Volume> volume = attach_to("session", settings_of(server, with_token));
  const Result<void> put = put_one(*volume, "a", make_bytes(10, 1));
  EXPECT_TRUE(put) << put.error();
  EXPECT_TRUE(put_one(*volume, "large", make_bytes(40 << 20, 2)));
  EXPECT_TRUE(same_bytes(get_one(*volume, "large", 40 << 20).value(), make_bytes(40 << 20, 2)));
}

TEST_F(S3Test, ASecondPutKeepsTheFirstObjectUnlessToldOtherwise) {
  const S3Server& server = shared_server();
  const Settings small_parts{{"multipart_bytes", "5242880"}, {"part_bytes", "5242880"}};
  const std::unique_ptr<Volume> keeps = attach_to("twice", settings_of(server, small_parts));
  Settings replacing = small_parts;
  replacing["if_none_match"] = "false";
  const std::unique_ptr<Volume> replaces = attach_to("twice", settings_of(server, replacing));
  for (const std::size_t size : {std::size_t{100}, std::size_t{6 << 20}}) {
    const std::string key = std::to_string(size);
    ASSERT_TRUE(put_one(*keeps, key, make_bytes(size, 1)));
    ASSERT_TRUE(put_one(*keeps, key, make_bytes(size, 2)));
    EXPECT_TRUE(get_one(*keeps, key, size).value() == make_bytes(size, 1));
    ASSERT_TRUE(put_one(*replaces, key, make_bytes(size, 3)));
    EXPECT_TRUE(get_one(*keeps, key, size).value() == make_bytes(size, 3));
  }
}

TEST_F(S3Test, ABucketThatIsNotThereIsNoMissingObject) {
  const auto volume = attach({.name = "test",
                              .kind = "s3",
                              .location = "no-such-bucket",
                              .options = settings_of(shared_server())})
                          .value();
  EXPECT_EQ(code_of(get_one(*volume, "a", 10)), ErrorCode::kIo);
  EXPECT_EQ(code_of(put_one(*volume, "a", make_bytes(10, 1))), ErrorCode::kIo);
}

TEST_F(S3Test, AStoreKilledInMidBatchLosesOnlyWhatItDidNotAnswer) {
  S3Server server;
  constexpr std::size_t kObjects = 60;
  Writes writes;
  Reads reads;
  for (std::size_t i = 0; i < kObjects; ++i) {
    writes.add("k" + std::to_string(i), make_bytes(300'000, i));
    reads.add("k" + std::to_string(i), 300'000);
  }
  Proxy proxy(server.port(), (kObjects + 20) * 301'000, [&] { server.kill(); });
  const std::unique_ptr<Volume> volume =
      attach_to("", settings_of(server, {{"requests", "4"}}, proxy.port()));
  for (const Result<void>& result : volume->put(writes.objects())) ASSERT_TRUE(result) << result.error();
  const std::vector<Result<void>> results = volume->get(reads.objects());
  const std::size_t good = count_whole_or_unavailable(reads, writes, results);
  EXPECT_GT(good, 5U);
  EXPECT_LT(good, 40U);
  EXPECT_EQ(code_of(put_one(*volume, "large", make_bytes(33 << 20, 1))), ErrorCode::kUnavailable);
  // The same volume works when the store is back, empty as it is.
  server.start();
  EXPECT_EQ(code_of(get_one(*volume, "k0", 300'000)), ErrorCode::kNotFound);
  EXPECT_TRUE(put_one(*volume, "k0", make_bytes(100, 1)));
}

TEST_F(S3Test, TlsNeedsACertificateThatIsTrusted) {
  const std::string openssl = find_program("openssl");
  ASHLAR_NEEDS_SERVER(!openssl.empty(), "the program openssl is missing");
  const ScratchFolder folder;
  const std::string certificate = folder.file("certificate.pem");
  const std::string key = folder.file("key.pem");
  const std::string command =
      openssl + " req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext " +
      "subjectAltName=DNS:localhost -keyout " + key + " -out " + certificate + " 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);  // NOLINT(concurrency-mt-unsafe)
  S3Server server(certificate, key);
  const std::string endpoint = "https://localhost:" + std::to_string(server.port());
  const auto with = [&](Settings more) {
    more["endpoint"] = endpoint;
    more["retries"] = "0";
    return attach_to("tls", settings_of(server, more));
  };
  EXPECT_TRUE(put_one(*with({{"ca_file", certificate}}), "a", make_bytes(100'000, 1)));
  EXPECT_TRUE(get_one(*with({{"verify_tls", "false"}}), "a", 100'000).value() == make_bytes(100'000, 1));
  const Result<Bytes> untrusted = get_one(*with({}), "a", 100'000);
  ASSERT_EQ(code_of(untrusted), ErrorCode::kUnavailable);
  EXPECT_NE(untrusted.error().message().find("certificate"), std::string::npos) << untrusted.error();
  // And one for another name.
  const std::unique_ptr<Volume> other_name = attach_to(
      "tls", settings_of(server, {{"endpoint", "https://127.0.0.1:" + std::to_string(server.port())},
                                  {"ca_file", certificate},
                                  {"retries", "0"}}));
  EXPECT_EQ(code_of(get_one(*other_name, "a", 100'000)), ErrorCode::kUnavailable);
}

TEST_F(S3Test, LargeObjectsGoUpInPartsAndComeBackWhole) {
  const std::unique_ptr<Volume> volume =
      attach_to("large", settings_of(shared_server(), {{"part_bytes", "5242880"}, {"part_requests", "3"}}));
  Writes writes;
  Reads reads;
  for (const std::size_t size : {std::size_t{64} << 20, (std::size_t{32} << 20) + 1, std::size_t{32} << 20}) {
    writes.add(std::to_string(size), make_bytes(size, size));
    reads.add(std::to_string(size), size);
  }
  for (const Result<void>& result : volume->put(writes.objects())) EXPECT_TRUE(result) << result.error();
  const std::vector<Result<void>> results = volume->get(reads.objects());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i]) << results[i].error();
    EXPECT_TRUE(same_bytes(reads.bytes(i), writes.bytes(i))) << writes.key(i);
  }
}

}  // namespace
}  // namespace ashlar::backend::s3
