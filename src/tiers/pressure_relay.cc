#include "tiers/pressure_relay.h"

#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"

namespace ashlar::tiers {

block::PressureCallback PressureRelay::relayed(const std::shared_ptr<PressureRelay>& relay,
                                               block::PressureCallback callback) {
  if (!callback) return {};
  ASHLAR_CHECK(!relay->thread_.joinable(), "a callback comes after the relay was started");
  const MutexLock lock(relay->mu_);
  relay->tiers_.push_back({.callback = std::move(callback)});
  return [relay, tier = relay->tiers_.size() - 1](block::Pressure pressure, std::size_t available) {
    relay->add(tier, {pressure, available});
  };
}

Result<void> PressureRelay::start() {
  {
    const MutexLock lock(mu_);
    if (tiers_.empty()) return {};
    for (Tier& tier : tiers_) {
      if (tier.count == 0) continue;
      tier.waiting[0] = tier.waiting[tier.count - 1];
      tier.count = tier.waiting[0].pressure == block::Pressure::kLow ? 1 : 0;
    }
  }
  return start_thread(&thread_, [this] { run(); });
}

void PressureRelay::stop() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void PressureRelay::add(std::size_t tier, const Call& call) {
  const MutexLock lock(mu_);
  if (stopping_) return;
  Tier& to = tiers_[tier];
  if (to.count == to.waiting.size()) to.count = 0;
  to.waiting[to.count++] = call;
  changed_.notify_all();
}

void PressureRelay::run() {
  while (const std::optional<Due> due = next()) due->callback(due->call.pressure, due->call.available);
}

// Takes turns, so that a tier which swings between its watermarks does not silence the others.
std::optional<PressureRelay::Due> PressureRelay::next() {
  const MutexLock lock(mu_);
  for (;;) {
    if (stopping_) return std::nullopt;
    for (std::size_t i = 0; i < tiers_.size(); ++i) {
      turn_ = (turn_ + 1) % tiers_.size();
      Tier& tier = tiers_[turn_];
      if (tier.count == 0) continue;
      const Call call = std::exchange(tier.waiting[0], tier.waiting[1]);
      --tier.count;
      return Due{tier.callback, call};
    }
    changed_.wait(mu_);
  }
}

}  // namespace ashlar::tiers
