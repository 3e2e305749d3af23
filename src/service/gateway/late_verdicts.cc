#include "service/gateway/late_verdicts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::service {

WorkerEvidence evidence_for(const RouteVerdict& verdict, const Router& router) {
  WorkerEvidence evidence{.changes = router.changes(verdict.worker)};
  if (verdict.blocks.empty()) return evidence;
  evidence.fate = router.fate_of(verdict.worker, verdict.blocks, verdict.agreed, verdict.then);
  if (verdict.delivered <= verdict.expected) return evidence;
  for (const Candidate& candidate : router.look_up(verdict.group, verdict.blocks))
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
  const bool is_less = verdict.delivered < verdict.expected;
  const bool are_new = !is_less && verdict.reported < verdict.delivered;
  if (are_new && now.reported >= verdict.delivered) return Misroute::kStoredMeanwhile;
  if (!is_less && (!are_new || since.stored - then.stored <= verdict.own_blocks))
    return Misroute::kUnexplained;
  switch (now.fate) {
    case BlockFate::kKept:
      return Misroute::kUnexplained;
    case BlockFate::kDropped:
      return is_less ? Misroute::kEvicted : Misroute::kStoredMeanwhile;
    case BlockFate::kForgotten:
      return Misroute::kForgotten;
  }
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
  // There is nothing new to hear unless it stored or dropped something.
  const bool can_ask = !open.verdict.blocks.empty() || open.verdict.refresh;
  if (misroute == Misroute::kUnexplained && can_ask && open.asked != changes) {
    if (open.verdict.refresh) open.verdict.refresh(open.verdict);
    const WorkerEvidence evidence = ask.evidence(open.verdict);
    misroute = judge(open.verdict, evidence);
    open.asked = changes;  // of before: what came meanwhile is asked about again
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
