// Where things lie in a G3 file (docs/formats/g3_file.md).
#pragma once

#include <cstdint>

namespace ashlar::tiers {

inline constexpr std::uint64_t kG3TableAt = 4096 + 2 * 32768;

// The first byte of the blocks.
constexpr std::uint64_t g3_blocks_at(std::uint64_t blocks) {
  return kG3TableAt + (blocks * 256 + 4095) / 4096 * 4096;
}

}  // namespace ashlar::tiers
