// BlockId: the index of a block in its manager's pool, and so in the memory the pool stands for.
#pragma once

#include <cstdint>

#include "ashlar/base/strong_id.h"

namespace ashlar::block {

using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;

}  // namespace ashlar::block
