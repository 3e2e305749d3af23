// S3 volumes and stores that never answer: calls end by the limits of their callers.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "ashlar/backend/s3/s3_volume.h"
#include "backend/s3/scripted_store.h"
#include "support/silent_volume.h"
#include "tiers/volume/silent_volume_scenario.h"

namespace ashlar::backend::s3 {
namespace {

using namespace tiers;  // NOLINT(google-build-using-namespace): the suite's names

VolumeDescriptor patient(const std::string& endpoint) {
  return {.name = "v",
          .kind = "s3",
          .location = "bucket/p",
          .options = {{"endpoint", endpoint},
                      {"access_key", "key"},
                      {"secret_key", "secret"},
                      {"connect_timeout_ms", "36000000"},
                      {"stall_seconds", "36000"},
                      {"deadline_ms", "36000000"},
                      {"multipart_bytes", "5242880"},
                      {"part_bytes", "5242880"}}};
}
std::unique_ptr<Volume> attach_patiently(int port) {
  return attach(patient("http://127.0.0.1:" + std::to_string(port))).value();
}
std::unique_ptr<Volume> attach_over_tls(int port) {
  VolumeDescriptor descriptor = patient("https://127.0.0.1:" + std::to_string(port));
  descriptor.options["verify_tls"] = "false";  // else every connection reads the system's certificates
  return attach(descriptor).value();
}

TEST(S3LimitsTest, CallsOfASilentStoreEndByTheirLimits) {
  expect_calls_end_by_their_limits(attach_patiently);
  expect_connecting_ends_by_the_limits(attach_patiently);
}

TEST(S3LimitsTest, ASilentHandshakeEndsByTheLimits) {
  expect_calls_end_by_their_limits(attach_over_tls);
}

TEST(S3LimitsTest, CallsOfAStoreThatStopsInTheMiddleEndByTheirLimits) {
  expect_calls_end_by_their_limits(attach_patiently, "HTTP/1.1 200 OK\r\nContent-Le");
}

// The upload was begun, and its parts are not answered.
TEST(S3LimitsTest, AnUploadInPartsEndsByItsLimits) {
  std::atomic<std::size_t> parts{0};
  const ScriptedStore store([&](std::size_t, const ScriptedStore::Seen& request) -> std::string {
    if (request.line.starts_with("HEAD")) return ScriptedStore::answer("404 Not Found");
    if (request.line.find("?uploads=") != std::string::npos)
      return ScriptedStore::answer("200 OK", "<UploadId>u</UploadId>");
    ++parts;
    return "HTTP/1.1 100 Continue\r\n\r\n";  // and no more
  });
  const std::unique_ptr<Volume> volume = attach_patiently(store.port());
  Writes writes;
  writes.add("k", make_bytes(12 << 20, 1));
  std::stop_source stop;
  std::thread canceller([&] {
    while (parts == 0) std::this_thread::yield();
    stop.request_stop();
  });
  EXPECT_EQ(code_of(volume->put(writes.objects(), {.stop = stop.get_token()}).at(0)), ErrorCode::kCancelled);
  canceller.join();
}

// A connection that was cut is not used for the next call.
TEST(S3LimitsTest, AVolumeGoesOnAfterACallThatWasStopped) {
  std::atomic<bool> answers{false};
  std::atomic<std::size_t> asked{0};
  const ScriptedStore store([&](std::size_t, const ScriptedStore::Seen&) -> std::string {
    ++asked;
    return answers ? ScriptedStore::answer("404 Not Found") : "HTTP/1.1 100 Continue\r\n\r\n";
  });
  const std::unique_ptr<Volume> volume = attach_patiently(store.port());
  std::stop_source stop;
  std::thread canceller([&] {
    while (asked == 0) std::this_thread::yield();
    stop.request_stop();
  });
  const std::string_view key = "k";
  EXPECT_EQ(code_of(volume->contains(std::span(&key, 1), {.stop = stop.get_token()}).at(0)),
            ErrorCode::kCancelled);
  canceller.join();
  answers = true;
  EXPECT_FALSE(contains_one(*volume, key).value());
}

TEST(S3LimitsTest, NobodyWaitsForASilentStore) {
  const BlackholeServer server;
  expect_nobody_waits_for_a_silent_volume(
      {.options =
           [&] {
             VolumeRegistry kinds;
             kinds.add("s3", attach);
             return VolumeTier::options({patient("http://127.0.0.1:" + std::to_string(server.port()))},
                                        std::move(kinds));
           },
       .calls = server.heard()});
}

}  // namespace
}  // namespace ashlar::backend::s3
