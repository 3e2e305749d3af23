// Candidates: the slots that a row of hashes may be in, looked up some steps ahead of their use.
//
// take(i) answers for hash i and meanwhile reads the index for hash i + kAhead and fetches the bucket of a later one,
// so the cache misses of a walk overlap with its work and with each other.
//
// Thread safety: confined; reads what anyone may read.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/block/tiny_lfu.h"
#include "ashlar/tokens/sequence_hash.h"
#include "block/hash_index.h"
#include "block/slot_table.h"

namespace ashlar::block::detail {

class Candidates {
 public:
  // With a tracker, its counters are fetched too.
  Candidates(const HashIndex& index, const SlotTable& slots, const TinyLfu* tracker,
             std::span<const tokens::SequenceHash> hashes) noexcept
      : index_(index), slots_(slots), tracker_(tracker), hashes_(hashes) {
    for (const auto& hash : hashes.first(std::min(hashes.size(), 2 * kAhead))) index.prefetch(hash);
    for (std::size_t i = 0; i < std::min(hashes.size(), kAhead); ++i) look_up(i);
  }

  // The slot that hash i may be in, or HashIndex::kNone. Call once for each i, in order.
  std::uint32_t take(std::size_t i) noexcept {
    last_ = ring_[i % kRing];
    if (i + kAhead < hashes_.size()) look_up(i + kAhead);
    if (i + 2 * kAhead < hashes_.size()) index_.prefetch(hashes_[i + 2 * kAhead]);
    return last_;
  }
  // What the last take() answered.
  std::uint32_t last() const noexcept { return last_; }

 private:
  static constexpr std::size_t kAhead = 8;
  static constexpr std::size_t kRing = 16;

  void look_up(std::size_t i) noexcept {
    const std::uint32_t slot = index_.candidate(hashes_[i]);
    ring_[i % kRing] = slot;
    if (slot == HashIndex::kNone) return;
    slots_.prefetch(slot);
    if (tracker_ != nullptr) tracker_->prefetch(hashes_[i]);
  }

  const HashIndex& index_;
  const SlotTable& slots_;
  const TinyLfu* tracker_;
  std::span<const tokens::SequenceHash> hashes_;
  std::array<std::uint32_t, kRing> ring_;
  std::uint32_t last_ = HashIndex::kNone;
};

}  // namespace ashlar::block::detail
