// MultimodalRun: a run of placeholder tokens that stands for one image, sound or other item.
//
// A block that a run touches is hashed as one 13-byte frame per slot, little-endian:
//   tag 0 | u32 token             | u64 0          a slot of text
//   tag 1 | u32 offset in the run | u64 mm_hash    a slot of an item
// A block that no run touches is hashed as plain tokens. The placeholder ids inside a run do not enter the
// hash.
//
// Thread safety: immutable values.
#pragma once

#include <cstdint>
#include <span>

#include "ashlar/base/result.h"

namespace ashlar::tokens {

struct MultimodalRun {
  std::uint64_t mm_hash = 0;  // identifies the item's content
  std::uint64_t offset = 0;   // the first token, counted from the start of the sequence
  std::uint32_t length = 0;   // in tokens

  friend bool operator==(const MultimodalRun&, const MultimodalRun&) = default;
};

// Checks that runs are not empty, sorted by offset, do not overlap and lie in [begin, end).
// Errors: kInvalidArgument, with the index of the first run that is wrong.
Result<void> validate_runs(std::span<const MultimodalRun> runs, std::uint64_t begin, std::uint64_t end);

// The runs that touch [begin, end). Requires: valid runs. O(log runs).
std::span<const MultimodalRun> runs_touching(std::span<const MultimodalRun> runs, std::uint64_t begin,
                                             std::uint64_t end) noexcept;

}  // namespace ashlar::tokens
