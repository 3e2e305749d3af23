// BodyScanner: finds the end of a body in the bytes of a connection, and its payload between chunk headers.
//
// Bytes are given as they come, in any pieces; none is held back.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) per chunk, plus a step per byte of chunk headers; allocates nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

class BodyScanner {
 public:
  static BodyScanner sized(std::uint64_t bytes) noexcept {
    return {bytes == 0 ? State::kDone : State::kSized, bytes};
  }
  static BodyScanner chunked() noexcept { return {State::kSizeStart, 0}; }
  // Up to the end of the connection.
  static BodyScanner until_end() noexcept { return {State::kUntilEnd, 0}; }

  // Returns how many bytes at the front of `bytes` belong to the body, and calls payload(part) for its parts.
  template <class Payload>
  std::size_t scan(std::string_view bytes, Payload&& payload) {
    std::size_t at = 0;
    while (at < bytes.size() && !is_done() && !is_broken()) {
      if (state_ != State::kSized && state_ != State::kData && state_ != State::kUntilEnd) {
        step(bytes[at++]);
        continue;
      }
      std::size_t part = bytes.size() - at;
      if (state_ != State::kUntilEnd) {
        part = static_cast<std::size_t>(std::min<std::uint64_t>(part, left_));
        left_ -= part;
        if (left_ == 0) state_ = state_ == State::kSized ? State::kDone : State::kDataCr;
      }
      ASHLAR_DCHECK(part > 0, "a part of no bytes");
      payload(bytes.substr(at, part));
      at += part;
    }
    return at;
  }

  bool is_done() const noexcept { return state_ == State::kDone; }
  // The bytes are not a body with this framing.
  bool is_broken() const noexcept { return state_ == State::kBroken; }
  // Whether the connection may end here.
  bool may_end() const noexcept { return state_ == State::kDone || state_ == State::kUntilEnd; }
  bool is_until_end() const noexcept { return state_ == State::kUntilEnd; }

 private:
  enum class State : std::uint8_t {
    kSized,
    kUntilEnd,
    kSizeStart,  // first digit of a chunk's size
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,
    kTrailer,
    kTrailerLf,
    kEndLf,
    kDone,
    kBroken,
  };
  BodyScanner(State state, std::uint64_t left) noexcept : left_(left), state_(state) {}
  void step(char c) noexcept;

  std::uint64_t left_;
  std::uint32_t extra_ = 0;  // bytes of extensions, or of trailers: bounded
  State state_;
};

}  // namespace ashlar::backend::http
