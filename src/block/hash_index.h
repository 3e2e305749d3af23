// HashIndex: from sequence hash to a slot, read without a lock. The store finds primary blocks by it, the registry its
// entries.
//
// A fixed table of 64-byte buckets: a count of entries that had to pass on to the next bucket, and seven entries
// {tag, slot}. An entry never moves while it is there, and one 64-bit store makes it appear or vanish, so a reader
// without the lock cannot miss an entry that stays; what it finds is a hint that the slot's own word and hash confirm.
//
// Thread safety: insert() and erase() under the owner's lock; candidate() and find() from anywhere.
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
#include "block/slot_orders.h"

namespace ashlar::block::detail {

class HashIndex {
 public:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFu;

  explicit HashIndex(std::uint32_t slots)
      : capacity_(slots), mask_(std::bit_ceil(std::max<std::size_t>(slots / 4, 1)) - 1), buckets_(mask_ + 1) {}

  // Slots it was made for.
  std::size_t capacity() const noexcept { return capacity_; }

  void prefetch(std::uint64_t mixed) const noexcept { __builtin_prefetch(&buckets_[mixed & mask_]); }

  // The slot of the first entry that may be the hash's; kNone means that the hash is not here. All take HashMix::of().
  std::uint32_t candidate(std::uint64_t mixed) const noexcept {
    return find(mixed, [](std::uint32_t) { return true; });
  }

  // The slot of the hash: the first entry with its tag that `is_it(slot)` confirms.
  template <class Confirm>
  std::uint32_t find(std::uint64_t mixed, Confirm&& is_it) const noexcept {
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
  void insert(std::uint64_t mixed, std::uint32_t slot) noexcept {
    for (std::size_t b = mixed & mask_;; b = (b + 1) & mask_) {
      Bucket& bucket = buckets_[b];
      if (const unsigned empty = bucket.equal_to(0); empty != 0) {
        bucket.entries[static_cast<unsigned>(std::countr_zero(empty))].store(entry_of(mixed, slot), kOrderProbe);
        return;
      }
      bucket.passed_on.store(bucket.passed_on.load(kOrderProbe) + 1, kOrderProbe);
    }
  }

  // Requires: insert(mixed, slot) happened.
  void erase(std::uint64_t mixed, std::uint32_t slot) noexcept {
    for (std::size_t b = mixed & mask_;; b = (b + 1) & mask_) {
      Bucket& bucket = buckets_[b];
      if (const unsigned same = bucket.equal_to(entry_of(mixed, slot)); same != 0) {
        bucket.entries[static_cast<unsigned>(std::countr_zero(same))].store(0, kOrderProbe);
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

    // A bit for each entry whose tag is that of `mixed`, or that is `entry` itself. Without branches, for the place is
    // not predictable.
    unsigned with_tag(std::uint64_t mixed) const noexcept {
      return bits([mixed](std::uint64_t each) { return ((each ^ mixed) >> 32) == 0; });
    }
    unsigned equal_to(std::uint64_t entry) const noexcept {
      return bits([entry](std::uint64_t each) { return each == entry; });
    }
    template <class F>
    unsigned bits(F&& holds) const noexcept {
      unsigned result = 0;
#pragma GCC unroll 7
      for (unsigned i = 0; i < entries.size(); ++i) {
        result |= static_cast<unsigned>(holds(entries[i].load(kOrderProbe))) << i;
      }
      return result;
    }
  };

  static std::uint64_t entry_of(std::uint64_t mixed, std::uint32_t slot) noexcept {
    return (mixed >> 32) << 32 | (slot + 1);
  }

  std::size_t capacity_;
  std::size_t mask_;
  LargeArray<Bucket> buckets_;
};

}  // namespace ashlar::block::detail
