// DroppedBlocks: the blocks that one (worker, rank) dropped last, so that it can be said later whether one of
// a prompt was among them.
//
// A block is known by its content and its place in the prompt. Blocks behind other beginnings that are equal
// in both are not told apart.
//
// Marks are the worker's own count of removals (WorkerChanges::removed) after each. The oldest blocks are
// forgotten beyond kMost: 24 bytes each, 768 KiB of a rank at most. An engine that computes 10,000 tokens/s
// in blocks of 16 drops as many in 52 s; what it found is known at the end of the request.
//
// Thread safety: thread-compatible.
// Complexity:    add() is O(1); fate_of() is O(blocks dropped since the mark).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "ashlar/base/check.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

class DroppedBlocks {
 public:
  static constexpr std::size_t kMost = 32'768;

  void add(tokens::LocalHash local, std::uint32_t position, std::uint64_t mark) {
    ASHLAR_DCHECK(blocks_.empty() || blocks_.back().mark <= mark, "removals are counted upwards");
    if (blocks_.size() == kMost) forget_first();
    blocks_.push_back({.mark = mark, .local = local, .position = position});
  }

  // Blocks up to this mark were dropped that are not known here.
  void forget(std::uint64_t mark) noexcept { forgotten_ = std::max(forgotten_, mark); }

  // Of the blocks `first` and after it of a prompt, since a mark.
  BlockFate fate_of(std::span<const tokens::LocalHash> locals, std::size_t first,
                    std::uint64_t since) const noexcept {
    for (auto block = blocks_.rbegin(); block != blocks_.rend() && block->mark > since; ++block)
      if (block->position >= first && block->position < locals.size() &&
          locals[block->position] == block->local)
        return BlockFate::kDropped;
    return forgotten_ > since ? BlockFate::kForgotten : BlockFate::kKept;
  }

 private:
  struct Block {
    std::uint64_t mark = 0;
    tokens::LocalHash local = {};
    std::uint32_t position = 0;
  };

  void forget_first() {
    forget(blocks_.front().mark);
    blocks_.pop_front();
  }

  std::deque<Block> blocks_;
  std::uint64_t forgotten_ = 0;  // the mark of the last one
};

}  // namespace ashlar::service
