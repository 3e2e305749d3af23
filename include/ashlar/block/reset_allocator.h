// ResetAllocator: the order in which empty blocks are allocated. Users may supply their own through
// BlockManagerBuilder::reset_allocator(); the default is first in, first out.
//
// Thread safety: confined; the store calls it under its own lock.
// Complexity:    O(1) per block. Nothing may allocate after construction: the store calls push() where it
//                cannot undo anything.
// Invariant:     holds each empty block of the pool once; size() is what an allocation can get without
//                evicting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/block/block_identity.h"

namespace ashlar::block {

class ResetAllocator {
 public:
  virtual ~ResetAllocator() = default;
  // Adds a free, empty block. Requires: it is not in the allocator.
  virtual void push(BlockId id) = 0;
  // Removes blocks, up to the size of `out`. Returns their number.
  virtual std::size_t pop(std::span<BlockId> out) = 0;
  // The number of empty blocks.
  virtual std::size_t size() const = 0;
};

// First in, first out: a freed block is reused as late as possible.
class FifoResetAllocator final : public ResetAllocator {
 public:
  explicit FifoResetAllocator(std::uint32_t block_count) : ring_(block_count) {}
  void push(BlockId id) override;
  std::size_t pop(std::span<BlockId> out) override;
  std::size_t size() const override { return size_; }

 private:
  std::vector<BlockId> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

// Last in, first out: the block with the warmest memory goes first.
class LifoResetAllocator final : public ResetAllocator {
 public:
  explicit LifoResetAllocator(std::uint32_t block_count) { stack_.reserve(block_count); }
  void push(BlockId id) override { stack_.push_back(id); }
  std::size_t pop(std::span<BlockId> out) override;
  std::size_t size() const override { return stack_.size(); }

 private:
  std::vector<BlockId> stack_;
};

// Creates the allocator of one manager, empty; the manager then pushes its blocks in rising order.
using ResetAllocatorFactory = std::function<std::unique_ptr<ResetAllocator>(std::uint32_t block_count)>;

}  // namespace ashlar::block
