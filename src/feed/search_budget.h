// SearchBudget: what a search for whole records behind damage may read.
//
// A search tries candidates: places that look like the start of a record. A candidate that fails has cost its
// length, and candidates that overlap may cost far more than the file has bytes. So failed candidates are
// paid for: those of 2^k to 2^(k+1) bytes have a credit of their own, and every byte that is passed fills it
// again. Without credit a candidate counts as damage. Damaged records of a true length pay for themselves, so
// that whole ones between them are found however many there are; lengths that are wrong use up the credit of
// other sizes.
// What one call reads is limited too: then the caller has its turn.
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
  // What a place that is looked at costs of a slice, beside its bytes.
  static constexpr std::uint64_t kVisit = 4096;
  static constexpr std::uint64_t kCreditPerByte = 2;

  void begin_slice() noexcept { slice_ = 0; }
  bool is_slice_over() const noexcept { return slice_ >= kSlice; }
  void read(std::uint64_t bytes) noexcept {
    slice_ += bytes;
    total_ += bytes;
  }
  void visit() noexcept { slice_ += kVisit; }

  // Whether a candidate of so many bytes may be read. The last one may take more than the credit that is
  // left.
  bool may_try(std::uint64_t bytes) noexcept {
    Size& size = sizes_[std::bit_width(bytes)];
    const std::uint64_t earned = (passed_ - std::exchange(size.seen, passed_)) * kCreditPerByte;
    size.spent -= std::min(size.spent, earned);
    return size.spent < 2 * std::bit_floor(bytes);
  }
  static_assert(kVisit < kSlice, "a slice looks at more than one place");

  void fail(std::uint64_t bytes) noexcept { sizes_[std::bit_width(bytes)].spent += bytes; }
  void pass(std::uint64_t bytes) noexcept { passed_ += bytes; }

  // Bytes that were read, whatever for.
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
