// S3 volumes and the bad days of a store: errors, retries, deadlines, uploads that fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "ashlar/backend/s3/s3_volume.h"
#include "backend/s3/scripted_store.h"
#include "support/volume_objects.h"

namespace ashlar::backend::s3 {
namespace {

using namespace tiers;  // NOLINT(google-build-using-namespace): the suite's names
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Settings = std::map<std::string, std::string>;

constexpr const char* kUpload =
    "<InitiateMultipartUploadResult><UploadId>id/1+</UploadId></InitiateMultipartUploadResult>";

std::unique_ptr<Volume> attach_to(int port, Settings more = {}) {
  more.merge(Settings{{"endpoint", "http://127.0.0.1:" + std::to_string(port)},
                      {"access_key", "AKs3cr3t"},
                      {"secret_key", "s3cr3t-key"},
                      {"backoff_ms", "2"},
                      {"retries", "2"},
                      {"multipart_bytes", "5242880"},
                      {"part_bytes", "5242880"}});
  return attach({.name = "test", .kind = "s3", .location = "bucket/p", .options = more}).value();
}

bool is_part(const ScriptedStore::Seen& request) {
  return request.line.find("partNumber=") != std::string::npos;
}

TEST(S3FaultsTest, PassingErrorsAreRetried) {
  for (const std::string status : {"500 E", "502 E", "503 SlowDown", "504 E", "429 E", "408 E", "409 E"}) {
    const ScriptedStore store([&](std::size_t at, const ScriptedStore::Seen&) {
      return at < 2 ? ScriptedStore::answer(status) : ScriptedStore::answer("200 OK");
    });
    const Result<void> result = put_one(*attach_to(store.port()), "k", make_bytes(100'000, 1));
    EXPECT_TRUE(result) << status << ": " << result.error();
    ASSERT_EQ(store.seen().size(), 3U) << status;
    for (const ScriptedStore::Seen& request : store.seen()) {
      EXPECT_EQ(request.line, "PUT /bucket/p/k HTTP/1.1");
      EXPECT_EQ(request.body.size(), 100'000U) << "every attempt sends the whole";
      EXPECT_THAT(request.head, HasSubstr("If-None-Match: *"));
      EXPECT_THAT(request.head, Not(HasSubstr("s3cr3t-key")));
    }
  }
}

TEST(S3FaultsTest, RetriesAreBounded) {
  const ScriptedStore store(
      [](std::size_t, const ScriptedStore::Seen&) { return ScriptedStore::error("503 E", "SlowDown"); });
  const Result<Bytes> result = get_one(*attach_to(store.port()), "k", 10);
  ASSERT_EQ(code_of(result), ErrorCode::kUnavailable);
  EXPECT_THAT(result.error().message(), HasSubstr("503 SlowDown in 3 attempts"));
  EXPECT_EQ(store.seen().size(), 3U);
}

TEST(S3FaultsTest, LastingErrorsAreNotRetried) {
  const std::vector<std::pair<std::string, ErrorCode>> cases{
      {ScriptedStore::error("403 E", "AccessDenied"), ErrorCode::kIo},
      {ScriptedStore::error("400 E", "InvalidRequest"), ErrorCode::kIo},
      {ScriptedStore::error("501 E", "NotImplemented"), ErrorCode::kIo},
      {ScriptedStore::error("507 E", "InsufficientStorage"), ErrorCode::kCapacity},
      {ScriptedStore::error("400 E", "EntityTooLarge"), ErrorCode::kCapacity},
      {ScriptedStore::error("403 E", "QuotaExceeded"), ErrorCode::kCapacity},
      {ScriptedStore::error("404 E", "NoSuchBucket"), ErrorCode::kIo},
      {ScriptedStore::answer("301 E", "", "Location: http://elsewhere/\r\n"), ErrorCode::kIo},
  };
  for (const auto& [answer, code] : cases) {
    const ScriptedStore store([&](std::size_t, const ScriptedStore::Seen&) { return answer; });
    const Result<void> result = put_one(*attach_to(store.port()), "k", make_bytes(10, 1));
    EXPECT_EQ(code_of(result), code) << answer;
    EXPECT_EQ(store.seen().size(), 1U) << answer;
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message(), Not(HasSubstr("s3cr3t")));
  }
}

TEST(S3FaultsTest, AConnectionThatBreaksIsRetried) {
  const Bytes bytes = make_bytes(50'000, 1);
  const std::string body(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const ScriptedStore store([&](std::size_t at, const ScriptedStore::Seen&) -> std::string {
    if (at == 0) return "";  // closed without a word
    if (at == 1)
      return "HTTP/1.1 200 OK\r\nX-Cut: 1\r\nContent-Length: 50000\r\n\r\n" + body.substr(0, 20'000);
    return ScriptedStore::answer("200 OK", body);
  });
  const Result<Bytes> got = get_one(*attach_to(store.port()), "k", bytes.size());
  ASSERT_TRUE(got) << got.error();
  EXPECT_TRUE(*got == bytes);
  EXPECT_EQ(store.seen().size(), 3U);
}

TEST(S3FaultsTest, AnObjectThatComesInPiecesOfNoSaidSizeOverflowsNothing) {
  const ScriptedStore store([](std::size_t, const ScriptedStore::Seen&) -> std::string {
    std::string chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (int i = 0; i < 100; ++i) chunks += "400\r\n" + std::string(1024, 'x') + "\r\n";
    return chunks + "0\r\n\r\n";
  });
  const std::unique_ptr<Volume> volume = attach_to(store.port());
  EXPECT_EQ(code_of(get_one(*volume, "k", 1000)), ErrorCode::kCorruption);
  EXPECT_EQ(code_of(get_one(*volume, "k", 200'000)), ErrorCode::kCorruption);
  EXPECT_TRUE(get_one(*volume, "k", 102'400));
}

TEST(S3FaultsTest, ConnectionsStayOpen) {
  const ScriptedStore store(
      [](std::size_t, const ScriptedStore::Seen&) { return ScriptedStore::answer("404 Not Found"); });
  const std::unique_ptr<Volume> volume = attach_to(store.port(), {{"requests", "4"}});
  Reads reads;
  for (int i = 0; i < 100; ++i) reads.add("k" + std::to_string(i), 10);
  for (int round = 0; round < 3; ++round)
    for (const Result<void>& result : volume->get(reads.objects()))
      EXPECT_EQ(code_of(result), ErrorCode::kNotFound);
  EXPECT_EQ(store.seen().size(), 300U);
  EXPECT_LE(store.connections(), 4);
}

TEST(S3FaultsTest, ASilentStoreIsGivenUpAtTheDeadlineOfOneObject) {
  const SilentServer silent;
  const std::unique_ptr<Volume> volume =
      attach_to(silent.port(), {{"deadline_ms", "400"}, {"requests", "4"}});
  Reads reads;
  for (int i = 0; i < 2000; ++i) reads.add("k" + std::to_string(i), 10);
  const auto start = steady_clock::now();
  for (const Result<void>& result : volume->get(reads.objects()))
    EXPECT_EQ(code_of(result), ErrorCode::kUnavailable);
  const auto took = steady_clock::now() - start;
  EXPECT_GE(took, milliseconds(350));
  EXPECT_LT(took, seconds(100)) << "each object by itself would take 200 s";
}

TEST(S3FaultsTest, AStallEndsAnAttempt) {
  const SilentServer silent;
  const std::unique_ptr<Volume> volume =
      attach_to(silent.port(), {{"stall_seconds", "1"}, {"retries", "0"}, {"deadline_ms", "300000"}});
  const auto start = steady_clock::now();
  EXPECT_EQ(code_of(put_one(*volume, "k", make_bytes(10, 1))), ErrorCode::kUnavailable);
  EXPECT_LT(steady_clock::now() - start, seconds(100));
}

TEST(S3FaultsTest, NobodyListeningIsUnavailable) {
  const std::unique_ptr<Volume> volume = attach_to(free_port());
  Writes writes;
  for (int i = 0; i < 200; ++i) writes.add("k" + std::to_string(i), make_bytes(10, 1));
  writes.add("large", make_bytes(6 << 20, 1));
  const auto start = steady_clock::now();
  for (const Result<void>& result : volume->put(writes.objects())) {
    ASSERT_EQ(code_of(result), ErrorCode::kUnavailable);
    EXPECT_THAT(result.error().message(), Not(HasSubstr("s3cr3t")));
  }
  EXPECT_LT(steady_clock::now() - start, seconds(100)) << "a deadline is two minutes";
}

// Answers an upload in parts; `special` may answer first.
std::string multipart(const ScriptedStore::Seen& request, const std::string& special) {
  if (!special.empty()) return special;
  if (request.line.starts_with("HEAD")) return ScriptedStore::answer("404 Not Found");
  if (request.line.find("?uploads=") != std::string::npos) return ScriptedStore::answer("200 OK", kUpload);
  if (is_part(request)) return ScriptedStore::answer("200 OK", "", "ETag: \"e\"\r\n");
  if (request.line.starts_with("DELETE")) return ScriptedStore::answer("204 No Content");
  return ScriptedStore::answer("200 OK", "<CompleteMultipartUploadResult/>");
}

std::size_t count(const ScriptedStore& store, const std::string& start) {
  std::size_t found = 0;
  for (const ScriptedStore::Seen& request : store.seen()) found += request.line.starts_with(start);
  return found;
}

TEST(S3MultipartTest, AsksThenBeginsThenSendsPartsThenCompletes) {
  const ScriptedStore store(
      [](std::size_t, const ScriptedStore::Seen& request) { return multipart(request, ""); });
  const Bytes bytes = make_bytes((12 << 20) + 5, 1);
  const Result<void> put = put_one(*attach_to(store.port()), "k", bytes);
  ASSERT_TRUE(put) << put.error();
  const std::vector<ScriptedStore::Seen> seen = store.seen();
  ASSERT_EQ(seen.size(), 6U);
  EXPECT_THAT(seen[0].line, StartsWith("HEAD /bucket/p/k "));
  EXPECT_THAT(seen[1].line, StartsWith("POST /bucket/p/k?uploads= "));
  std::map<std::string, std::string> parts;
  for (std::size_t i = 2; i < 5; ++i) parts[seen[i].line] = seen[i].body;
  std::string joined;
  for (const auto& [line, body] : parts) {
    EXPECT_THAT(line, HasSubstr("&uploadId=id%2F1%2B "));
    joined += body;
  }
  EXPECT_EQ(joined.size(), bytes.size());
  EXPECT_EQ(std::memcmp(joined.data(), bytes.data(), std::min(joined.size(), bytes.size())), 0);
  EXPECT_THAT(seen[5].line, StartsWith("POST /bucket/p/k?uploadId=id%2F1%2B "));
  EXPECT_THAT(seen[5].head, HasSubstr("If-None-Match: *"));
  EXPECT_THAT(seen[5].body, HasSubstr("<PartNumber>3</PartNumber><ETag>&quot;e&quot;</ETag>"));
}

TEST(S3MultipartTest, AnObjectThatIsThereIsNotSent) {
  const ScriptedStore store(
      [](std::size_t, const ScriptedStore::Seen&) { return ScriptedStore::answer("200 OK"); });
  EXPECT_TRUE(put_one(*attach_to(store.port()), "k", make_bytes(6 << 20, 1)));
  EXPECT_EQ(store.seen().size(), 1U);
}

TEST(S3MultipartTest, AFailedPartAbortsTheUpload) {
  const ScriptedStore store([](std::size_t, const ScriptedStore::Seen& request) {
    const bool second = request.line.find("partNumber=2&") != std::string::npos;
    return multipart(request, second ? ScriptedStore::error("500 E", "InternalError") : "");
  });
  const Result<void> put =
      put_one(*attach_to(store.port(), {{"part_requests", "2"}}), "k", make_bytes(40 << 20, 1));
  ASSERT_EQ(code_of(put), ErrorCode::kUnavailable);
  EXPECT_EQ(count(store, "DELETE /bucket/p/k?uploadId=id%2F1%2B "), 1U);
  EXPECT_THAT(store.seen().back().line, StartsWith("DELETE"));
  EXPECT_EQ(count(store, "POST /bucket/p/k?uploadId"), 0U);
}

TEST(S3MultipartTest, AFullStoreIsCapacityAndAbortsTheUpload) {
  const ScriptedStore store([](std::size_t, const ScriptedStore::Seen& request) {
    return multipart(request, is_part(request) ? ScriptedStore::error("507 E", "InsufficientStorage") : "");
  });
  EXPECT_EQ(code_of(put_one(*attach_to(store.port()), "k", make_bytes(6 << 20, 1))), ErrorCode::kCapacity);
  EXPECT_EQ(count(store, "DELETE"), 1U);
}

TEST(S3MultipartTest, AnErrorInAnAnswerWith200IsAnError) {
  const ScriptedStore store([](std::size_t, const ScriptedStore::Seen& request) {
    const bool last = request.line.find("POST /bucket/p/k?uploadId") != std::string::npos;
    return multipart(request, last ? ScriptedStore::error("200 OK", "InternalError") : "");
  });
  EXPECT_EQ(code_of(put_one(*attach_to(store.port()), "k", make_bytes(6 << 20, 1))), ErrorCode::kUnavailable);
  EXPECT_EQ(count(store, "POST /bucket/p/k?uploadId"), 3U);
  EXPECT_EQ(count(store, "DELETE"), 1U);
}

TEST(S3MultipartTest, AnotherWriterWhoWasFirstIsNoError) {
  const ScriptedStore store([](std::size_t, const ScriptedStore::Seen& request) {
    const bool last = request.line.find("POST /bucket/p/k?uploadId") != std::string::npos;
    return multipart(request, last ? ScriptedStore::error("412 E", "PreconditionFailed") : "");
  });
  EXPECT_TRUE(put_one(*attach_to(store.port()), "k", make_bytes(6 << 20, 1)));
  EXPECT_EQ(count(store, "DELETE"), 1U);
}

TEST(S3MultipartTest, AnUploadWhoseLastAnswerWasLostIsLookedFor) {
  for (const bool there : {true, false}) {
    bool lost = false;
    const ScriptedStore store([&](std::size_t, const ScriptedStore::Seen& request) -> std::string {
      if (request.line.starts_with("HEAD") && lost)
        return there ? "HTTP/1.1 200 OK\r\nContent-Length: 6291456\r\n\r\n"
                     : ScriptedStore::answer("404 Not Found");
      if (request.line.find("POST /bucket/p/k?uploadId") == std::string::npos) return multipart(request, "");
      return std::exchange(lost, true) ? ScriptedStore::error("404 E", "NoSuchUpload") : "";
    });
    EXPECT_EQ(bool(put_one(*attach_to(store.port()), "k", make_bytes(6 << 20, 1))), there);
  }
}

// libcurl may have repeated the request by itself, and lost the first answer: how many attempts were made
// does not tell.
TEST(S3MultipartTest, AnUploadThatIsGoneIsLookedForAtTheFirstAttempt) {
  for (const bool there : {true, false}) {
    bool completed = false;
    const ScriptedStore store([&](std::size_t, const ScriptedStore::Seen& request) -> std::string {
      if (request.line.starts_with("HEAD") && completed)
        return there ? "HTTP/1.1 200 OK\r\nContent-Length: 6291456\r\n\r\n"
                     : ScriptedStore::answer("404 Not Found");
      if (request.line.find("POST /bucket/p/k?uploadId") == std::string::npos) return multipart(request, "");
      completed = true;
      return ScriptedStore::error("404 E", "NoSuchUpload");
    });
    EXPECT_EQ(bool(put_one(*attach_to(store.port()), "k", make_bytes(6 << 20, 1))), there);
    EXPECT_EQ(count(store, "POST /bucket/p/k?uploadId"), 1U);
  }
}

TEST(S3OptionsTest, AttachSaysWhatIsWrongAndNeverTheValue) {
  const std::vector<std::pair<std::string, Settings>> bad{
      {"", {}},
      {"b", {}},
      {"/prefix", {}},
      {"bucket/", {{"endpoint", "s3cr3t"}}},
      {"bucket/a//b", {}},
      {"bucket/../x", {}},
      {"bucket", {{"endpoint", "ftp://s3cr3t"}}},
      {"bucket", {{"endpoint", "https://user:s3cr3t@host"}}},
      {"bucket", {{"endpoint", "https://host/path-s3cr3t"}}},
      {"bucket", {{"access_key", "s3cr3t"}}},
      {"bucket", {{"secret_key", "s3cr3t"}}},
      {"bucket", {{"session_token", "s3cr3t"}}},
      {"bucket", {{"access_key", "a"}, {"secret_key", "b"}, {"session_token", "s3cr3t\r\nX: y"}}},
      {"bucket", {{"region", ""}}},
      {"bucket", {{"addressing", "s3cr3t"}}},
      {"bucket", {{"part_bytes", "1"}}},
      {"bucket", {{"secret", "s3cr3t"}}},
  };
  for (const auto& [location, options] : bad) {
    const auto attached = attach({.name = "test", .kind = "s3", .location = location, .options = options});
    ASSERT_EQ(code_of(attached), ErrorCode::kInvalidArgument) << location;
    EXPECT_THAT(attached.error().message(), Not(HasSubstr("s3cr3t")));
  }
  EXPECT_EQ(
      attach({.name = "v", .kind = "s3", .location = "bucket/a/b", .options = {{"region", "eu-west-1"}}})
          .value()
          ->describe(),
      "s3 https://s3.eu-west-1.amazonaws.com bucket/a/b");
}

TEST(S3OptionsTest, OneLineRegistersTheKind) {
  VolumeRegistry registry = VolumeRegistry::with_builtin();
  registry.add("s3", backend::s3::attach);
  EXPECT_TRUE(registry.attach({.name = "v", .kind = "s3", .location = "bucket"}));
}

}  // namespace
}  // namespace ashlar::backend::s3
