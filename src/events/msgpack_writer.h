// MsgpackWriter: msgpack values in their shortest forms, appended to a buffer.
//
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ashlar::events {

class MsgpackWriter {
 public:
  explicit MsgpackWriter(std::vector<std::byte>& out) noexcept : out_(out) {}

  void nil() { put(0xC0); }
  void number(double value) { head(0xCB, std::bit_cast<std::uint64_t>(value), 8); }
  void unsigned_integer(std::uint64_t value) {
    if (value < 0x80) return put(static_cast<std::uint8_t>(value));
    const unsigned log = value <= 0xFF ? 0 : value <= 0xFFFF ? 1 : value <= 0xFFFFFFFF ? 2 : 3;
    head(static_cast<std::uint8_t>(0xCC + log), value, 1u << log);
  }
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0) return unsigned_integer(bits);
    if (value >= -32) return put(static_cast<std::uint8_t>(bits));
    const unsigned log = value >= INT8_MIN ? 0 : value >= INT16_MIN ? 1 : value >= INT32_MIN ? 2 : 3;
    head(static_cast<std::uint8_t>(0xD0 + log), bits, 1u << log);
  }
  void text(std::string_view value) {
    if (value.size() < 32) {
      put(static_cast<std::uint8_t>(0xA0 | value.size()));
    } else {
      sized(0xD9, value.size());
    }
    raw(std::as_bytes(std::span(value)));
  }
  void bytes(std::span<const std::byte> value) {
    sized(0xC4, value.size());
    raw(value);
  }
  void array(std::size_t count) { counted(0x90, 0xDC, count); }
  void map(std::size_t count) { counted(0x80, 0xDE, count); }
  // A value already encoded as msgpack.
  void raw(std::span<const std::byte> value) { out_.insert(out_.end(), value.begin(), value.end()); }

 private:
  void put(std::uint8_t byte) { out_.push_back(static_cast<std::byte>(byte)); }
  void head(std::uint8_t first, std::uint64_t value, unsigned width) {
    std::byte code[9] = {static_cast<std::byte>(first)};
    for (unsigned i = 0; i < width; ++i)
      code[1 + i] = static_cast<std::byte>((value >> (8 * (width - 1 - i))) & 0xFF);
    raw(std::span(code).first(1 + width));
  }
  void sized(std::uint8_t first, std::size_t size) {
    const unsigned log = size <= 0xFF ? 0 : size <= 0xFFFF ? 1 : 2;
    head(static_cast<std::uint8_t>(first + log), size, 1u << log);
  }
  void counted(std::uint8_t fixed, std::uint8_t wide, std::size_t count) {
    if (count < 16) return put(static_cast<std::uint8_t>(fixed | count));
    if (count <= 0xFFFF) return head(wide, count, 2);
    head(static_cast<std::uint8_t>(wide + 1), count, 4);
  }

  std::vector<std::byte>& out_;
};

}  // namespace ashlar::events
