// JobCursor: splits a CopyPlan into consecutive jobs for the copy kernel.
//
// Thread safety: thread-compatible. Plan and sets outlive the cursor.
// Complexity:    next() is O(patterns + pairs of the job).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/copy_plan.h"
#include "backend/cuda/copy_job.h"

namespace ashlar::backend::cuda {

class JobCursor {
 public:
  // Pieces in address order of the destination, or of the source.
  JobCursor(const transfer::CopyPlan& plan, const transfer::BlockSet& from, const transfer::BlockSet& to,
            std::size_t plane, bool by_source = false);

  bool done() const noexcept { return done_; }
  // Contiguous bytes at one end, in piece order, inside a block of a job.
  std::uint64_t host_run_bytes(bool at_destination) const noexcept;
  // The next pieces, up to about `bytes` of them and at least one. Requires: !done().
  void next(std::uint64_t bytes, LargeCopyJob* job);

 private:
  void take_group(LargeCopyJob* job) const;

  const transfer::CopyPlan& plan_;
  std::vector<std::uint64_t> starts_;  // two for each pattern: source, destination
  JobShape shape_;
  std::uint32_t units_;           // of a piece
  std::uint64_t group_patterns_;  // of one job, and pairs
  std::uint64_t group_pairs_;
  std::uint64_t pattern_ = 0;  // where the next group begins
  std::uint64_t pair_ = 0;
  std::uint64_t piece_ = 0;  // in the group
  bool done_ = false;
};

// The same in pieces: those between two multiples of it are contiguous at that end.
std::uint32_t host_run_pieces(const LargeCopyJob& job, bool at_destination) noexcept;

// Rewrites one side of a job: its pieces become contiguous from `buffer` on.
void make_source_linear(std::byte* buffer, LargeCopyJob* job) noexcept;
void make_destination_linear(std::byte* buffer, LargeCopyJob* job) noexcept;

}  // namespace ashlar::backend::cuda
