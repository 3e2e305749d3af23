#include "service/gateway/late_verdicts.h"

#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::service {

WorkerEvidence evidence_for(const RouteVerdict& verdict, const Router& router) {
  WorkerEvidence evidence{.changes = router.changes(verdict.worker)};
  if (verdict.found.empty()) return evidence;
  for (const Candidate& candidate : router.look_up(verdict.group, verdict.found))
    if (candidate.worker == verdict.worker)
      evidence.reported = std::uint64_t{candidate.depth} * verdict.block_size;
  return evidence;
}

Misroute judge(const RouteVerdict& verdict, const WorkerEvidence& now) noexcept {
  const WorkerChanges& then = verdict.then;
  const WorkerChanges& since = now.changes;
  if (verdict.delivered == verdict.expected) return Misroute::kNone;
  if (verdict.state != WorkerState::kExact) return Misroute::kNotExact;
  if (since.cleared != then.cleared || since.stored < then.stored) return Misroute::kCleared;
  if (verdict.delivered < verdict.expected)
    return since.removed != then.removed ? Misroute::kEvicted : Misroute::kUnexplained;
  if (verdict.reported < verdict.delivered && now.reported >= verdict.delivered)
    return Misroute::kStoredMeanwhile;
  if (since.removed != then.removed && since.stored - then.stored > verdict.own_blocks)
    return Misroute::kStoredMeanwhile;
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
    Clock::TimePoint now, const std::function<WorkerEvidence(const RouteVerdict&)>& evidence) {
  std::vector<RouteVerdict> settled;
  MutexLock lock(mu_);
  std::erase_if(open_, [&](Open& open) {
    open.verdict.outcome.misroute = judge(open.verdict, evidence(open.verdict));
    if (open.verdict.outcome.misroute == Misroute::kUnexplained && now < open.until) return false;
    settled.push_back(std::move(open.verdict));
    return true;
  });
  return settled;
}

}  // namespace ashlar::service
