// LruBackend: evicts the block that was released or touched longest ago.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined. Complexity: O(1), O(ids written) for peek().
#pragma once

#include "ashlar/block/reuse_policy.h"

namespace ashlar::block {

using LruBackend = HashMapBackend<LruReuse>;

}  // namespace ashlar::block
