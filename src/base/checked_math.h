// Arithmetic that reports overflow, for untrusted sizes.
//
// Thread safety: immutable values.
#pragma once

#include <cstdint>

namespace ashlar {

// False, and *out unspecified, when the result does not fit.
constexpr bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t* out) noexcept {
  return !__builtin_mul_overflow(a, b, out);
}
constexpr bool add(std::uint64_t a, std::uint64_t b, std::uint64_t* out) noexcept {
  return !__builtin_add_overflow(a, b, out);
}
// The next multiple of a power of two.
constexpr bool align_up(std::uint64_t value, std::uint64_t alignment, std::uint64_t* out) noexcept {
  if (__builtin_add_overflow(value, alignment - 1, out)) return false;
  *out &= ~(alignment - 1);
  return true;
}

}  // namespace ashlar
