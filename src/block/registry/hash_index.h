// HashIndex: maps a sequence hash to a slot; readers take no lock. The store uses it for primary blocks, the
// registry for entries that no store holds.
//
// A fixed table of 64-byte buckets: seven entries {tag, slot}, and a header that has one byte of each tag and
// counts the entries that overflowed to the next bucket. An entry never moves during its life, so a lock-free
// reader cannot miss one that stays; a result is a hint, to be confirmed by the slot's own word and hash.
//
// Thread safety: insert(), replace() and erase() under the owner's lock; candidate() and find() from
// anywhere.
// Complexity:    O(1); about four of seven entries of a bucket are used in a full pool. Nothing allocates
//                after construction. Memory: 16 to 32 bytes per slot.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/check.h"
#include "ashlar/block/detail/slot_ref.h"
#include "base/large_array.h"

namespace ashlar::block::detail {

class HashIndex {
 public:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFu;

  explicit HashIndex(std::uint32_t slots)
      : capacity_(slots),
        mask_(std::bit_ceil(std::max<std::size_t>(slots / 4, 1)) - 1),
        buckets_(mask_ + 1) {}

  // The number of slots it was created for.
  std::size_t capacity() const noexcept { return capacity_; }

  // Everything below takes the hash as HashMix::of() gives it.

  void prefetch(std::uint64_t mixed) const noexcept { __builtin_prefetch(&buckets_[mixed & mask_]); }

  // The slot of the first entry that may match the hash; kNone means that the hash is absent.
  std::uint32_t candidate(std::uint64_t mixed) const noexcept {
    // Nearly always the first place with the hash's byte in its home bucket.
    const Bucket& home = buckets_[mixed & mask_];
    const std::uint64_t same = equal_bytes(home.header.load(kOrderProbe), tag_byte(mixed));
    if (same != 0) [[likely]] {
      const std::uint64_t entry = home.entries[place(same)].load(kOrderProbe);
      if (((entry ^ mixed) >> 32) == 0) [[likely]]
        return static_cast<std::uint32_t>(entry);
    }
    return find(mixed, [](std::uint32_t) { return true; });
  }

  // The slot of the hash: the first entry with its tag for which `is_it(slot)` is true.
  template <class Confirm>
  std::uint32_t find(std::uint64_t mixed, Confirm&& is_it) const noexcept {
    // Bounded by the table: in a small one every bucket may have overflowed.
    for (std::size_t step = 0; step <= mask_; ++step) {
      const Bucket& bucket = buckets_[(mixed + step) & mask_];
      const std::uint64_t header = bucket.header.load(kOrderProbe);
      for (std::uint64_t same = equal_bytes(header, tag_byte(mixed)); same != 0; same &= same - 1) {
        const std::uint64_t entry = bucket.entries[place(same)].load(kOrderProbe);
        const auto slot = static_cast<std::uint32_t>(entry);
        if (((entry ^ mixed) >> 32) == 0 && is_it(slot)) return slot;
      }
      if (header >> kPassedShift == 0) return kNone;
    }
    return kNone;
  }

  // Requires: the hash is absent, and the table is not full.
  void insert(std::uint64_t mixed, std::uint32_t slot) noexcept {
    for (std::size_t step = 0;; ++step) {
      Bucket& bucket = buckets_[(mixed + step) & mask_];
      const std::uint64_t header = bucket.header.load(kOrderProbe);
      if (const std::uint64_t empty = equal_bytes(header, 0); empty != 0) {
        const unsigned at = place(empty);
        bucket.entries[at].store(entry_of(mixed, slot), kOrderProbe);
        bucket.header.store(header | tag_byte(mixed) << (8 * at), kOrderProbe);
        return;
      }
      if (header >> kPassedShift != kPassedFull) bucket.header.store(header + kOnePassed, kOrderProbe);
    }
  }

  // Moves the hash to slot `to`. One store: a reader finds the hash in one of the two slots at any moment.
  // Requires: insert(mixed, from) happened.
  void replace(std::uint64_t mixed, std::uint32_t from, std::uint32_t to) noexcept {
    for (std::size_t step = 0;; ++step) {
      Bucket& bucket = buckets_[(mixed + step) & mask_];
      const std::uint64_t header = bucket.header.load(kOrderProbe);
      for (std::uint64_t same = equal_bytes(header, tag_byte(mixed)); same != 0; same &= same - 1) {
        std::atomic<std::uint64_t>& entry = bucket.entries[place(same)];
        if (entry.load(kOrderProbe) != entry_of(mixed, from)) continue;
        entry.store(entry_of(mixed, to), kOrderProbe);
        return;
      }
      ASHLAR_DCHECK(step <= mask_ && header >> kPassedShift != 0, "slot %u is not in the index", from);
    }
  }

  // Requires: insert(mixed, slot) happened.
  void erase(std::uint64_t mixed, std::uint32_t slot) noexcept {
    for (std::size_t step = 0;; ++step) {
      Bucket& bucket = buckets_[(mixed + step) & mask_];
      const std::uint64_t header = bucket.header.load(kOrderProbe);
      for (std::uint64_t same = equal_bytes(header, tag_byte(mixed)); same != 0; same &= same - 1) {
        const unsigned at = place(same);
        if (bucket.entries[at].load(kOrderProbe) != entry_of(mixed, slot)) continue;
        bucket.header.store(header & ~(std::uint64_t{0xFF} << (8 * at)), kOrderProbe);
        return;
      }
      ASHLAR_DCHECK(step <= mask_ && header >> kPassedShift != 0, "slot %u is not in the index", slot);
      // A count that once saturated is no longer exact and stays; it only makes readers probe one more
      // bucket.
      if (header >> kPassedShift != kPassedFull) bucket.header.store(header - kOnePassed, kOrderProbe);
    }
  }

 private:
  static constexpr unsigned kPassedShift = 56;
  static constexpr std::uint64_t kOnePassed = std::uint64_t{1} << kPassedShift;
  static constexpr std::uint64_t kPassedFull = 0xFF;

  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, 7>
        entries{};                         // tag << 32 | slot; meaningless where the header has 0
    std::atomic<std::uint64_t> header{0};  // 7 bytes of tags, 0 = empty; 1 byte counts overflowed entries
  };

  // A byte of the tag, never 0.
  static std::uint64_t tag_byte(std::uint64_t mixed) noexcept { return mixed >> 56 | 1; }
  static std::uint64_t entry_of(std::uint64_t mixed, std::uint32_t slot) noexcept {
    return (mixed >> 32) << 32 | slot;
  }
  // The high bit of each of the seven tag bytes that equals `byte`. Exact: no carry passes from byte to byte.
  static std::uint64_t equal_bytes(std::uint64_t header, std::uint64_t byte) noexcept {
    constexpr std::uint64_t kOnes = 0x0001'0101'0101'0101u;
    constexpr std::uint64_t kLow7 = 0x007F'7F7F'7F7F'7F7Fu;
    const std::uint64_t x = (header ^ (byte * kOnes)) & (kOnes * 0xFF);
    return ~(((x & kLow7) + kLow7) | x) & (kOnes << 7);
  }
  static unsigned place(std::uint64_t bits) noexcept {
    return static_cast<unsigned>(std::countr_zero(bits)) / 8;
  }

  std::size_t capacity_;
  std::size_t mask_;
  LargeArray<Bucket> buckets_;
};

}  // namespace ashlar::block::detail
