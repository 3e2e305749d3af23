// Shard: the layers and heads of a model that a layout holds, and the rank, when ranks divide the model.
//
// Tensor parallelism divides heads: tensor_rank() gives rank r of n an equal range of them. With more ranks
// than heads, several ranks hold the same head (KV-head replication; with one head, as in MLA, all of them
// do). Pipeline parallelism divides layers, in any way. Where both divide, the caller numbers the ranks. A
// layout without a shard holds everything.
//
// Blocks of two ranks have the same hashes. Their shards keep them apart in the keys of objects, in files and
// in checksums, even where two ranks hold the same heads.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout_config.h"

namespace ashlar::layout {

// [first, first + count).
struct Range {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  constexpr std::uint64_t end() const noexcept { return std::uint64_t{first} + count; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The intersection; empty when the ranges are disjoint.
constexpr Range intersect(const Range& a, const Range& b) noexcept {
  const std::uint64_t first = a.first > b.first ? a.first : b.first;
  const std::uint64_t end = a.end() < b.end() ? a.end() : b.end();
  return first < end ? Range{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)}
                     : Range{};
}

// A rectangle of (layer, head), with the rank that holds it. Where a shard is optional, a default one stands
// for the undivided model: whole() makes it explicit.
struct Shard {
  // Counted over the whole model.
  Range layers = {};  // of the model
  Range heads = {};
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;

  // All layers and heads of the config.
  static Shard whole(const LayoutConfig& config) noexcept {
    return {{0, config.num_layers}, {0, config.num_heads}};
  }
  // Errors: kInvalidArgument: `rank` is not below `ranks`.
  Result<void> validate() const;
  // "rank 1 of 2 (layers 0 to 31, heads 4 to 7)".
  std::string to_string() const;
  // Errors: kInvalidArgument: `rank` is not below `ranks`, or the heads cannot be shared evenly.
  static Result<Shard> tensor_rank(std::uint32_t rank, std::uint32_t ranks, std::uint32_t total_heads,
                                   Range layers);
  // All `ranks` of them, in order. Errors: as tensor_rank(), and no ranks.
  static Result<std::vector<Shard>> tensor_ranks(std::uint32_t ranks, std::uint32_t total_heads,
                                                 Range layers);

  friend bool operator==(const Shard&, const Shard&) = default;
};

}  // namespace ashlar::layout
