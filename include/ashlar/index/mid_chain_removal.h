// MidChainRemoval: what an index makes of the blocks behind a block that a worker no longer holds.
//
// Thread safety: immutable values.
#pragma once

#include <cstdint>
#include <string_view>

namespace ashlar::index {

enum class MidChainRemoval : std::uint8_t {
  // They stay, under their names. The prefix ends at the hole until the block is stored again.
  kRetain,
  // When a removal leaves a block in no tier of a worker, everything that the worker holds behind it is
  // forgotten, in every tier and under every name; the names are unknown from then on. Forgotten names are
  // not counted as removed.
  kOrphan,
};

constexpr std::string_view to_string(MidChainRemoval policy) noexcept {
  switch (policy) {
    case MidChainRemoval::kRetain:
      return "retain";
    case MidChainRemoval::kOrphan:
      return "orphan";
  }
  return "unknown";
}

}  // namespace ashlar::index
