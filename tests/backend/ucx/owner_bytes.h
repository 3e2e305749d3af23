// The bytes that tests and the process they talk to agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ashlar::backend::ucx {

inline std::byte byte_at(std::uint64_t seed, std::uint64_t place) {
  std::uint64_t mixed = (seed + 1) * 0x9E3779B97F4A7C15ull + place / 8 * 0xBF58476D1CE4E5B9ull;
  mixed ^= mixed >> 29;
  return static_cast<std::byte>(mixed >> (place % 8 * 8));
}

inline void fill_bytes(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(seed, i);
}

inline std::uint64_t count_other_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::uint64_t other = 0;
  for (std::uint64_t i = 0; i < bytes.size(); ++i) other += bytes[i] != byte_at(seed, i) ? 1 : 0;
  return other;
}

}  // namespace ashlar::backend::ucx
