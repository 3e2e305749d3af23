// WorkerSet: the workers that hold one content, each with its tiers. Eight bytes; the owner accounts for and
// frees the memory behind them.
//
// Three forms. One worker lies in the word itself. A few are a list of 4-byte items by ascending slot. Many
// are a bitset over slots, with planes of lower tiers only while a worker holds the content in one. Sets
// change form as they grow and shrink, with hysteresis.
//
// add() throws std::bad_alloc with the set unchanged. remove() needs no memory: without any for a smaller
// form it keeps the current one.
//
// Thread safety: thread-compatible.
// Complexity:    add(), remove() and tiers_of() are O(1) for one worker and for a bitset, and O(log workers)
//                for a list, which has at most max(kMinList, 2 x words of a bitset) items; inserting or
//                removing an item moves those behind it. A change of form is O(workers + words).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ashlar/events/tier.h"

namespace ashlar::index::detail {

// One bit per tier.
using TierMask = std::uint8_t;

constexpr TierMask mask_of(events::StorageTier tier) noexcept {
  return static_cast<TierMask>(1u << static_cast<unsigned>(tier));
}
inline constexpr unsigned kTierBits = events::kStorageTiers;
inline constexpr TierMask kEveryTier = (1u << kTierBits) - 1;
inline constexpr TierMask kDeviceMask = mask_of(events::StorageTier::kDevice);

class WorkerSet {
 public:
  static constexpr std::uint32_t kMaxSlots = 1u << (32 - kTierBits);

  bool empty() const noexcept { return word_ == 0; }
  // Number of workers.
  std::size_t count() const noexcept;
  TierMask tiers_of(std::uint32_t slot) const noexcept;

  // Both return the tiers that the worker had before. `bytes` tracks the memory in use. `slots` is the number
  // of slots, for the size of a bitset. Requires: slot < slots, tiers != 0.
  TierMask add(std::uint32_t slot, TierMask tiers, std::size_t slots, std::size_t& bytes);
  TierMask remove(std::uint32_t slot, TierMask tiers, std::size_t& bytes) noexcept;
  // Frees the memory and empties the set.
  void reset(std::size_t& bytes) noexcept;

  // Sets of slots as bits: `words` words for the slots from 64 x `first` on. out = those of `among` held in
  // the device tier.
  void intersect_device(const std::uint64_t* among, std::uint64_t* out, std::size_t first,
                        std::size_t words) const noexcept;
  // The workers in each tier: out[tier x words + i] is word first + i.
  void copy_planes(std::uint64_t* out, std::size_t first, std::size_t words) const noexcept;

  // For owners that store other data in the same word: the low three bits of a set are 0 (empty) to 3.
  std::uint64_t word() const noexcept { return word_; }
  static WorkerSet from_word(std::uint64_t word) noexcept {
    WorkerSet set;
    set.word_ = word;
    return set;
  }

 private:
  static constexpr std::uint64_t kOne = 1;
  static constexpr std::uint64_t kList = 2;
  static constexpr std::uint64_t kBits = 3;
  static constexpr std::uint64_t kFormMask = 7;
  static constexpr std::uint32_t kMinList = 6;

  struct List;
  struct Bits;

  static std::uint64_t one(std::uint32_t slot, TierMask tiers) noexcept {
    return std::uint64_t{slot} << (4 + kTierBits) | std::uint64_t{tiers} << 4 | kOne;
  }
  static std::uint32_t slot_of_one(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> (4 + kTierBits));
  }
  static TierMask tiers_of_one(std::uint64_t word) noexcept {
    return static_cast<TierMask>(word >> 4 & kEveryTier);
  }
  std::uint64_t form() const noexcept { return word_ & kFormMask; }
  List* list() const noexcept;
  Bits* bits() const noexcept;
  void hold(List* list) noexcept;
  void hold(Bits* bits) noexcept;

  // The longest list when a bitset would have this many words.
  static std::uint32_t longest_list(std::size_t words) noexcept;
  TierMask add_to_list(std::uint32_t slot, TierMask tiers, std::size_t slots, std::size_t& bytes);
  TierMask add_to_bits(std::uint32_t slot, TierMask tiers, std::size_t slots, std::size_t& bytes);
  TierMask remove_from_list(std::uint32_t slot, TierMask tiers, std::size_t& bytes) noexcept;
  TierMask remove_from_bits(std::uint32_t slot, TierMask tiers, std::size_t& bytes) noexcept;
  // Converts to bits with room for one more worker with these tiers.
  void list_to_bits(TierMask tiers, std::size_t slots, std::size_t& bytes);
  void bits_to_one(std::size_t& bytes) noexcept;
  void bits_to_list(std::size_t& bytes) noexcept;
  void reshape_bits(std::uint32_t words, std::uint32_t planes, std::size_t& bytes);
  void reshape_bits(Bits* fresh, std::size_t& bytes) noexcept;

  std::uint64_t word_ = 0;
};

static_assert(sizeof(WorkerSet) == 8);

}  // namespace ashlar::index::detail
