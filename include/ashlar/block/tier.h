// The tiers of blocks, under the names that block code uses: block::G1 is events::G1.
//
//   BlockManager<G1>   GPU memory        BlockManager<G3>   local SSD
//   BlockManager<G2>   host memory       BlockManager<G4>   remote storage
//
// A tier is an empty tag type with an index and a name, so that guards of different tiers are different types
// and cannot be mixed up. User-defined tiers model the concept Tier with an index from 5 to 7. The tags are
// defined in ashlar/events/tier.h, because events carry them too.
//
// Thread safety: immutable values.
#pragma once

#include "ashlar/events/tier.h"

namespace ashlar::block {

using events::G1;
using events::G2;
using events::G3;
using events::G4;
using events::kMaxTiers;
using events::kTierId;
using events::Remote;
using events::Tier;
using events::TierId;

}  // namespace ashlar::block
