// LayoutConfig: the shape of a set of KV blocks, before anything is said about where the bytes lie.
//
// A block holds `page_size` tokens of every layer; per layer and token it has `outer_dim` vectors (2: K and
// V; 1: joint, as in MLA) of `inner_dim` = `num_heads` x `head_dim` elements. `opaque` says that what a
// kernel made of the inside of a (block, layer) is nobody else's business: such content is copied whole and
// never cut by heads.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>

#include "ashlar/base/result.h"
#include "ashlar/layout/dtype.h"

namespace ashlar::layout {

struct LayoutConfig {
  std::uint32_t num_blocks = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t outer_dim = 2;
  std::uint32_t page_size = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t inner_dim = 0;  // elements per token, layer and outer index
  Dtype dtype = Dtype::kBF16;
  bool opaque = false;
  // Powers of two. The base and the distance between blocks are multiples of the first (a sector, 256 bytes,
  // a huge page), the distance between layers is one of the second.
  std::uint64_t alignment = 1;
  std::uint64_t layer_alignment = 1;

  // Errors: kInvalidArgument with the field, its value and what is allowed.
  Result<void> validate() const;

  // Bytes of the elements, without what alignment adds. Requires: validate().
  std::uint64_t head_bytes() const noexcept { return std::uint64_t{head_dim} * width_of(dtype); }
  // Of one layer of one block, K or V.
  std::uint64_t outer_bytes() const noexcept { return head_bytes() * num_heads * page_size; }
  std::uint64_t layer_bytes() const noexcept { return outer_bytes() * outer_dim; }
  std::uint64_t block_bytes() const noexcept { return layer_bytes() * num_layers; }

  friend bool operator==(const LayoutConfig&, const LayoutConfig&) = default;
};

// Largest total size of a layout, alignment included; beyond it nothing is addressed.
inline constexpr std::uint64_t kMaxLayoutBytes = std::uint64_t{1} << 56;

}  // namespace ashlar::layout
