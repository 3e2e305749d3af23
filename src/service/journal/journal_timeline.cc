#include "service/journal/journal_timeline.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::service {

void JournalTotals::count(const Decision& decision) {
  ++decisions;
  ++states[static_cast<std::size_t>(decision.choice().state)];
  if (decision.is_estimate) return;
  prompt_tokens += decision.prompt_tokens;
  available_tokens += decision.available_tokens;
  cached_tokens += decision.cached_tokens;
  for (std::size_t tier = 0; tier < hit_blocks.size(); ++tier)
    hit_blocks[tier] += decision.choice().blocks[tier];
  for (std::size_t reason = 0; reason < missed_blocks.size(); ++reason)
    missed_blocks[reason] += decision.missed[reason];
}

Result<std::unique_ptr<JournalTimeline>> JournalTimeline::read(std::span<const std::string> files,
                                                               const JournalKey& key, std::size_t max_bytes) {
  auto timeline = std::make_unique<JournalTimeline>();
  timeline->max_bytes_ = max_bytes;
  ASHLAR_TRY(timeline->report_,
             replay_journal(
                 files, key,
                 [&](const Decision& decision, const std::string& group, ReplayVerdict verdict) {
                   timeline->add(decision, group, verdict);
                 },
                 [&](Clock::TimePoint time, const std::function<std::vector<WorkerLoad>()>& loads) {
                   timeline->add_moment(time, loads);
                 }));
  if (timeline->decisions_.empty())
    return Error(ErrorCode::kNotFound, files.front() + " has no decisions to show");
  return timeline;
}

void JournalTimeline::add(const Decision& decision, const std::string& group, ReplayVerdict verdict) {
  totals_.count(decision);
  if (totals_.decisions == 1) begin_ = decision.time;
  end_ = std::max(end_, decision.time);
  const auto bytes_of = [](const Made& made) {
    return sizeof(Made) + made.group.capacity() + made.decision.candidates.capacity() * sizeof(Candidate);
  };
  decisions_.push_back({.decision = decision, .group = group, .verdict = verdict, .totals = totals_});
  bytes_ += bytes_of(decisions_.back());
  while (bytes_ > max_bytes_ && decisions_.size() > 1) {
    ASHLAR_DCHECK(bytes_ >= bytes_of(decisions_.front()), "each was counted");
    bytes_ -= bytes_of(decisions_.front());
    decisions_.pop_front();
    ++left_out_;
  }
}

void JournalTimeline::add_moment(Clock::TimePoint time,
                                 const std::function<std::vector<WorkerLoad>()>& loads) {
  if (totals_.decisions == 0) return;  // before anything that can be shown
  end_ = std::max(end_, time);
  if (!moments_.empty() && time < moments_.back().time + apart_) return;
  moments_.push_back({.time = time, .totals = totals_, .loads = loads()});
  loads_ += moments_.back().loads.size();
  if (moments_.size() >= 2 * kMostMoments || (loads_ > kMostLoads && moments_.size() > 2)) thin_moments();
}

// Every second one stays, and those to come are as far apart as these are on average.
void JournalTimeline::thin_moments() {
  const Clock::Duration span = moments_.back().time - moments_.front().time;
  apart_ = std::max(apart_, 2 * span / static_cast<Clock::Duration::rep>(moments_.size()));
  std::size_t kept = 0;
  for (std::size_t i = 0; i < moments_.size(); i += 2, ++kept)
    if (kept != i) moments_[kept] = std::move(moments_[i]);
  moments_.resize(kept);
  loads_ = 0;
  for (const Moment& moment : moments_) loads_ += moment.loads.size();
}

std::size_t JournalTimeline::made_until(Clock::TimePoint time) const {
  const auto after =
      std::ranges::upper_bound(decisions_, time, {}, [](const Made& made) { return made.decision.time; });
  return static_cast<std::size_t>(after - decisions_.begin());
}

const JournalTimeline::Made* JournalTimeline::find(DecisionId id) const {
  const auto found =
      std::ranges::lower_bound(decisions_, id, {}, [](const Made& made) { return made.decision.id; });
  return found != decisions_.end() && found->decision.id == id ? &*found : nullptr;
}

const JournalTimeline::Moment* JournalTimeline::moment_at(Clock::TimePoint time) const {
  const auto after = std::ranges::upper_bound(moments_, time, {}, &Moment::time);
  return after == moments_.begin() ? nullptr : &*std::prev(after);
}

}  // namespace ashlar::service
