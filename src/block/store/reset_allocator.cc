#include "ashlar/block/reset_allocator.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::block {

void FifoResetAllocator::push(BlockId id) {
  ASHLAR_DCHECK(size_ < ring_.size(), "block %u is freed into a full pool", id.value());
  const std::size_t at = head_ + size_;
  ring_[at < ring_.size() ? at : at - ring_.size()] = id;
  ++size_;
}

std::size_t FifoResetAllocator::pop(std::span<BlockId> out) {
  const std::size_t count = std::min(out.size(), size_);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = ring_[head_];
    if (++head_ == ring_.size()) head_ = 0;
  }
  size_ -= count;
  return count;
}

std::size_t LifoResetAllocator::pop(std::span<BlockId> out) {
  const std::size_t count = std::min(out.size(), stack_.size());
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = stack_.back();
    stack_.pop_back();
  }
  return count;
}

}  // namespace ashlar::block
