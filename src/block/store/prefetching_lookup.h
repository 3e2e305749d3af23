// PrefetchingLookup: the candidate slots of a list of hashes, looked up in batches ahead of their use.
//
// While the walk counts references in one batch, the index buckets of the next are being prefetched; the next
// batch then reads them together and prefetches the slots. So the cache misses of a walk overlap.
//
// Blocks that were allocated together lie in neighbouring slots, upwards or downwards. While the hashes do,
// the index is not asked: the neighbour that is the primary of the hash is the candidate, and slots are read
// as they lie in memory. A stretch that ends early ends that for the rest of the list.
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

  // `first`: the candidate of the first hash, where it is known.
  PrefetchingLookup(const HashIndex& index, const SlotTable& slots,
                    std::span<const tokens::SequenceHash> hashes,
                    std::uint32_t first = HashIndex::kNone) noexcept
      : index_(index), slots_(slots), rest_(hashes) {
    if (first != HashIndex::kNone && hashes.size() > 1) {
      if (slots_.has_primary(first + 1, hashes[1]))
        follow(first, kUpwards);
      else if (slots_.has_primary(first - 1, hashes[1]))
        follow(first, kDownwards);
    }
    fetch();
  }

  // The candidates of the next hashes, up to kBatchSize; empty at the end. Valid until the next call.
  const Batch& next() noexcept {
    std::swap(ahead_, now_);
    Batch& batch = batches_[now_];
    const std::span<const tokens::SequenceHash> hashes = fetched_;
    const std::size_t followed = step_ != 0 ? follow_neighbours(batch, hashes) : 0;
    if (followed != batch.size) look_up(batch, followed);
    fetch();
    return batch;
  }

 private:
  static constexpr std::uint32_t kUpwards = 1;
  static constexpr std::uint32_t kDownwards = 0xFFFF'FFFFu;  // added to a slot, modulo 2^32

  void follow(std::uint32_t slot, std::uint32_t step) noexcept {
    step_ = step;
    expected_ = slot;
  }

  // Begins after the hashes already prefetched.
  void fetch() noexcept {
    Batch& batch = batches_[ahead_];
    batch.size = std::min(rest_.size(), kBatchSize);
    fetched_ = rest_.first(batch.size);
    for (std::size_t i = 0; i < batch.size; ++i) batch.mixed[i] = HashMix::of(fetched_[i]);
    if (step_ == 0) prefetch_index(batch, 0);
    rest_ = rest_.subspan(batch.size);
  }
  void prefetch_index(const Batch& batch, std::size_t from) const noexcept {
    for (std::size_t i = from; i < batch.size; ++i) index_.prefetch(batch.mixed[i]);
  }

  // The candidates up to the first hash that the next slot does not have; their number.
  std::size_t follow_neighbours(Batch& batch, std::span<const tokens::SequenceHash> hashes) noexcept {
    std::size_t i = 0;
    std::uint32_t slot = expected_;
    for (; i < hashes.size() && slots_.has_primary(slot, hashes[i]); ++i, slot += step_)
      batch.slots[i] = slot;
    followed_ += i;
    expected_ = slot;
    if (i == hashes.size()) return i;
    may_follow_ = followed_ >= kBatchSize;
    step_ = 0;
    prefetch_index(batch, i);
    return i;
  }
  void look_up(Batch& batch, std::size_t from) noexcept {
    for (std::size_t i = from; i < batch.size; ++i) {
      const std::uint32_t slot = index_.candidate(batch.mixed[i]);
      batch.slots[i] = slot;
      if (slot != HashIndex::kNone) slots_.prefetch(slot);
    }
    if (!may_follow_ || from != 0 || batch.size != kBatchSize) return;
    // The last few of the batch tell whether the next ones will be neighbours too.
    const std::uint32_t last = batch.slots[kBatchSize - 1];
    const std::uint32_t step = last - batch.slots[kBatchSize - 2];
    if ((step != kUpwards && step != kDownwards) || last - batch.slots[kBatchSize - 8] != 7 * step) return;
    follow(last + step, step);
    followed_ = 0;
  }

  const HashIndex& index_;
  const SlotTable& slots_;
  std::span<const tokens::SequenceHash> rest_;
  std::span<const tokens::SequenceHash> fetched_;  // those of the batch ahead
  std::array<Batch, 2> batches_;
  unsigned ahead_ = 0;
  unsigned now_ = 1;
  std::uint32_t step_ = 0;      // from slot to slot; 0: the index is asked
  std::uint32_t expected_ = 0;  // the slot of the next hash, where it is followed
  std::size_t followed_ = 0;    // hashes in this stretch of neighbours
  bool may_follow_ = true;      // no stretch has ended early
};

}  // namespace ashlar::block::detail
