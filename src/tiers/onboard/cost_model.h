// CostModel: the measured time to bring blocks up from a tier. worth_bringing(): how much of a prefix is
// faster to bring up than to recompute.
//
// Time is latency + bytes / bandwidth, fitted to the last few dozen moves of each tier.
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

namespace ashlar::tiers {

class CostModel {
 public:
  // A move of so many bytes from a tier to the one above took so long.
  void observe(events::TierId tier, std::uint64_t bytes, double seconds);
  // Of a move like that. 0 while nothing was measured: who has not tried does not decline.
  double seconds(events::TierId tier, std::uint64_t bytes) const;

 private:
  // Sums over the moves so far, the older the lighter: weight, x = bytes, y = seconds.
  struct Fit {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  mutable Mutex mu_;
  std::array<Fit, events::kMaxTiers> fits_ ASHLAR_GUARDED_BY(mu_);
};

// How many of the first blocks of a prefix to bring up so that bringing them and computing the others takes
// the least time. Runs follow each other without holes from 0 on.
std::size_t worth_bringing(std::span<const TierRun> runs, double compute_seconds_per_block);

}  // namespace ashlar::tiers
