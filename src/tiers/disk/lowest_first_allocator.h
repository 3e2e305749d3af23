// LowestFirstAllocator: hands out the lowest-numbered free block, so that blocks written together are
// adjacent.
//
// Thread safety: confined, as every ResetAllocator.
// Complexity:    one word per 64 blocks; a pop scans the words below the lowest free block once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/block/reset_allocator.h"

namespace ashlar::tiers {

class LowestFirstAllocator final : public block::ResetAllocator {
 public:
  explicit LowestFirstAllocator(std::uint32_t block_count) : words_((std::size_t{block_count} + 63) / 64) {}

  void push(block::BlockId id) override {
    const std::size_t word = id.value() / 64;
    ASHLAR_DCHECK((words_[word] >> (id.value() % 64) & 1) == 0, "block %u is free twice", id.value());
    words_[word] |= std::uint64_t{1} << (id.value() % 64);
    first_ = std::min(first_, word);
    ++size_;
  }
  std::size_t pop(std::span<block::BlockId> out) override {
    std::size_t count = 0;
    while (count < out.size() && size_ > 0) {
      std::uint64_t& word = words_[first_];
      if (word == 0) {
        ++first_;
        continue;
      }
      out[count++] = block::BlockId(
          static_cast<std::uint32_t>(first_ * 64 + static_cast<unsigned>(std::countr_zero(word))));
      word &= word - 1;
      --size_;
    }
    return count;
  }
  std::size_t size() const override { return size_; }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t first_ = 0;  // no word before it has a free block
  std::size_t size_ = 0;
};

}  // namespace ashlar::tiers
