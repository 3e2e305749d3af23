// HashIndex: from sequence hash to the slot of its primary block, active or inactive.
//
// A fixed table of 64-byte buckets: a count of entries that had to pass on to the next bucket, and seven entries
// {tag, slot}. An entry never moves while it is there, and one 64-bit store makes it appear or vanish, so a reader
// without the lock cannot miss an entry that stays; what it finds is a hint that the slot's own word and hash confirm.
//
// Thread safety: insert() and erase() under the store's lock; candidate() and find() from anywhere.
// Complexity:    O(1); about four of seven entries of a bucket are used in a full pool. Nothing allocates after
//                construction. Memory: 16 to 32 bytes per slot.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/check.h"
#include "ashlar/base/large_array.h"
#include "ashlar/tokens/sequence_hash.h"
#include "block/slot_orders.h"

namespace ashlar::block::detail {

class HashIndex {
 public:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFu;

  explicit HashIndex(std::uint32_t slots)
      : mask_(std::bit_ceil(std::max<std::size_t>(slots / 4, 1)) - 1), buckets_(mask_ + 1) {}

  void prefetch(const tokens::SequenceHash& hash) const noexcept { __builtin_prefetch(&buckets_[mix(hash) & mask_]); }

  // The slot of the first entry that may be the hash's; kNone means that the hash is not here.
  std::uint32_t candidate(const tokens::SequenceHash& hash) const noexcept {
    return find(hash, [](std::uint32_t) { return true; });
  }

  // The slot of the hash: the first entry with its tag that `is_it(slot)` confirms.
  template <class Confirm>
  std::uint32_t find(const tokens::SequenceHash& hash, Confirm&& is_it) const noexcept {
    const std::uint64_t mixed = mix(hash);
    // Bounded by the table: in a small one every bucket may have passed something on.
    for (std::size_t step = 0; step <= mask_; ++step) {
      const Bucket& bucket = buckets_[(mixed + step) & mask_];
      for (unsigned same = bucket.with_tag(mixed); same != 0; same &= same - 1) {
        const std::uint64_t entry = bucket.entries[static_cast<unsigned>(std::countr_zero(same))].load(kOrderProbe);
        const std::uint32_t slot = static_cast<std::uint32_t>(entry) - 1;
        if (static_cast<std::uint32_t>(entry) != 0 && is_it(slot)) return slot;
      }
      if (bucket.passed_on.load(kOrderProbe) == 0) return kNone;
    }
    return kNone;
  }

  // Requires: the hash is not here, and fewer slots than the table was made for are.
  void insert(const tokens::SequenceHash& hash, std::uint32_t slot) noexcept {
    const std::uint64_t mixed = mix(hash);
    for (std::size_t b = mixed & mask_;; b = (b + 1) & mask_) {
      Bucket& bucket = buckets_[b];
      for (auto& cell : bucket.entries) {
        if (cell.load(kOrderProbe) != 0) continue;
        cell.store((mixed >> 32) << 32 | (slot + 1), kOrderProbe);
        return;
      }
      bucket.passed_on.store(bucket.passed_on.load(kOrderProbe) + 1, kOrderProbe);
    }
  }

  // Requires: insert(hash, slot) happened.
  void erase(const tokens::SequenceHash& hash, std::uint32_t slot) noexcept {
    const std::uint64_t mixed = mix(hash);
    const std::uint64_t entry = (mixed >> 32) << 32 | (slot + 1);
    for (std::size_t b = mixed & mask_;; b = (b + 1) & mask_) {
      Bucket& bucket = buckets_[b];
      for (auto& cell : bucket.entries) {
        if (cell.load(kOrderProbe) != entry) continue;
        cell.store(0, kOrderProbe);
        return;
      }
      ASHLAR_DCHECK(bucket.passed_on.load(kOrderProbe) != 0, "slot %u is not in the index", slot);
      bucket.passed_on.store(bucket.passed_on.load(kOrderProbe) - 1, kOrderProbe);
    }
  }

 private:
  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, 7> entries{};
    std::atomic<std::uint64_t> passed_on{0};

    // A bit for each entry whose tag is that of `mixed`; without branches, for the place is not predictable.
    unsigned with_tag(std::uint64_t mixed) const noexcept {
      unsigned same = 0;
#pragma GCC unroll 7
      for (unsigned i = 0; i < entries.size(); ++i) {
        same |= static_cast<unsigned>(((entries[i].load(kOrderProbe) ^ mixed) >> 32) == 0) << i;
      }
      return same;
    }
  };

  // The chain hash is a good hash already, but names given by others may not be.
  static std::uint64_t mix(const tokens::SequenceHash& hash) noexcept {
    const std::uint64_t z = (hash.lo() ^ (hash.hi() * 0x9E3779B97F4A7C15u)) * 0xD6E8FEB86659FD93u;
    return z ^ (z >> 32);
  }

  std::size_t mask_;
  LargeArray<Bucket> buckets_;
};

}  // namespace ashlar::block::detail
