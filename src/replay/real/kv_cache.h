// KvCache: the tiers of one worker as a KvBlockManager with bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/replay/real.h"
#include "replay/simulate/presence.h"
#include "replay/simulate/worker_cache.h"

namespace ashlar::replay {

// Counts the blocks that it compares in `verified`. All references must outlive the cache.
// Errors: those of KvBlockManager::create().
Result<std::unique_ptr<WorkerCache>> make_kv_cache(const TraceTable& trace, const ReplayConfig& config,
                                                   const RealOptions& options, const std::string& file,
                                                   Presence& presence, std::uint32_t worker,
                                                   std::uint64_t& verified);

}  // namespace ashlar::replay
