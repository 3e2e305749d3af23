// SipHash128: SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input
// PRF"), fed in pieces.
//
// The object is a small value: a state that has absorbed a common prefix can be copied and continued many
// times.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace ashlar::tokens {

static_assert(std::endian::native == std::endian::little,
              "hashes read tokens and integers as little-endian memory");

class SipHash128 {
 public:
  using Key = std::array<std::uint8_t, 16>;
  struct Digest {
    std::uint64_t hi = 0;  // bytes 8..15 of the digest, little-endian
    std::uint64_t lo = 0;  // bytes 0..7
    friend bool operator==(const Digest&, const Digest&) = default;
  };

  explicit SipHash128(const Key& key) noexcept {
    const std::uint64_t k0 = load(key.data());
    const std::uint64_t k1 = load(key.data() + 8);
    v0_ = k0 ^ 0x736f6d6570736575u;
    v1_ = k1 ^ 0x646f72616e646f6du ^ 0xee;
    v2_ = k0 ^ 0x6c7967656e657261u;
    v3_ = k1 ^ 0x7465646279746573u;
  }

  void update(const void* data, std::size_t size) noexcept {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    const std::size_t held = length_ % 8;
    length_ += size;
    if (held != 0) {
      std::size_t taken = 0;
      for (; taken < size && held + taken < 8; ++taken) {
        pending_ |= std::uint64_t{bytes[taken]} << (8 * (held + taken));
      }
      if (held + taken < 8) return;
      absorb(pending_);
      pending_ = 0;
      bytes += taken;
      size -= taken;
    }
    for (; size >= 8; bytes += 8, size -= 8) absorb(load(bytes));
    for (std::size_t i = 0; i < size; ++i) pending_ |= std::uint64_t{bytes[i]} << (8 * i);
  }
  // A 64-bit integer, little-endian.
  void update_u64(std::uint64_t value) noexcept { update(&value, sizeof(value)); }

  // The digest of the input so far; the object can continue absorbing.
  Digest digest() const noexcept {
    SipHash128 end = *this;
    end.absorb(pending_ | (length_ << 56));
    Digest digest;
    end.v2_ ^= 0xee;
    for (int i = 0; i < 4; ++i) end.round();
    digest.lo = end.v0_ ^ end.v1_ ^ end.v2_ ^ end.v3_;
    end.v1_ ^= 0xdd;
    for (int i = 0; i < 4; ++i) end.round();
    digest.hi = end.v0_ ^ end.v1_ ^ end.v2_ ^ end.v3_;
    return digest;
  }

 private:
  static std::uint64_t load(const std::uint8_t* bytes) noexcept {
    std::uint64_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  void absorb(std::uint64_t word) noexcept {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
  }
  void round() noexcept {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_;
  std::uint64_t v1_;
  std::uint64_t v2_;
  std::uint64_t v3_;
  std::uint64_t pending_ = 0;  // the last length_ % 8 bytes
  std::uint64_t length_ = 0;
};

}  // namespace ashlar::tokens
