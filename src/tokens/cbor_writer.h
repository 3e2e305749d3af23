// CborWriter: canonical CBOR (RFC 8949, shortest forms) of nested arrays. Has the shape of PickleWriter.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ashlar::tokens {

class CborWriter {
 public:
  void none() { out_.push_back(0xF6); }
  void integer(std::int64_t value) {
    if (value >= 0) return head(0x00, static_cast<std::uint64_t>(value));
    head(0x20, static_cast<std::uint64_t>(-(value + 1)));
  }
  void text(std::string_view utf8) {
    head(0x60, utf8.size());
    out_.insert(out_.end(), utf8.begin(), utf8.end());
  }
  void bytes(std::span<const std::uint8_t> data) {
    head(0x40, data.size());
    out_.insert(out_.end(), data.begin(), data.end());
  }
  void begin_tuple(std::size_t size) { head(0x80, size); }
  void end_tuple(std::size_t) {}
  const std::vector<std::uint8_t>& finish() { return out_; }

 private:
  void head(std::uint8_t major, std::uint64_t value) {
    if (value < 24) return out_.push_back(static_cast<std::uint8_t>(major | value));
    const unsigned log = value <= 0xFF ? 0 : value <= 0xFFFF ? 1 : value <= 0xFFFFFFFF ? 2 : 3;
    out_.push_back(static_cast<std::uint8_t>(major | (24 + log)));
    for (unsigned i = 1u << log; i-- > 0;) out_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }

  std::vector<std::uint8_t> out_;
};

}  // namespace ashlar::tokens
