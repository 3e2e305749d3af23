// Seeded hashes for the tables of the index layer.
//
// Names, local hashes and worker ids come from outside. A table that hashed them by a rule that is known to all could be
// filled with keys of one place. So each table draws a seed of its own from a secret of the process. The first of two
// multiplications is secret, the second spreads what is left of regular keys; so the upper bits are the good ones.
//
// Thread safety: thread-safe.
#pragma once

#include <bit>
#include <cstdint>

namespace ashlar::index::detail {

// Spreads 64 bits over all 64: every bit of the input changes about half of them. A bijection, known to all.
constexpr std::uint64_t spread_bits(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9u;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EBu;
  return x ^ (x >> 31);
}

// A number that no caller can guess.
std::uint64_t random_word() noexcept;
// The seed of a table: another one each time.
std::uint64_t draw_seed() noexcept;

// Use the upper bits.
constexpr std::uint64_t seeded_hash(std::uint64_t x, std::uint64_t seed) noexcept {
  const std::uint64_t secret = (x ^ std::rotl(seed, 32)) * (seed | 1);
  return (secret ^ secret >> 32) * 0x9E37'79B9'7F4A'7C15u;
}
// Of two words, each of which may be chosen to fit the other. Use the upper bits.
constexpr std::uint64_t seeded_hash(std::uint64_t x, std::uint64_t y, std::uint64_t seed) noexcept {
  const std::uint64_t other = std::rotl(seed, 32) * 0xD6E8'FEB8'6659'FD93u | 1;
  const std::uint64_t secret = (x ^ std::rotl(seed, 17)) * (seed | 1) + (y ^ std::rotl(seed, 41)) * other;
  return (secret ^ secret >> 32) * 0x9E37'79B9'7F4A'7C15u;
}

}  // namespace ashlar::index::detail
