// Parses the frames of messages, for both ends of both sockets (docs/zmq.md).
//
// `count` is the number of frames received, `frames` has the first of them.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace ashlar::backend::zmq {

using FrameBytes = std::span<const std::byte>;

// Big-endian, of any length; values beyond 64 bits saturate.
std::uint64_t read_number(FrameBytes bytes) noexcept;

// The number of a live message: topic | number | payload. nullopt if the message is malformed.
std::optional<std::uint64_t> live_number(std::span<const FrameBytes> frames, std::size_t count) noexcept;

// A reply of the replay socket, without its identity: empty | topic | number | payload.
struct ReplyHead {
  std::uint64_t number = 0;
  bool is_end = false;
};
std::optional<ReplyHead> reply_head(std::span<const FrameBytes> frames, std::size_t count) noexcept;

// The number that a request asks for: identity | empty | number.
std::optional<std::uint64_t> requested_number(std::span<const FrameBytes> frames, std::size_t count) noexcept;

}  // namespace ashlar::backend::zmq
