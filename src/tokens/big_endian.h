// 128 bits as 16 big-endian bytes, the form of names and fingerprints in files and on the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ashlar::tokens {

inline std::array<std::uint8_t, 16> to_big_endian(std::uint64_t hi, std::uint64_t lo) noexcept {
  std::array<std::uint8_t, 16> bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::uint8_t>(hi >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::uint8_t>(lo >> (56 - 8 * i));
  }
  return bytes;
}

inline std::uint64_t from_big_endian(std::span<const std::uint8_t, 8> bytes) noexcept {
  std::uint64_t value = 0;
  for (const std::uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

}  // namespace ashlar::tokens
