// What a volume does whose server takes connections and never answers, or stops in the middle of an answer.
// No time is measured: the volume's own limits are hours, so a call that does not obey those of the caller
// never returns.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/tiers/volume.h"
#include "support/server.h"
#include "support/volume_objects.h"

namespace ashlar::tiers {

using AttachToPort = std::function<std::unique_ptr<Volume>(int port)>;

// The four calls, each with its name and the codes that it answers with.
struct LimitedCall {
  const char* name;
  std::function<std::vector<std::optional<ErrorCode>>(Volume&, const CallLimits&)> run;
};

inline std::vector<LimitedCall> limited_calls() {
  constexpr std::size_t kBytes = 3 << 20;  // more than sockets hold
  const auto codes = [](const auto& results) {
    std::vector<std::optional<ErrorCode>> out;
    for (const auto& result : results) out.push_back(code_of(result));
    return out;
  };
  return {{"put",
           [codes](Volume& volume, const CallLimits& limits) {
             Writes writes;
             for (int i = 0; i < 4; ++i) writes.add("k" + std::to_string(i), Bytes(kBytes));
             return codes(volume.put(writes.objects(), limits));
           }},
          {"get",
           [codes](Volume& volume, const CallLimits& limits) {
             Reads reads;
             for (int i = 0; i < 4; ++i) reads.add("k" + std::to_string(i), kBytes);
             auto got = codes(volume.get(reads.objects(), limits));
             for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(reads.is_guard_untouched(i));
             return got;
           }},
          {"contains",
           [codes](Volume& volume, const CallLimits& limits) {
             return codes(volume.contains(std::vector<std::string_view>{"a", "b"}, limits));
           }},
          {"remove", [codes](Volume& volume, const CallLimits& limits) {
             return codes(volume.remove(std::vector<std::string_view>{"a", "b"}, limits));
           }}};
}

// `words`: what the server says before it falls silent.
inline void expect_calls_end_by_their_limits(const AttachToPort& attach, const std::string& words = {}) {
  for (const LimitedCall& call : limited_calls()) {
    SCOPED_TRACE(call.name);
    {
      const BlackholeServer server(words);
      const std::unique_ptr<Volume> volume = attach(server.port());
      const auto codes = call.run(*volume, {.deadline = Clock::real().now() + std::chrono::milliseconds(50)});
      EXPECT_EQ(codes, std::vector<std::optional<ErrorCode>>(codes.size(), ErrorCode::kTimeout));
    }
    const BlackholeServer server(words);
    const std::unique_ptr<Volume> volume = attach(server.port());
    std::stop_source stop;
    std::thread canceller([&] {
      server.heard().wait(0);
      stop.request_stop();
    });
    const auto codes = call.run(*volume, {.stop = stop.get_token()});
    canceller.join();
    EXPECT_EQ(codes, std::vector<std::optional<ErrorCode>>(codes.size(), ErrorCode::kCancelled));
  }
}

// Nobody even accepts: the queue of the listener is full.
inline void expect_connecting_ends_by_the_limits(const AttachToPort& attach) {
  const SilentServer server(0);
  std::vector<TestSocket>
      queue;  // the listener's queue holds one, the next ones wait for an answer of the kernel
  for (int i = 0; i < 4; ++i) {
    queue.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(server.port());
    (void)connect(queue.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  for (const LimitedCall& call : limited_calls()) {
    const auto codes =
        call.run(*attach(server.port()), {.deadline = Clock::real().now() + std::chrono::milliseconds(50)});
    EXPECT_EQ(codes, std::vector<std::optional<ErrorCode>>(codes.size(), ErrorCode::kTimeout)) << call.name;
  }
}

}  // namespace ashlar::tiers
