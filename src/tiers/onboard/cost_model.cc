#include "tiers/onboard/cost_model.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::tiers {

namespace {

constexpr double kForget = 0.95;  // per move

}  // namespace

void CostModel::observe(events::TierId tier, std::uint64_t bytes, double seconds) {
  if (bytes == 0) return;
  ASHLAR_DCHECK(seconds >= 0, "a move of %llu bytes took %g seconds", static_cast<unsigned long long>(bytes),
                seconds);
  const auto x = static_cast<double>(bytes);
  const MutexLock lock(mu_);
  Fit& fit = fits_[tier.value()];
  for (double* const sum : {&fit.n, &fit.x, &fit.y, &fit.xx, &fit.xy}) *sum *= kForget;
  fit.n += 1;
  fit.x += x;
  fit.y += seconds;
  fit.xx += x * x;
  fit.xy += x * seconds;
}

double CostModel::seconds(events::TierId tier, std::uint64_t bytes) const {
  const MutexLock lock(mu_);
  const Fit& fit = fits_[tier.value()];
  if (fit.n == 0 || bytes == 0) return 0;
  const auto x = static_cast<double>(bytes);
  const double spread = fit.n * fit.xx - fit.x * fit.x;
  // Moves of one size say nothing about latency: attribute all time to bandwidth.
  if (spread > 1e-6 * fit.n * fit.xx) {
    const double slope = (fit.n * fit.xy - fit.x * fit.y) / spread;
    const double latency = (fit.y - slope * fit.x) / fit.n;
    if (slope >= 0 && latency >= 0) return latency + slope * x;
    if (slope < 0) return fit.y / fit.n;
  }
  return x * fit.y / fit.x;
}

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
