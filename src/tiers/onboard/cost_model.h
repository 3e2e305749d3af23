// CostModel: the measured time to onboard blocks from a tier. worth_bringing(): how much of a prefix is
// faster to onboard than to recompute.
//
// Remote is not one of these tiers: its peers are measured one by one (PeerCost).
//
// Thread safety: thread-safe.
// Complexity:    O(1) per move; worth_bringing() is linear in the runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/base/mutex.h"
#include "ashlar/events/tier.h"
#include "ashlar/tiers/onboard_handle.h"
#include "tiers/pool/cost_fit.h"

namespace ashlar::tiers {

class CostModel {
 public:
  // Records that moving `bytes` from a tier to the one above took `seconds`.
  void observe(events::TierId tier, std::uint64_t bytes, double seconds) {
    const MutexLock lock(mu_);
    fits_[tier.value()].observe(bytes, seconds);
  }
  // Expected seconds of such a move. 0 while unmeasured, so that an untried tier is never declined.
  double seconds(events::TierId tier, std::uint64_t bytes) const {
    const MutexLock lock(mu_);
    return fits_[tier.value()].seconds(bytes);
  }

 private:
  mutable Mutex mu_;
  std::array<CostFit, events::kMaxTiers> fits_ ASHLAR_GUARDED_BY(mu_);
};

// How many leading blocks of a prefix to onboard so that onboarding them and computing the rest takes the
// least time. Requires: the runs are contiguous from 0.
std::size_t worth_bringing(std::span<const TierRun> runs, double compute_seconds_per_block);

}  // namespace ashlar::tiers
