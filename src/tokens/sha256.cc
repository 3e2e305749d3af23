// The compression function as in FIPS 180-4, with a message schedule of 16 words updated in place.
#include "tokens/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ashlar::tokens {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes; kStart: of the square roots of
// the first 8.
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr std::array<std::uint32_t, 8> kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t load(const std::uint8_t* from) noexcept {
  return std::uint32_t{from[0]} << 24 | std::uint32_t{from[1]} << 16 | std::uint32_t{from[2]} << 8 | from[3];
}

}  // namespace

Sha256::Sha256() noexcept : state_(kStart) {}

void Sha256::compress(const std::uint8_t* block) noexcept {
  std::array<std::uint32_t, 16> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = load(block + 4 * i);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    std::uint32_t& word = w[i % 16];
    if (i >= 16) {
      const std::uint32_t x = w[(i + 1) % 16];
      const std::uint32_t y = w[(i + 14) % 16];
      word += (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) + w[(i + 9) % 16] +
              (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
    }
    const std::uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + (g ^ (e & (f ^ g))) + kRound[i] + word;
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) | (c & (a | b)));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> out = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += out[i];
}

Sha256& Sha256::update(std::span<const std::uint8_t> bytes) noexcept {
  const std::size_t kept = length_ % 64;
  length_ += bytes.size();
  if (kept != 0) {
    const std::size_t taken = std::min(bytes.size(), 64 - kept);
    std::copy_n(bytes.begin(), taken, pending_.begin() + static_cast<std::ptrdiff_t>(kept));
    bytes = bytes.subspan(taken);
    if (kept + taken < 64) return *this;
    compress(pending_.data());
  }
  for (; bytes.size() >= 64; bytes = bytes.subspan(64)) compress(bytes.data());
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
  return *this;
}

Sha256::Digest Sha256::finish() noexcept {
  static_assert(sizeof(state_) == kSize, "the digest is the state, word by word");
  const std::uint64_t bits = length_ * 8;
  std::array<std::uint8_t, 72> tail = {0x80};
  const std::size_t zeros = (55 - length_ % 64 + 64) % 64;
  for (std::size_t i = 0; i < 8; ++i) tail[1 + zeros + i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
  update(std::span(tail).first(9 + zeros));
  Digest digest;
  for (std::size_t i = 0; i < kSize; ++i)
    digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace ashlar::tokens
