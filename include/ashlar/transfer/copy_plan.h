// CopyPlan: which bytes go where when blocks move from one layout to another.
//
// plan() takes both layouts, the parts of the model that they hold and two lists of blocks, and works out the copies once
// for all pairs of blocks: a CopyPattern is a run of bytes repeated along up to five axes, joined with its neighbours
// wherever both sides allow it. A pattern relative to its blocks serves every pair, so a plan is small however many
// blocks move. Executors run patterns natively (strided copies, gather kernels) or piece by piece.
//
// Thread safety: thread-compatible; immutable once made.
// Complexity:    plan() is O(blocks log blocks + layers); for_each_piece() is O(pieces).
// Invariant:     no byte of the destination is written twice, and none outside the blocks that were named.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout.h"
#include "ashlar/layout/shard.h"

namespace ashlar::transfer {

// One repetition of what lies inside it.
struct CopyAxis {
  std::uint64_t count = 1;
  std::uint64_t from_stride = 0;
  std::uint64_t to_stride = 0;

  friend bool operator==(const CopyAxis&, const CopyAxis&) = default;
};

// Offsets are those of block 0.
struct CopyPattern {
  layout::Place from;
  layout::Place to;
  std::uint64_t bytes = 0;     // of one piece, contiguous on both sides
  std::vector<CopyAxis> axes;  // outermost first

  std::uint64_t pieces() const noexcept;
  friend bool operator==(const CopyPattern&, const CopyPattern&) = default;
};

struct BlockPair {
  std::uint32_t from = 0;
  std::uint32_t to = 0;

  friend bool operator==(const BlockPair&, const BlockPair&) = default;
};

// One side of a transfer.
struct PlanSide {
  const layout::Layout& layout;
  layout::Shard shard;
  std::span<const std::uint32_t> blocks;
};

// Which layers and heads of the model to move; all that both sides have unless said.
struct PlanSelection {
  std::optional<layout::Range> layers;
  std::optional<layout::Range> heads;
};

class CopyPlan {
 public:
  std::span<const CopyPattern> patterns() const noexcept { return patterns_; }
  std::span<const BlockPair> pairs() const noexcept { return pairs_; }
  std::uint64_t from_block_stride() const noexcept { return from_block_stride_; }
  std::uint64_t to_block_stride() const noexcept { return to_block_stride_; }
  std::uint64_t bytes() const noexcept;
  std::uint64_t pieces() const noexcept;

  // Calls fn(from, to, bytes) with the places of every piece.
  template <class F>
  void for_each_piece(F&& fn) const {
    for (const BlockPair& pair : pairs_)
      for (const CopyPattern& pattern : patterns_) {
        layout::Place from = pattern.from;
        layout::Place to = pattern.to;
        from.offset += pair.from * from_block_stride_;
        to.offset += pair.to * to_block_stride_;
        walk(pattern, 0, from, to, fn);
      }
  }

 private:
  friend Result<CopyPlan> plan(const PlanSide&, const PlanSide&, const PlanSelection&);

  template <class F>
  static void walk(const CopyPattern& pattern, std::size_t axis, layout::Place from, layout::Place to,
                   F& fn) {
    if (axis == pattern.axes.size()) return fn(from, to, pattern.bytes);
    const CopyAxis& step = pattern.axes[axis];
    for (std::uint64_t i = 0; i < step.count; ++i) {
      walk(pattern, axis + 1, from, to, fn);
      from.offset += step.from_stride;
      to.offset += step.to_stride;
    }
  }

  std::vector<CopyPattern> patterns_;
  std::vector<BlockPair> pairs_;
  std::uint64_t from_block_stride_ = 0;
  std::uint64_t to_block_stride_ = 0;
};

// Errors: kInvalidArgument, with the numbers, always checked: lists of different length, a block beyond its layout, a
// destination named twice, shapes that cannot be exchanged (tokens, head size, K/V, type), a shard that does not fit its
// layout, a selection that one side does not have, nothing in common; kUnsupported for opaque content that would be cut or
// rearranged.
Result<CopyPlan> plan(const PlanSide& from, const PlanSide& to, const PlanSelection& selection = {});

// A part of a destination shard, and which of several sources has it.
struct ShardSource {
  std::size_t source = 0;
  layout::Range layers;
  layout::Range heads;

  friend bool operator==(const ShardSource&, const ShardSource&) = default;
};

// Divides a shard among sources so that every (layer, head) comes from exactly one of them; of replicas the first is
// taken. Errors: kNotFound with the first (layer, head) that no source has.
Result<std::vector<ShardSource>> cover(const layout::Shard& wanted, std::span<const layout::Shard> sources);

}  // namespace ashlar::transfer
