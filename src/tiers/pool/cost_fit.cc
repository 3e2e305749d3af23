#include "tiers/pool/cost_fit.h"

#include "ashlar/base/check.h"

namespace ashlar::tiers {

namespace {

constexpr double kForget = 0.95;  // per move

}  // namespace

void CostFit::observe(std::uint64_t bytes, double seconds) {
  if (bytes == 0) return;
  ASHLAR_DCHECK(seconds >= 0, "a move of %llu bytes took %g seconds", static_cast<unsigned long long>(bytes),
                seconds);
  const auto x = static_cast<double>(bytes);
  for (double* const sum : {&n_, &x_, &y_, &xx_, &xy_}) *sum *= kForget;
  n_ += 1;
  x_ += x;
  y_ += seconds;
  xx_ += x * x;
  xy_ += x * seconds;
}

double CostFit::seconds(std::uint64_t bytes) const {
  if (n_ == 0 || bytes == 0) return 0;
  const auto x = static_cast<double>(bytes);
  const double spread = n_ * xx_ - x_ * x_;
  // Moves of one size say nothing about latency: attribute all time to bandwidth.
  if (spread > 1e-6 * n_ * xx_) {
    const double slope = (n_ * xy_ - x_ * y_) / spread;
    const double latency = (y_ - slope * x_) / n_;
    if (slope >= 0 && latency >= 0) return latency + slope * x;
    if (slope < 0) return y_ / n_;
  }
  return x * y_ / x_;
}

}  // namespace ashlar::tiers
