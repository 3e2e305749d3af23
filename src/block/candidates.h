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
#include "block/hash_mix.h"
#include "block/slot_table.h"

namespace ashlar::block::detail {

class Candidates {
 public:
  // With a tracker, its counters are fetched too.
  Candidates(const HashIndex& index, const SlotTable& slots, const TinyLfu* tracker,
             std::span<const tokens::SequenceHash> hashes) noexcept
      : index_(index), slots_(slots), tracker_(tracker), hashes_(hashes) {
    for (std::size_t i = 0; i < std::min(hashes.size(), 2 * kAhead); ++i) fetch(i);
    for (std::size_t i = 0; i < std::min(hashes.size(), kAhead); ++i) look_up(i);
  }

  struct Candidate {
    std::uint64_t mixed;  // HashMix::of(hash)
    std::uint32_t slot;   // that the hash may be in, or HashIndex::kNone
  };

  // The candidate for hash i. Call once for each i, in order.
  const Candidate& take(std::size_t i) noexcept {
    last_ = ring_[i % kRing];
    if (i + 2 * kAhead < hashes_.size()) fetch(i + 2 * kAhead);
    if (i + kAhead < hashes_.size()) look_up(i + kAhead);
    return last_;
  }
  // What the last take() answered.
  const Candidate& last() const noexcept { return last_; }

 private:
  static constexpr std::size_t kAhead = 8;
  static constexpr std::size_t kRing = 2 * kAhead;

  void fetch(std::size_t i) noexcept {
    ring_[i % kRing].mixed = HashMix::of(hashes_[i]);
    index_.prefetch(ring_[i % kRing].mixed);
  }
  void look_up(std::size_t i) noexcept {
    Candidate& candidate = ring_[i % kRing];
    candidate.slot = index_.candidate(candidate.mixed);
    if (candidate.slot == HashIndex::kNone) return;
    slots_.prefetch(candidate.slot);
    if (tracker_ != nullptr) tracker_->prefetch_mixed(candidate.mixed);
  }

  const HashIndex& index_;
  const SlotTable& slots_;
  const TinyLfu* tracker_;
  std::span<const tokens::SequenceHash> hashes_;
  std::array<Candidate, kRing> ring_;
  Candidate last_{0, HashIndex::kNone};
};

}  // namespace ashlar::block::detail
