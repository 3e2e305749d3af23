// PoolCache: the tiers of one worker made of block managers without bytes.
#pragma once

#include <memory>

#include "replay/simulate/presence.h"
#include "replay/simulate/worker_cache.h"

namespace ashlar::replay {

// Writes what it stores and removes into `presence`, which must outlive the cache, as the trace must.
// Errors: those of the managers.
Result<std::unique_ptr<WorkerCache>> make_pool_cache(const TraceTable& trace, const ReplayConfig& config,
                                                     Presence& presence, std::uint32_t worker);

}  // namespace ashlar::replay
