// Shard: which layers and heads of a model a layout holds, and which rank it is, when ranks divide them among
// themselves.
//
// Tensor parallelism divides heads: `tensor_rank()` gives rank r of n an equal range of them, and where there
// are more ranks than heads, several ranks hold the same head (KV-head replication; with one head, as in MLA,
// all of them do). Pipeline parallelism divides layers, in any way. Where both divide, a rank is counted
// among all of them, and set by the caller. A layout without a shard of its own holds everything.
//
// Blocks of two ranks have the same names. Their shards tell them apart wherever they might meet: in the keys
// of objects, in files and in checksums, also where two ranks hold the same heads.
//
// Thread safety: immutable values.
#pragma once

#include <cstdint>
#include <string>

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

// What both have; empty when nothing.
constexpr Range intersect(const Range& a, const Range& b) noexcept {
  const std::uint64_t first = a.first > b.first ? a.first : b.first;
  const std::uint64_t end = a.end() < b.end() ? a.end() : b.end();
  return first < end ? Range{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)}
                     : Range{};
}

struct Shard {
  Range layers = {};  // of the model
  Range heads = {};
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;

  // Everything that the layout's shape has, counted from 0.
  static Shard whole(const LayoutConfig& config) noexcept {
    return {{0, config.num_layers}, {0, config.num_heads}};
  }
  // Errors: kInvalidArgument: a rank that is not below `ranks`.
  Result<void> validate() const;
  // "rank 1 of 2 (layers 0 to 31, heads 4 to 7)".
  std::string to_string() const;
  // Errors: kInvalidArgument: a rank that is not below `ranks`, or heads that the ranks cannot share evenly.
  static Result<Shard> tensor_rank(std::uint32_t rank, std::uint32_t ranks, std::uint32_t total_heads,
                                   Range layers);

  friend bool operator==(const Shard&, const Shard&) = default;
};

}  // namespace ashlar::layout
