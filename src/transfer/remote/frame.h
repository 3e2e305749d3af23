// LinkFrame: a message on a control connection after the handshake. FrameSealer and FrameOpener: one
// direction of a connection, as its sender and its receiver see it.
//
// docs/remote.md ("Frames") has the bytes. Every frame has the next number and, where there is a secret, a
// tag over everything: a frame that is repeated, missing, reordered or changed is refused, and the connection
// with it.
//
// Thread safety: confined to the agent's IO thread.
// Complexity:    linear in the bytes; the opener keeps at most one incomplete frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "transfer/remote/mac_key.h"

namespace ashlar::transfer {

enum class FrameKind : std::uint8_t {
  kRequest = 1,
  kAnswer = 2,
  kError = 3,   // answers a request: code and sentence
  kNotify = 4,  // a request without an answer
  kPing = 5,
  kPong = 6,
  kReady = 7,  // the acceptor serves this connection
  kBye = 8,    // the last frame: code and sentence
};

struct LinkFrame {
  FrameKind kind = FrameKind::kPing;
  std::uint16_t method = 0;
  std::uint64_t id = 0;  // of the request
  std::vector<std::byte> body = {};

  static constexpr std::size_t kHeadBytes = 24;
  static constexpr std::size_t kTagBytes = 16;

  // An error as a body, and back. The sentence is cut to 1,024 bytes and made printable.
  static std::vector<std::byte> error_body(const Error& error);
  static Error error_of(std::span<const std::byte> body);
};

class FrameSealer {
 public:
  explicit FrameSealer(std::optional<MacKey> key) noexcept : key_(std::move(key)) {}
  // Appends the bytes of the next frame.
  void seal(const LinkFrame& frame, std::vector<std::byte>* out);

 private:
  std::optional<MacKey> key_;
  std::uint64_t next_ = 0;
};

class FrameOpener {
 public:
  FrameOpener(std::optional<MacKey> key, std::uint32_t max_body) noexcept
      : key_(std::move(key)), max_body_(max_body) {}
  void feed(std::span<const std::byte> bytes);
  // The next complete frame, if there is one. Errors: kCorruption: not the next frame of this connection, or
  // longer than allowed; nothing after it is read.
  Result<std::optional<LinkFrame>> next();

 private:
  std::optional<MacKey> key_;
  std::uint32_t max_body_;
  std::uint64_t next_ = 0;
  std::vector<std::byte> bytes_;
  std::size_t taken_ = 0;
};

}  // namespace ashlar::transfer
