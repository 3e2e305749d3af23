#include "service/gateway/late_verdicts.h"

#include <algorithm>
#include <iterator>
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

LateVerdicts::LateVerdicts(std::size_t capacity, Clock::Duration patience)
    : capacity_(capacity), patience_(patience) {
  ASHLAR_CHECK(capacity > 0, "nothing could be judged later");
}

bool LateVerdicts::add(RouteVerdict verdict, Clock::TimePoint now) {
  ASHLAR_CHECK(verdict.delivered != verdict.expected, "what was found as expected needs no reason");
  MutexLock lock(mu_);
  if (open_ >= capacity_) return false;
  fresh_.push_back({std::move(verdict), now + patience_});
  ++open_;
  return true;
}

void LateVerdicts::judge_again(Open& open, Clock::TimePoint now, const Questions& ask) {
  const WorkerChanges changes = ask.changes(open.verdict.worker);
  Misroute& misroute = open.verdict.outcome.misroute;
  misroute = judge(open.verdict, {.changes = changes});
  // A worker reports no more than before unless it stored something.
  const bool can_ask = !open.verdict.found.empty() || open.verdict.refresh;
  if (misroute == Misroute::kUnexplained && can_ask && open.stored != changes.stored) {
    if (open.verdict.refresh) open.verdict.refresh(open.verdict);
    const WorkerEvidence evidence = ask.evidence(open.verdict);
    misroute = judge(open.verdict, evidence);
    open.stored = changes.stored;  // of before: what came meanwhile is asked about again
  }
  open.is_settled = misroute != Misroute::kUnexplained || now >= open.until;
}

std::vector<RouteVerdict> LateVerdicts::settle(Clock::TimePoint now, const Questions& ask) {
  MutexLock judging(judging_mu_);
  {
    MutexLock lock(mu_);
    std::ranges::move(fresh_, std::back_inserter(judged_));
    fresh_.clear();
  }
  for (Open& open : judged_) judge_again(open, now, ask);
  std::vector<RouteVerdict> settled;
  for (Open& open : judged_)
    if (open.is_settled) settled.push_back(std::move(open.verdict));
  std::erase_if(judged_, [](const Open& open) { return open.is_settled; });
  MutexLock lock(mu_);
  ASHLAR_DCHECK(open_ == fresh_.size() + judged_.size() + settled.size(), "every verdict is counted once");
  open_ -= settled.size();
  return settled;
}

}  // namespace ashlar::service
