// PrefetchingLookup: the candidate slots of a list of hashes, looked up in batches ahead of their use.
//
// While the walk counts references in one batch, the index buckets of the next are being prefetched; the next
// batch then reads them together and prefetches the slots. So the cache misses of a walk overlap.
//
// Thread safety: confined; reads only data that any thread may read.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/tokens/sequence_hash.h"
#include "block/registry/hash_index.h"
#include "block/registry/hash_mix.h"
#include "block/registry/tiny_lfu.h"
#include "block/store/slot_table.h"

namespace ashlar::block::detail {

class PrefetchingLookup {
 public:
  // Hashes looked up per batch.
  static constexpr std::size_t kBatchSize = 32;

  struct Batch {
    std::array<std::uint64_t, kBatchSize> mixed;  // HashMix::of(hash)
    std::array<std::uint32_t, kBatchSize> slots;  // candidate slots of the hashes, or HashIndex::kNone
    std::size_t size = 0;
  };

  // With a tracker, prefetches its counters too.
  PrefetchingLookup(const HashIndex& index, const SlotTable& slots, const TinyLfu* tracker,
                    std::span<const tokens::SequenceHash> hashes) noexcept
      : index_(index), slots_(slots), tracker_(tracker), rest_(hashes) {
    fetch();
  }

  // The candidates of the next hashes, up to kBatchSize; empty at the end. Valid until the next call.
  const Batch& next() noexcept {
    std::swap(ahead_, now_);
    Batch& batch = batches_[now_];
    for (std::size_t i = 0; i < batch.size; ++i) {
      const std::uint32_t slot = index_.candidate(batch.mixed[i]);
      batch.slots[i] = slot;
      if (slot != HashIndex::kNone) slots_.prefetch(slot);
    }
    if (tracker_ != nullptr) {
      for (std::size_t i = 0; i < batch.size; ++i) tracker_->prefetch_mixed(batch.mixed[i]);
    }
    fetch();
    return batch;
  }

 private:
  // Begins after the hashes already prefetched.
  void fetch() noexcept {
    Batch& batch = batches_[ahead_];
    batch.size = std::min(rest_.size(), kBatchSize);
    for (std::size_t i = 0; i < batch.size; ++i) {
      batch.mixed[i] = HashMix::of(rest_[i]);
      index_.prefetch(batch.mixed[i]);
    }
    rest_ = rest_.subspan(batch.size);
  }

  const HashIndex& index_;
  const SlotTable& slots_;
  const TinyLfu* tracker_;
  std::span<const tokens::SequenceHash> rest_;
  std::array<Batch, 2> batches_;
  unsigned ahead_ = 0;
  unsigned now_ = 1;
};

}  // namespace ashlar::block::detail
