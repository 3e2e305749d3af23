// Dtype: what an element of the cache is. The physical layers need its width; two layouts agree only if the
// types do.
//
// Thread safety: immutable values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar::layout {

enum class Dtype : std::uint8_t { kU8, kF8E4M3, kF8E5M2, kF16, kBF16, kF32, kF64 };

inline constexpr std::size_t kDtypes = 7;

// False for numbers that name no type; those come from outside.
constexpr bool is_known(Dtype dtype) noexcept {
  return static_cast<std::size_t>(dtype) < kDtypes;
}

// Bytes per element. Requires: is_known().
constexpr std::uint32_t width_of(Dtype dtype) noexcept {
  constexpr std::array<std::uint32_t, kDtypes> kWidths = {1, 1, 1, 2, 2, 4, 8};
  return kWidths[static_cast<std::size_t>(dtype)];
}

constexpr std::string_view to_string(Dtype dtype) noexcept {
  constexpr std::array<std::string_view, kDtypes> kNames = {"u8",   "f8_e4m3", "f8_e5m2", "f16",
                                                            "bf16", "f32",     "f64"};
  return is_known(dtype) ? kNames[static_cast<std::size_t>(dtype)] : "unknown";
}

}  // namespace ashlar::layout
