// Writers: the launched work that still writes the blocks of one registration, by fence.
//
// A fence keeps one reference to each block that was registered with it, and in quarantine the blocks that
// others replaced (DuplicatePolicy::kReject), until it has settled (fence.h): so nothing that work in flight
// writes is handed out again, whatever becomes of its guards and requests. Where a fence fails or is
// abandoned, its blocks lose their names.
//
// Thread safety: thread-compatible. What keep() hands to a fence ends on the thread that settles it.
// Complexity:    nothing without fences; O(blocks) and one object per fence with them. The fence of a block
//                is compared with those of the blocks before, the last first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/fence.h"

namespace ashlar::block::detail {

class Writers {
 public:
  // For a registration of `n` blocks.
  Writers(BlockStore& store, std::size_t n) noexcept : store_(store), n_(n) {}

  // Blocks [first, first + count) are complete when the fence passes. Requires: no other call names them.
  // Throws std::bad_alloc.
  void expect(std::size_t first, std::size_t count, const Fence& fence);
  // True when every block is complete.
  bool empty() const noexcept { return of_.empty(); }
  // Whether block i is still being written.
  bool write(std::size_t i) const noexcept { return !empty() && of_[i] != kComplete; }
  // Of a block that is still being written: it was registered, with a reference for its writer; or it is in
  // quarantine.
  void add(std::size_t i, const SlotRef& slot) noexcept;
  // Hands what was added to the fences.
  void keep() noexcept;

 private:
  class Blocks;
  static constexpr std::uint32_t kComplete = UINT32_MAX;
  struct Writer {
    Fence fence;
    std::unique_ptr<Fence::Waiting> blocks;
    std::size_t expected = 0;
  };

  BlockStore& store_;
  std::size_t n_;
  std::vector<std::uint32_t> of_;  // the writer of each block; empty: every block is complete
  std::vector<Writer> writers_;
};

}  // namespace ashlar::block::detail
