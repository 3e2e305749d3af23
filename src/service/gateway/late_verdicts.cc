#include "service/gateway/late_verdicts.h"

#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::service {

Misroute judge(const RouteVerdict& verdict, const WorkerChanges& now) noexcept {
  const WorkerChanges& then = verdict.then;
  if (verdict.delivered == verdict.expected) return Misroute::kNone;
  if (verdict.state != WorkerState::kExact) return Misroute::kNotExact;
  if (now.cleared != then.cleared || now.stored < then.stored) return Misroute::kCleared;
  if (verdict.delivered < verdict.expected && now.removed != then.removed) return Misroute::kEvicted;
  if (verdict.delivered > verdict.expected && now.stored != then.stored) return Misroute::kStoredMeanwhile;
  return Misroute::kUnexplained;
}

LateVerdicts::LateVerdicts(std::size_t capacity) : capacity_(capacity) {
  ASHLAR_CHECK(capacity > 0, "nothing could be judged later");
}

bool LateVerdicts::add(RouteVerdict verdict, Clock::TimePoint now) {
  ASHLAR_CHECK(verdict.delivered != verdict.expected, "what was found as expected needs no reason");
  MutexLock lock(mu_);
  if (open_.size() >= capacity_) return false;
  open_.push_back({std::move(verdict), now + kPatience});
  return true;
}

std::vector<RouteVerdict> LateVerdicts::settle(
    Clock::TimePoint now, const std::function<WorkerChanges(const events::Worker&)>& changes) {
  std::vector<RouteVerdict> settled;
  MutexLock lock(mu_);
  std::erase_if(open_, [&](Open& open) {
    open.verdict.outcome.misroute = judge(open.verdict, changes(open.verdict.worker));
    if (open.verdict.outcome.misroute == Misroute::kUnexplained && now < open.until) return false;
    settled.push_back(std::move(open.verdict));
    return true;
  });
  return settled;
}

}  // namespace ashlar::service
