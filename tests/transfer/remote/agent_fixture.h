// Agents over a FakeTransport, and what their tests say in one word.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/transfer/remote_agent.h"
#include "transfer/remote/fake_transport.h"

namespace ashlar::testing {

inline constexpr std::uint16_t kEcho = 20;

inline transfer::AgentOptions fake_options(std::string name, std::string secret = "a secret of tests") {
  transfer::AgentOptions options;
  options.name = std::move(name);
  options.secret = std::move(secret);
  options.transport = std::make_shared<FakeTransport>();
  // A busy machine is slow, not dead.
  options.silence = std::chrono::minutes(2);
  options.call_limit = std::chrono::minutes(2);
  return options;
}

inline std::shared_ptr<transfer::RemoteAgent> make_agent(transfer::AgentOptions options) {
  return transfer::RemoteAgent::create(std::move(options)).value();
}

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Answers with the request.
inline transfer::RemoteOffer serve_echo(transfer::RemoteAgent& agent) {
  return agent
      .serve(kEcho,
             [](const std::shared_ptr<transfer::RemotePeer>&,
                std::span<const std::byte> request) -> Result<std::vector<std::byte>> {
               return std::vector<std::byte>(request.begin(), request.end());
             })
      .value();
}

// Looks until it is so; the test's own time limit ends what never comes.
inline void await(const std::function<bool()>& so) {
  while (!so()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace ashlar::testing
