#include "tiers/onboard/cost_model.h"

#include "ashlar/base/check.h"

namespace ashlar::tiers {

// Within a run each block costs the same, so the optimum is the end of a run, or the start.
std::size_t worth_bringing(std::span<const TierRun> runs, double compute_seconds_per_block) {
  std::size_t best = 0;
  double best_saved = 0;
  double saved = 0;
  std::size_t end = 0;
  for (const TierRun& run : runs) {
    ASHLAR_DCHECK(run.first == end, "a run begins at block %zu; the one before ends at %zu", run.first, end);
    end += run.count;
    saved += static_cast<double>(run.count) * compute_seconds_per_block - run.seconds;
    if (saved < best_saved) continue;
    best_saved = saved;
    best = run.first + run.count;
  }
  return best;
}

}  // namespace ashlar::tiers
