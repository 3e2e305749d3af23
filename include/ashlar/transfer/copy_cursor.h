// CopyCursor: the pieces of a CopyPlan one after the other, from any of them on.
//
// Executors cut a plan into units: a unit is one piece, or a strip of one where pieces are larger than a
// strip. So work is divided among threads and queues by numbers alone, and a plan of a million pieces needs
// no list. Where the blocks of a plan join, next() gives as many neighbouring units at once as fit into a
// strip.
//
// Thread safety: thread-compatible. The plan outlives the cursor.
// Complexity:    construction and next() are O(axes).
#pragma once

#include <array>
#include <cstdint>

#include "ashlar/layout/layout.h"
#include "ashlar/transfer/copy_plan.h"

namespace ashlar::transfer {

struct CopyPiece {
  layout::Place from;
  layout::Place to;
  std::uint64_t bytes = 0;
};

// Pieces at equal distances.
struct CopyRow {
  layout::Place from;
  layout::Place to;
  std::uint64_t bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t from_stride = 0;
  std::uint64_t to_stride = 0;
};

class CopyCursor {
 public:
  // Into how many units a plan is cut. Requires: strip_bytes > 0.
  static std::uint64_t units(const CopyPlan& plan, std::uint64_t strip_bytes) noexcept;

  // Requires: first <= end <= units().
  CopyCursor(const CopyPlan& plan, std::uint64_t strip_bytes, std::uint64_t first,
             std::uint64_t end) noexcept;

  // False when the units are used up.
  bool next(CopyPiece* out) noexcept;
  // The same, with what is left of the innermost axis at once.
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
