// The names of one offload route's counters in a MetricRegistry: what its worker did, and what is queued.
//
// Thread safety: thread-safe.
#pragma once

#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "tiers/offload/offload_worker.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

// The worker outlives the registrations. Errors: those of the registry.
Result<void> add_offload_metrics(const OffloadWorker& worker, const TierPool& from, MetricRegistry& metrics,
                                 const MetricLabels& labels, std::vector<MetricRegistration>& out);

}  // namespace ashlar::tiers
