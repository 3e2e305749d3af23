// DummyWorker: an engine that answers at once, in a process of its own, so that a proxy before it is what a
// client measures. One thread, epoll.
//
// Chats and completions get a JSON text of kAnswerBytes, or as streams kStreamEvents events and [DONE], each
// event in a write of its own. A request whose max_tokens is kSilentTokens gets one event and then silence.
// /tokenize makes a token of every four bytes of the text, and usage counts them so. /health and /v1/models
// are answered; the rest is not found.
#pragma once

#include <cstddef>
#include <cstdint>

#include "processes.h"

namespace ashlar::bench {

class DummyWorker {
 public:
  static constexpr std::size_t kAnswerBytes = 333;
  static constexpr std::size_t kStreamEvents = 16;
  static constexpr int kSilentTokens = 98'765;
  // Of a whole stream, without framing.
  static std::size_t stream_bytes(bool is_chat);

  static DummyWorker start();
  std::uint16_t port() const noexcept { return port_; }
  const Program& program() const noexcept { return program_; }

 private:
  Program program_;
  std::uint16_t port_ = 0;
};

}  // namespace ashlar::bench
