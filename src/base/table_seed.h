// Secrets for hash tables, and hashes that use them. With untrusted keys, a table without a secret can be
// made slow on purpose by keys that all fall into one bucket. This is no cipher: an attacker who can time
// single calls may learn a secret over time.
//
// Two hashes. seeded_hash() takes one word as its seed, and each table draws its own (draw_seed()). Its first
// multiplication is secret, the second breaks up the remaining pattern of regular keys; so use the upper
// bits.
//
// TableSeed is for tables that use low bits too. A key is combined with a secret and multiplied by another to
// 128 bits, whose halves are folded; for any two keys, the low bits of the results collide for about one
// secret in as many as there are values. A second multiplication breaks up the pattern that regular keys,
// such as counters, leave. So keys chosen without knowing the secret spread like random ones.
//
// Thread safety: thread-safe; a TableSeed is immutable.
// Complexity:    a hash of one word is two multiplications. Nothing allocates.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "ashlar/base/random.h"

namespace ashlar {

// A number that callers cannot guess.
std::uint64_t random_word() noexcept;
// The seed of a table: different each time.
std::uint64_t draw_seed() noexcept;

// Use the upper bits.
constexpr std::uint64_t seeded_hash(std::uint64_t x, std::uint64_t seed) noexcept {
  const std::uint64_t secret = (x ^ std::rotl(seed, 32)) * (seed | 1);
  return (secret ^ secret >> 32) * 0x9E37'79B9'7F4A'7C15u;
}
// Hash of two words, each of which may be chosen to fit the other. Use the upper bits.
constexpr std::uint64_t seeded_hash(std::uint64_t x, std::uint64_t y, std::uint64_t seed) noexcept {
  const std::uint64_t other = std::rotl(seed, 32) * 0xD6E8'FEB8'6659'FD93u | 1;
  const std::uint64_t secret = (x ^ std::rotl(seed, 17)) * (seed | 1) + (y ^ std::rotl(seed, 41)) * other;
  return (secret ^ secret >> 32) * 0x9E37'79B9'7F4A'7C15u;
}

class TableSeed {
 public:
  explicit TableSeed(std::uint64_t seed) noexcept {
    Random random(seed);
    mask_ = random.next();
    factor_ = random.next() | 1;
  }
  // The given seed; by default a number secret to this process.
  static TableSeed of(const std::optional<std::uint64_t>& seed) noexcept {
    return TableSeed(seed ? *seed : process_seed());
  }

  std::uint64_t hash(std::uint64_t key) const noexcept { return mix(key ^ mask_, factor_); }
  // Hash of a pair. The second key goes into the factor, which stays odd, so it cannot cancel the first one.
  std::uint64_t hash(std::uint64_t key, std::uint32_t second) const noexcept {
    return mix(key ^ mask_, factor_ ^ std::uint64_t{second} * 0xD6E8FEB86659FD92u);
  }

 private:
  static std::uint64_t mix(std::uint64_t left, std::uint64_t right) noexcept {
    const std::uint64_t folded = fold(left, right) * 0x9E3779B97F4A7C15u;
    return folded ^ folded >> 32;
  }
  static std::uint64_t fold(std::uint64_t left, std::uint64_t right) noexcept {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{left} * right;
    return static_cast<std::uint64_t>(product >> 64) ^ std::rotl(static_cast<std::uint64_t>(product), 32);
  }
  static std::uint64_t process_seed() noexcept;

  std::uint64_t mask_ = 0;
  std::uint64_t factor_ = 1;  // odd
};

}  // namespace ashlar
