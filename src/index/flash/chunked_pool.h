// ChunkedPool: numbered records in chunks, so that growth moves none of them. Numbers start at 1 and are
// reused. When the last record is freed, numbering restarts, and trim() returns the memory, a few chunks per
// call.
//
// Thread safety: thread-compatible.
// Complexity:    O(1), except trim().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

template <class T>
class ChunkedPool {
 public:
  // Throws std::bad_alloc with nothing changed.
  std::uint32_t allocate() {
    if (free_ != 0) {
      const std::uint32_t number = free_;
      free_ = next_free(number);
      ++live_;
      return number;
    }
    if (end_ == chunks_.size() * kChunk) chunks_.push_back(std::make_unique<Chunk>());
    ++live_;
    return static_cast<std::uint32_t>(end_++) + 1;
  }
  // Allocates memory for that many records, which trim() leaves alone. Throws std::bad_alloc with some of it
  // allocated.
  void keep(std::size_t records) {
    kept_ = (records + kChunk - 1) / kChunk;
    chunks_.reserve(kept_);
    while (chunks_.size() < kept_) chunks_.push_back(std::make_unique<Chunk>());
  }
  void free(std::uint32_t number) noexcept {
    (*this)[number] = T{};
    if (--live_ == 0) {
      free_ = 0;
      end_ = 0;
      return;
    }
    next_free(number) = free_;
    free_ = number;
  }

  // Restarts numbering after 1. Requires: record 1 is the only one.
  void shrink_to_first() noexcept {
    ASHLAR_DCHECK(live_ == 1, "%zu records left", live_);
    free_ = 0;
    end_ = 1;
  }
  // Frees up to `most` chunks past the last number in use; true when none is left. Cannot fail: without
  // memory the chunk list is shortened by a later call.
  bool trim(std::size_t most) {
    const std::size_t needed = std::max((end_ + kChunk - 1) / kChunk, kept_);
    while (chunks_.size() > needed) {
      if (most-- == 0) return false;
      chunks_.pop_back();
      if (chunks_.size() == needed) chunks_.shrink_to_fit();
    }
    // Larger than growth would make it.
    if (chunks_.capacity() > (chunks_.size() < 2 ? chunks_.size() : 2 * chunks_.size() - 2))
      chunks_.shrink_to_fit();
    return true;
  }

  T& operator[](std::uint32_t number) noexcept {
    ASHLAR_DCHECK(number - 1 < end_, "record %u of %zu", number, end_);
    return chunks_[(number - 1) / kChunk]->records[(number - 1) % kChunk];
  }
  const T& operator[](std::uint32_t number) const noexcept {
    return chunks_[(number - 1) / kChunk]->records[(number - 1) % kChunk];
  }

  std::size_t live() const noexcept { return live_; }
  // One more than the largest number given out so far.
  std::uint32_t end() const noexcept { return static_cast<std::uint32_t>(end_) + 1; }
  std::size_t bytes() const noexcept {
    return chunks_.size() * sizeof(Chunk) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr std::size_t kChunk = 512;
  struct Chunk {
    std::array<T, kChunk> records{};
    std::array<std::uint32_t, kChunk> next{};
  };
  std::uint32_t& next_free(std::uint32_t number) noexcept {
    return chunks_[(number - 1) / kChunk]->next[(number - 1) % kChunk];
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::uint32_t free_ = 0;  // first of the free records; 0 when there is none
  std::size_t end_ = 0;
  std::size_t live_ = 0;
  std::size_t kept_ = 0;  // chunks
};

}  // namespace ashlar::index::detail
