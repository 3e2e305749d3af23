// SlotWord: the one atomic word of a slot.
//
//   bits  0..27  references (registered states only)
//   bits 28..31  BlockState
//   bits 32..63  generation: lives of the slot so far
//
// docs/slot_word.md describes the protocol; slot_ref.h has the memory orders.
#pragma once

#include <cstdint>

#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/slot_ref.h"

namespace ashlar::block::detail {

struct SlotWord {
  static constexpr std::uint64_t kOneRef = 1;
  static constexpr std::uint64_t kRefMask = kReferenceMask;
  static constexpr unsigned kStateShift = 28;
  static constexpr unsigned kGenerationShift = 32;
  static_assert(kRefMask == (std::uint64_t{1} << kStateShift) - 1, "references end where the state begins");
  static_assert(kGenerationShift - kStateShift == 4, "a state has four bits");

  static constexpr std::uint64_t make(BlockState state, std::uint32_t refs,
                                      std::uint32_t generation) noexcept {
    return std::uint64_t{generation} << kGenerationShift |
           std::uint64_t{static_cast<std::uint8_t>(state)} << kStateShift | refs;
  }
  static constexpr std::uint32_t refs(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word & kRefMask);
  }
  static constexpr BlockState state(std::uint64_t word) noexcept {
    return static_cast<BlockState>((word >> kStateShift) & 0xF);
  }
  // Added to the word of a duplicate, it makes the duplicate a primary with as many references.
  static constexpr std::uint64_t kBecomePrimary =
      (static_cast<std::uint64_t>(BlockState::kPrimary) - static_cast<std::uint64_t>(BlockState::kDuplicate))
      << kStateShift;
  // A primary in use, with room for one more reference: one comparison for all three.
  static constexpr bool is_primary_in_use(std::uint64_t word) noexcept {
    constexpr std::uint32_t kIdle = std::uint32_t{static_cast<std::uint8_t>(BlockState::kPrimary)}
                                    << kStateShift;
    return static_cast<std::uint32_t>(word) - kIdle - 1 < kMaxReferences - 1;
  }
  static constexpr std::uint32_t generation(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> kGenerationShift);
  }
};
static_assert(SlotWord::make(BlockState::kDuplicate, 7, 9) + SlotWord::kBecomePrimary ==
              SlotWord::make(BlockState::kPrimary, 7, 9));

}  // namespace ashlar::block::detail
