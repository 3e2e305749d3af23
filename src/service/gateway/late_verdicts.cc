#include "service/gateway/late_verdicts.h"

#include <utility>

namespace ashlar::service {

Misroute judge(const Verdict& verdict, const WorkerChanges& now) noexcept {
  const WorkerChanges& then = verdict.then;
  if (verdict.delivered == verdict.expected) return Misroute::kNone;
  if (verdict.state != WorkerState::kExact) return Misroute::kNotExact;
  if (now.cleared != then.cleared || now.stored < then.stored) return Misroute::kCleared;
  if (verdict.delivered < verdict.expected && now.removed != then.removed) return Misroute::kEvicted;
  if (verdict.delivered > verdict.expected && now.stored != then.stored) return Misroute::kStoredMeanwhile;
  return Misroute::kUnexplained;
}

bool LateVerdicts::add(Verdict verdict, Clock::TimePoint now) {
  MutexLock lock(mu_);
  if (open_.size() >= capacity_) return false;
  open_.push_back({std::move(verdict), now + kPatience});
  return true;
}

std::vector<Verdict> LateVerdicts::settle(
    Clock::TimePoint now, const std::function<WorkerChanges(const events::Worker&)>& changes) {
  std::vector<Verdict> settled;
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
