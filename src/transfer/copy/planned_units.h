// PlannedUnits: the units of all planes of a plan as one sequence, and the rows of a part of it.
//
// Thread safety: immutable. The plan outlives it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/executor.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::transfer {

class PlannedUnits {
 public:
  // Requires: strip_bytes > 0.
  PlannedUnits(const TransferPlan& plan, std::uint64_t strip_bytes)
      : copies_(plan.copies()), strip_bytes_(strip_bytes) {
    for (const CopyPlan& copy : copies_) {
      firsts_.push_back(count_);
      count_ += CopyCursor::units(copy, strip_bytes);
    }
  }

  std::uint64_t count() const noexcept { return count_; }
  // The end of about a strip of bytes from unit `first` on, inside one plane. Requires: first < count().
  std::uint64_t chunk_end(std::uint64_t first) const noexcept {
    std::size_t plane = firsts_.size() - 1;
    while (firsts_[plane] > first) --plane;
    const std::uint64_t unit = std::min(copies_[plane].piece_bytes(), strip_bytes_);
    return std::min(plane_end(plane), first + strip_bytes_ / unit);
  }
  // Calls fn(plane, row) for the rows of units [first, end), until it returns false.
  template <class F>
  void each_row(std::uint64_t first, std::uint64_t end, F&& fn) const {
    for (std::size_t plane = 0; plane < firsts_.size(); ++plane) {
      const std::uint64_t from = std::max(first, firsts_[plane]);
      const std::uint64_t to = std::min(end, plane_end(plane));
      if (from >= to) continue;
      CopyCursor cursor(copies_[plane], strip_bytes_, from - firsts_[plane], to - firsts_[plane]);
      CopyRow row;
      while (cursor.next_row(&row))
        if (!fn(plane, row)) return;
    }
  }

 private:
  std::uint64_t plane_end(std::size_t plane) const noexcept {
    return plane + 1 < firsts_.size() ? firsts_[plane + 1] : count_;
  }

  const std::span<const CopyPlan> copies_;
  const std::uint64_t strip_bytes_;
  std::vector<std::uint64_t> firsts_;  // unit at which each plane starts
  std::uint64_t count_ = 0;
};

// Copies the pieces of a row between two addresses of this process.
inline void copy_row(const CopyRow& row, const std::byte* source, std::byte* target, TransferStats* stats) {
  for (std::uint64_t i = 0; i < row.count; ++i) {
    std::memcpy(target, source, row.bytes);
    source += row.from_stride;
    target += row.to_stride;
  }
  stats->bytes += row.bytes * row.count;
  stats->operations += row.count;
}

}  // namespace ashlar::transfer
