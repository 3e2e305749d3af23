// BlockState: the states of one block's life (docs/block_lifecycle.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar::block {

enum class BlockState : std::uint8_t {
  kReset,        // in the reset pool
  kMutable,      // held by a MutableBlock, empty
  kPartial,      // held by a PartialBlock, tokens being added
  kScheduled,    // held by a ScheduledBlock
  kInflight,     // held by an InflightBlock, KV being computed
  kQuarantined,  // its InflightBlock was dropped before the device reported the end
  kComplete,     // held by a CompleteBlock
  kPrimary,      // registered, the block its hash finds; inactive without references
  kDuplicate,    // registered and in use, another block of the same hash
};
inline constexpr std::size_t kBlockStates = 9;

// The state's name in lower case.
std::string_view to_string(BlockState state) noexcept;

}  // namespace ashlar::block
