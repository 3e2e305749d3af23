// Sha256: SHA-256 of FIPS 180-4, for the block names of engines.
//
// Thread safety: thread-compatible. Allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ashlar::tokens {

class Sha256 {
 public:
  static constexpr std::size_t kSize = 32;
  using Digest = std::array<std::uint8_t, kSize>;

  Sha256() noexcept;
  Sha256& update(std::span<const std::uint8_t> bytes) noexcept;
  // The digest of all bytes so far. Consumes the object.
  Digest finish() noexcept;

  static Digest of(std::span<const std::uint8_t> bytes) noexcept { return Sha256().update(bytes).finish(); }

 private:
  void compress(const std::uint8_t* block) noexcept;

  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, 64> pending_;
  std::uint64_t length_ = 0;  // bytes
};

}  // namespace ashlar::tokens
