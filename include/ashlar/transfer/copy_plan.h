// CopyPlan: which bytes go where when blocks move from one layout to another. CopyCursor: walks the pieces of
// a plan.
//
// plan() takes both layouts, their shards and two lists of blocks, and computes the copies once for all pairs
// of blocks: a CopyPattern is a run of bytes repeated along up to five axes, merged with its neighbours
// wherever both sides allow it. Patterns are relative to their blocks, so a plan is small however many blocks
// move. Executors run patterns natively (strided copies, gather kernels) or piece by piece with a CopyCursor.
//
// Thread safety: CopyPlan is immutable once made; CopyCursor is thread-compatible.
// Complexity:    plan() is O(blocks log blocks + layers); a step of a cursor is O(axes).
// Invariant:     no byte of the destination is written twice, and none outside the named blocks. All patterns
//                of a plan have equal pieces and axes; they differ in where they start.
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

// Repeats what lies inside it `count` times, at these strides.
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

// Planes with one head for all others, where a destination is put together from several sources.
enum class SharedHeads : std::uint8_t {
  kWithAll,  // they move only together with all heads of the destination
  kMove,     // they move: the caller sees to it that the sources agree
  kLeave,    // they stay as they are: another source brings them
};

// Which layers and heads of the model to move. Empty: all that both sides have.
struct PlanSelection {
  std::optional<layout::Range> layers;
  std::optional<layout::Range> heads;
  SharedHeads shared = SharedHeads::kWithAll;
};

// One end of a copy.
enum class Side : std::uint8_t { kFrom, kTo };

struct GatheredPlan;

class CopyPlan {
 public:
  std::span<const CopyPattern> patterns() const noexcept { return patterns_; }
  // Ordered by destination.
  std::span<const BlockPair> pairs() const noexcept { return pairs_; }
  // Bytes of every piece, and how many pieces a pattern has for each pair.
  std::uint64_t piece_bytes() const noexcept { return patterns_.empty() ? 0 : patterns_[0].bytes; }
  std::uint64_t pattern_pieces() const noexcept { return patterns_.empty() ? 0 : patterns_[0].pieces(); }
  // Whether the pieces of neighbouring blocks are contiguous in both layouts, so that runs of blocks move as
  // one.
  bool joins_blocks() const noexcept {
    return !gathered_ && piece_bytes() == from_block_stride_ && piece_bytes() == to_block_stride_;
  }
  std::uint64_t from_block_stride() const noexcept { return from_block_stride_; }
  std::uint64_t to_block_stride() const noexcept { return to_block_stride_; }
  std::uint64_t bytes() const noexcept;
  std::uint64_t pieces() const noexcept;

  // Moves no byte of these pairs of blocks.
  static CopyPlan nothing(const CopyPlan& pairs) {
    CopyPlan out;
    out.pairs_ = pairs.pairs_;
    return out;
  }

  // The same move in runs that are contiguous on `side` only, for devices that need few, large operations
  // there. No run is longer than `max_run_bytes`, unless a piece is.
  GatheredPlan gather(Side side, std::uint64_t max_run_bytes) const;

 private:
  friend Result<CopyPlan> plan(const PlanSide&, const PlanSide&, const PlanSelection&);

  std::vector<CopyPattern> patterns_;
  std::vector<BlockPair> pairs_;
  std::uint64_t from_block_stride_ = 0;
  std::uint64_t to_block_stride_ = 0;
  bool gathered_ = false;
};

// A piece of `runs` is contiguous on the gathered side. On the other it is pieces of `piece_bytes` along the
// axes `inner`, outermost first, in the order in which they follow each other in the run; without axes it is
// contiguous there too.
struct GatheredPlan {
  CopyPlan runs;
  std::vector<CopyAxis> inner;
  std::uint64_t piece_bytes = 0;
};

// Plans the copy of block i of `from` to block i of `to`. Errors: kInvalidArgument, with the numbers: lists
// of different length, a block outside its layout, a destination named twice, incompatible shapes (tokens,
// head size, K/V, type), a shard that does not match its layout, a selection that one side lacks, nothing in
// common; kUnsupported: opaque content that would be cut or rearranged.
Result<CopyPlan> plan(const PlanSide& from, const PlanSide& to, const PlanSelection& selection = {});

// A part of a destination shard, and which of several sources has it.
struct ShardSource {
  std::size_t source = 0;
  layout::Range layers;
  layout::Range heads;

  friend bool operator==(const ShardSource&, const ShardSource&) = default;
};

// Divides a shard among sources so that every (layer, head) comes from exactly one of them: the first that
// has it. Errors: kNotFound with the first (layer, head) that no source has.
Result<std::vector<ShardSource>> cover(const layout::Shard& wanted, std::span<const layout::Shard> sources);

// A run of bytes, contiguous on both sides.
struct CopyPiece {
  layout::Place from;
  layout::Place to;
  std::uint64_t bytes = 0;
};

// Pieces at equal strides.
struct CopyRow {
  layout::Place from;
  layout::Place to;
  std::uint64_t bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t from_stride = 0;
  std::uint64_t to_stride = 0;
};

// CopyCursor: the pieces of a plan in order, from any of them on.
//
// Executors cut a plan into units: a unit is one piece, or a strip of one where pieces are larger than a
// strip. So work is divided among threads and queues by numbers alone, and a plan of a million pieces needs
// no list. Where blocks join, next() returns as many neighbouring units at once as fit into a strip.
//
// Thread safety: thread-compatible. The plan outlives the cursor.
class CopyCursor {
 public:
  // The number of units of a plan. Requires: strip_bytes > 0.
  static std::uint64_t units(const CopyPlan& plan, std::uint64_t strip_bytes) noexcept;

  // Requires: first <= end <= units().
  CopyCursor(const CopyPlan& plan, std::uint64_t strip_bytes, std::uint64_t first,
             std::uint64_t end) noexcept;

  // False when no unit is left.
  bool next(CopyPiece* out) noexcept;
  // The same, with the rest of the innermost axis at once.
  bool next_row(CopyRow* out) noexcept;

 private:
  // `inner`: where on the innermost axis the unit lies.
  void decompose(std::uint64_t unit, CopyPiece* out, std::uint64_t* pair,
                 std::uint64_t* inner) const noexcept;

  const CopyPlan* plan_;
  std::uint64_t strip_bytes_;
  std::uint64_t strips_;  // per piece
  std::uint64_t pieces_;  // per pair, over all patterns
  std::uint64_t next_;
  std::uint64_t end_;
};

}  // namespace ashlar::transfer
