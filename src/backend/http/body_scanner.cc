// Chunks of RFC 9112 7.1:
//
//   1A;extension=x CRLF  26 bytes CRLF  …  0 CRLF  trailers CRLF
#include "backend/http/body_scanner.h"

namespace ashlar::backend::http {

namespace {

constexpr std::uint32_t kMaxExtension = 4 << 10;  // of one chunk
constexpr std::uint32_t kMaxTrailers = 16 << 10;

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_line_byte(char c) noexcept {
  return static_cast<unsigned char>(c) >= 0x20 || c == '\t';
}

}  // namespace

void BodyScanner::step(char c) noexcept {
  const auto expect = [&](char wanted, State next) { state_ = c == wanted ? next : State::kBroken; };
  switch (state_) {
    case State::kSizeStart:
      left_ = 0;
      extra_ = 0;
      [[fallthrough]];
    case State::kSize:
      if (const int digit = hex_digit(c); digit >= 0) {
        left_ = left_ * 16 + static_cast<std::uint64_t>(digit);
        state_ = left_ >> 56 != 0 ? State::kBroken : State::kSize;
      } else if (state_ == State::kSizeStart) {
        state_ = State::kBroken;
      } else if (c == '\r') {
        state_ = State::kSizeLf;
      } else {
        state_ = c == ';' || c == ' ' || c == '\t' ? State::kExtension : State::kBroken;
      }
      break;
    case State::kExtension:
      if (c == '\r') {
        state_ = State::kSizeLf;
      } else if (!is_line_byte(c) || ++extra_ > kMaxExtension) {
        state_ = State::kBroken;
      }
      break;
    case State::kSizeLf:
      extra_ = 0;
      expect('\n', left_ == 0 ? State::kTrailerStart : State::kData);
      break;
    case State::kDataCr:
      expect('\r', State::kDataLf);
      break;
    case State::kDataLf:
      expect('\n', State::kSizeStart);
      break;
    case State::kTrailerStart:
      if (c == '\r') {
        state_ = State::kEndLf;
        break;
      }
      state_ = State::kTrailer;
      [[fallthrough]];
    case State::kTrailer:
      if (c == '\r') {
        state_ = State::kTrailerLf;
      } else if (!is_line_byte(c) || ++extra_ > kMaxTrailers) {
        state_ = State::kBroken;
      }
      break;
    case State::kTrailerLf:
      expect('\n', State::kTrailerStart);
      break;
    case State::kEndLf:
      expect('\n', State::kDone);
      break;
    case State::kSized:
    case State::kUntilEnd:
    case State::kData:
    case State::kDone:
    case State::kBroken:
      break;
  }
}

}  // namespace ashlar::backend::http
