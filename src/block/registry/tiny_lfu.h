// TinyLfu: how often a hash was used lately, in four bits per counter.
//
// A count-min sketch with four rows. One hash owns one 64-bit word; in it every row has three 4-bit counters,
// and the hash picks one counter per row, so a touch is one atomic read-modify-write and an estimate one
// load. Counters stop at 15. The remaining 16 bits of the word hold the epoch of its last change: decay
// halves every counter by moving the global epoch on, and each word catches up when it is next used, or when
// its turn comes: every epoch brings the next 1/8192 of the table up to date. There is no walk over the whole
// table and no lock.
//
// After Einziger, Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy"; the epoch per word
// is ours.
//
// Thread safety: thread-safe, lock-free. Every touch is counted exactly, also under contention, until a
// counter is full. Complexity: touch() and count() are O(1) and allocate nothing; the touch that begins an
// epoch ages max(words / 8192, 1) words.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "ashlar/block/block_registry.h"
#include "ashlar/tokens/sequence_hash.h"
#include "base/large_array.h"

namespace ashlar::block {

class TinyLfu {
 public:
  static constexpr unsigned kRows = 4;
  static constexpr unsigned kCountersPerRow = 3;
  static constexpr unsigned kMaxCount = 15;

  // Requires: options.validate().
  explicit TinyLfu(const TinyLfuOptions& options = {});

  void touch(const tokens::SequenceHash& hash) noexcept { touch_all({&hash, 1}); }
  // Counts one use of each, repeated hashes repeatedly.
  void touch_all(std::span<const tokens::SequenceHash> hashes) noexcept;
  // The same with HashMix::of(hash), for callers that also look the hash up elsewhere; they do the prefetch.
  void touch_mixed(std::span<const std::uint64_t> mixed) noexcept;
  void prefetch_mixed(std::uint64_t mixed) const noexcept {
    __builtin_prefetch(&table_[static_cast<std::size_t>(mixed >> 32) & mask_], 1);
  }
  // Estimate, at most kMaxCount, never below the true number of touches since the last decay (up to
  // kMaxCount).
  unsigned count(const tokens::SequenceHash& hash) const noexcept;

  std::size_t words() const noexcept { return mask_ + 1; }
  // Which counter of which word a hash uses in a row: for tests of the table's coverage.
  struct Cell {
    std::size_t word;
    unsigned counter;
  };
  Cell cell(const tokens::SequenceHash& hash, unsigned row) const noexcept;
  // How often the counters have been halved.
  std::uint64_t decays() const noexcept;

 private:
  // Ages the slices of all epochs up to this one.
  void age_until(std::uint64_t epoch) noexcept;

  // Constant after construction.
  std::size_t mask_;
  std::uint64_t decay_after_;
  std::uint64_t slice_;  // words aged per epoch
  LargeArray<std::atomic<std::uint64_t>> table_;

  alignas(64) std::atomic<std::uint64_t> touches_{0};
  std::atomic<std::uint64_t> aged_words_{0};  // slice_ for each epoch whose slice was aged
};

}  // namespace ashlar::block
