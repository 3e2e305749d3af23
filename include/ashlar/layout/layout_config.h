// LayoutConfig: the shape of a set of KV blocks; Layout adds where the bytes lie. Dtype: the type of an
// element.
//
// A block holds `block_size` tokens of every layer. Per layer and token it has `outer_dim` vectors (2: K and
// V; 1: joint, as in MLA) of `inner_dim` = `num_heads` x `head_dim` elements. `opaque` marks content whose
// order inside a (block, layer) only its kernel knows: it is copied whole and never cut by heads.
//
// Thread safety: plain values; thread-compatible.
// Complexity:    O(1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ashlar/base/result.h"

namespace ashlar::layout {

// Layouts match only if their types do; the physical layers use the width alone.
enum class Dtype : std::uint8_t { kU8, kF8E4M3, kF8E5M2, kF16, kBF16, kF32, kF64 };

inline constexpr std::size_t kDtypes = 7;
static_assert(static_cast<std::size_t>(Dtype::kF64) + 1 == kDtypes, "kF64 is the last type");

// False for a number that names no type, as it may come from a file or a peer.
constexpr bool is_known(Dtype dtype) noexcept {
  return static_cast<std::size_t>(dtype) < kDtypes;
}

// Bytes per element, a power of two. Requires: is_known().
constexpr std::uint32_t width_of(Dtype dtype) noexcept {
  constexpr std::array<std::uint32_t, kDtypes> kWidths = {1, 1, 1, 2, 2, 4, 8};
  return kWidths[static_cast<std::size_t>(dtype)];
}

constexpr std::string_view to_string(Dtype dtype) noexcept {
  constexpr std::array<std::string_view, kDtypes> kNames = {"u8",   "f8_e4m3", "f8_e5m2", "f16",
                                                            "bf16", "f32",     "f64"};
  return is_known(dtype) ? kNames[static_cast<std::size_t>(dtype)] : "unknown";
}

// Heads and layers are those that this process holds; see Shard for its part of the model.
struct LayoutConfig {
  std::uint32_t block_count = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t outer_dim = 2;
  std::uint32_t block_size = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t inner_dim = 0;  // elements per token, layer and outer index
  Dtype dtype = Dtype::kBF16;
  bool opaque = false;
  // Powers of two. The base and the block stride are multiples of the first (a sector, 256 bytes, a huge
  // page), the layer stride is a multiple of the second.
  std::uint64_t alignment = 1;
  std::uint64_t layer_alignment = 1;

  // Errors: kInvalidArgument with the field, its value and what is allowed.
  Result<void> validate() const;

  // Bytes of the elements, without padding. Requires: validate().
  std::uint64_t head_bytes() const noexcept { return std::uint64_t{head_dim} * width_of(dtype); }
  // K or V of one layer of one block.
  std::uint64_t outer_bytes() const noexcept { return head_bytes() * num_heads * block_size; }
  std::uint64_t layer_bytes() const noexcept { return outer_bytes() * outer_dim; }
  std::uint64_t block_bytes() const noexcept { return layer_bytes() * num_layers; }

  friend bool operator==(const LayoutConfig&, const LayoutConfig&) = default;
};

// Largest total size of a layout, padding included.
inline constexpr std::uint64_t kMaxLayoutBytes = std::uint64_t{1} << 56;

}  // namespace ashlar::layout
