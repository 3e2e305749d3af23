// DummyWorker: an engine that answers at once, in a process of its own, so that a proxy before it is what a
// client measures. One thread, epoll.
//
// Chats and completions get a JSON text of kAnswerBytes, or as streams kStreamEvents events and [DONE], each
// event in a write of its own. A request whose max_tokens is kSilentTokens gets one event and then silence.
// /tokenize makes a token of every four bytes of a text, and usage counts them so; a message has one before
// it and one behind it. /health and /v1/models are answered; the rest is not found. Where it publishes
// events, the answer's 16 tokens are those of the text that it gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "processes.h"

namespace ashlar::bench {

class DummyWorker {
 public:
  static constexpr std::size_t kAnswerBytes = 384;
  static constexpr std::size_t kStreamEvents = 16;
  static constexpr int kSilentTokens = 98'765;
  // Of a whole stream, without framing.
  static std::size_t stream_bytes(bool is_chat);

  static constexpr std::size_t kReplyBytes = 64;  // of the text in an answer, all kReplyByte
  static constexpr char kReplyByte = 'x';

  static DummyWorker start(bool has_events = false);
  std::uint16_t port() const noexcept { return port_; }
  // As a worker of `ashlar serve` has them behind its URL; empty: it publishes none.
  const std::string& events() const noexcept { return events_; }
  const Program& program() const noexcept { return program_; }

 private:
  Program program_;
  std::uint16_t port_ = 0;
  std::string events_;
};

}  // namespace ashlar::bench
