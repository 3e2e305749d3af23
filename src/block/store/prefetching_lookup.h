// Candidates: the slots that a row of hashes may be in, looked up a stretch at a time, ahead of their use.
//
// While the walk counts references in one stretch, the index buckets of the next are on their way to the cache; when it
// gets there they are read at once, and the slots are fetched. So the cache misses of a walk overlap.
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
  // How many hashes are looked up at a time.
  static constexpr std::size_t kStretch = 32;

  struct Stretch {
    std::array<std::uint64_t, kStretch> mixed;  // HashMix::of(hash)
    std::array<std::uint32_t, kStretch> slots;  // that the hash may be in, or HashIndex::kNone
    std::size_t size = 0;
  };

  // With a tracker, its counters are fetched too.
  Candidates(const HashIndex& index, const SlotTable& slots, const TinyLfu* tracker,
             std::span<const tokens::SequenceHash> hashes) noexcept
      : index_(index), slots_(slots), tracker_(tracker), rest_(hashes) {
    fetch();
  }

  // The candidates of the next hashes, up to kStretch; empty at the end. Valid until the next call.
  const Stretch& next() noexcept {
    std::swap(ahead_, now_);
    Stretch& stretch = stretches_[now_];
    for (std::size_t i = 0; i < stretch.size; ++i) {
      const std::uint32_t slot = index_.candidate(stretch.mixed[i]);
      stretch.slots[i] = slot;
      if (slot != HashIndex::kNone) slots_.prefetch(slot);
    }
    if (tracker_ != nullptr) {
      for (std::size_t i = 0; i < stretch.size; ++i) tracker_->prefetch_mixed(stretch.mixed[i]);
    }
    fetch();
    return stretch;
  }

 private:
  // Begins with the hashes after those that were fetched before.
  void fetch() noexcept {
    Stretch& stretch = stretches_[ahead_];
    stretch.size = std::min(rest_.size(), kStretch);
    for (std::size_t i = 0; i < stretch.size; ++i) {
      stretch.mixed[i] = HashMix::of(rest_[i]);
      index_.prefetch(stretch.mixed[i]);
    }
    rest_ = rest_.subspan(stretch.size);
  }

  const HashIndex& index_;
  const SlotTable& slots_;
  const TinyLfu* tracker_;
  std::span<const tokens::SequenceHash> rest_;
  std::array<Stretch, 2> stretches_;
  unsigned ahead_ = 0;
  unsigned now_ = 1;
};

}  // namespace ashlar::block::detail
