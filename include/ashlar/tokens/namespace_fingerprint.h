// NamespaceFingerprint: 128 bits that identify the cache of a block's bytes: model, dtype, layout, block
// size.
//
// It stands beside names, in registries, file headers and stream headers, and never enters a hash seed: equal
// tokens keep equal names in every namespace. Fields are encoded with their lengths, so no two different
// field lists share an encoding.
//
// Thread safety: immutable value.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"

namespace ashlar::tokens {

// The fields of a namespace. Two caches that differ in any field never share bytes.
struct NamespaceFields {
  std::string_view model;
  std::string_view dtype;
  std::string_view layout;
  std::uint32_t block_size = 0;
};

class NamespaceFingerprint {
 public:
  // All zero bits: a value to overwrite, not the fingerprint of any namespace.
  constexpr NamespaceFingerprint() = default;
  explicit NamespaceFingerprint(const NamespaceFields& fields) noexcept;

  static constexpr NamespaceFingerprint from_bits(std::uint64_t hi, std::uint64_t lo) noexcept {
    NamespaceFingerprint fingerprint;
    fingerprint.hi_ = hi;
    fingerprint.lo_ = lo;
    return fingerprint;
  }
  // Big-endian, as in file and stream headers.
  static NamespaceFingerprint from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept;
  std::array<std::uint8_t, 16> to_bytes() const noexcept;

  constexpr std::uint64_t hi() const noexcept { return hi_; }
  constexpr std::uint64_t lo() const noexcept { return lo_; }

  // 32 lower-case hex digits.
  std::string to_string() const;
  // Parses the output of to_string(). Errors: kInvalidArgument for anything else.
  static Result<NamespaceFingerprint> parse(std::string_view text);

  friend constexpr auto operator<=>(const NamespaceFingerprint&, const NamespaceFingerprint&) = default;

 private:
  std::uint64_t hi_ = 0;
  std::uint64_t lo_ = 0;
};

std::ostream& operator<<(std::ostream& out, const NamespaceFingerprint& fingerprint);

}  // namespace ashlar::tokens

template <>
struct std::hash<ashlar::tokens::NamespaceFingerprint> {
  std::size_t operator()(const ashlar::tokens::NamespaceFingerprint& fingerprint) const noexcept {
    return static_cast<std::size_t>(fingerprint.lo());
  }
};
