// The hits of a cache that knows the requests to come (simulate.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "ashlar/replay/trace_table.h"

namespace ashlar::replay {

// Blocks found as unbroken prefixes by one cache of `capacity` blocks that serves `requests`, by their
// numbers and in this order. Room is made before blocks are stored; the head of a request that is longer than
// the cache is kept. `each` hears what each request found. O(blocks log blocks).
std::uint64_t offline_hits(const TraceTable& trace, std::span<const std::uint32_t> requests,
                           std::uint64_t capacity,
                           const std::function<void(std::uint32_t request, std::uint64_t hits)>& each = {});

}  // namespace ashlar::replay
