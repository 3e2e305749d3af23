// SearchBudget: limits the bytes that a search for whole records after damage may read.
//
// A search tries candidates: positions that look like the start of a record. A failed candidate costs its
// length, and overlapping candidates could cost far more than the file has bytes. So failed candidates use up
// credit: each size class, 2^k to 2^(k+1) bytes, has its own, and every byte passed refills it. Without
// credit a candidate counts as damage. Damaged records with a true length pay for themselves, so any number
// of whole records between them is found; wrong lengths use the credit of other sizes. The bytes read in one
// call are limited too, so that the caller regains control.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) per call.
// Invariant:     failed candidates of one size have read at most 4 times that size and 2 bytes for each byte
//                passed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace ashlar::feed {

class SearchBudget {
 public:
  static constexpr std::uint64_t kSlice = std::uint64_t{64} << 20;  // bytes in one call, and one record
  // The cost of a visited position, beside its bytes.
  static constexpr std::uint64_t kVisit = 4096;
  static constexpr std::uint64_t kCreditPerByte = 2;

  void begin_slice() noexcept { slice_ = 0; }
  bool is_slice_over() const noexcept { return slice_ >= kSlice; }
  void read(std::uint64_t bytes) noexcept {
    slice_ += bytes;
    total_ += bytes;
  }
  void visit() noexcept { slice_ += kVisit; }

  // Whether a candidate of `bytes` may be read. The last one may exceed the remaining credit.
  bool may_try(std::uint64_t bytes) noexcept {
    Size& size = sizes_[std::bit_width(bytes)];
    const std::uint64_t earned = (passed_ - std::exchange(size.seen, passed_)) * kCreditPerByte;
    size.spent -= std::min(size.spent, earned);
    return size.spent < 2 * std::bit_floor(bytes);
  }
  static_assert(kVisit < kSlice, "a slice looks at more than one place");

  void fail(std::uint64_t bytes) noexcept { sizes_[std::bit_width(bytes)].spent += bytes; }
  void pass(std::uint64_t bytes) noexcept { passed_ += bytes; }

  // All bytes read.
  std::uint64_t total() const noexcept { return total_; }

 private:
  struct Size {
    std::uint64_t spent = 0;
    std::uint64_t seen = 0;  // of passed_, when spent was right
  };
  std::array<Size, 65> sizes_ = {};
  std::uint64_t passed_ = 0;
  std::uint64_t slice_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace ashlar::feed
