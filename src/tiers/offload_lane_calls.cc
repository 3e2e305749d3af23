// Who wants to know about a hash is written down before the hash is offered, and the queue forgets a hash before those are
// told. So a call either hears of the copy that is under way, or finds the name free and starts another. Whoever takes a name
// out of the queue looks afterwards whether somebody joined meanwhile, and offers it again.
//
// A copy that is under way is stopped when no call wants any block of its batch any more. Whoever joins before it has ended is
// found when it ends, and the block is offered again.
#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/tiers/offload_lane.h"
#include "tiers/offload_call.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

OffloadHandle OffloadLane::offload(std::span<const SequenceHash> hashes, const OffloadOptions& options,
                                   std::span<const block::Fence> also) {
  for (const std::size_t given : {options.after.size(), also.size()})
    ASHLAR_CHECK(given <= 1 || given == hashes.size(), "%zu preconditions for %zu blocks", given,
                 hashes.size());
  const auto call =
      std::make_shared<OffloadCall>(hashes.size(), options.priority, options.deadline, clock_, link_);
  for (const SequenceHash& hash : hashes) call->pending(hash);
  std::unordered_set<SequenceHash> seen;
  std::vector<std::size_t> accepted;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (!seen.insert(hashes[i]).second) continue;  // named twice
    const OffloadCandidate candidate{hashes[i], options.priority,
                                     options_.uses ? options_.uses(hashes[i]) : 0, &to_};
    if (options_.policy(candidate)) {
      accepted.push_back(i);
    } else {
      call->end(hashes[i], &OffloadProgress::filtered, {});
    }
  }
  std::vector<std::size_t> free;
  {
    const MutexLock lock(mu_);
    counters_.filtered += seen.size() - accepted.size();
    if (options.deadline && !accepted.empty()) deadlines_.emplace(*options.deadline, call);
    for (const std::size_t i : accepted) {
      calls_[hashes[i]].push_back(call);
      unwanted_.erase(hashes[i]);
      std::vector<block::Fence> waits;
      for (const std::span<const block::Fence> fences :
           {std::span<const block::Fence>(options.after), also}) {
        if (fences.empty()) continue;
        const block::Fence& fence = fences[fences.size() == 1 ? 0 : i];
        if (!fence.passed()) waits.push_back(fence);
      }
      const auto found = blocked_.find(hashes[i]);
      if (found == blocked_.end() && waits.empty()) {
        free.push_back(i);
        continue;
      }
      // Who has no precondition of its own waits with those who have.
      Blocked& blocked = found == blocked_.end() ? blocked_[hashes[i]] : found->second;
      blocked.priority = std::max(blocked.priority, options.priority);
      blocked.after.insert(blocked.after.end(), waits.begin(), waits.end());
    }
  }
  for (const std::span<const block::Fence> fences : {std::span<const block::Fence>(options.after), also})
    for (const block::Fence& fence : fences)
      fence.on_passed([link = link_] {
        const MutexLock lock(link->mu);
        if (link->lane == nullptr) return;
        const MutexLock its_lock(link->lane->mu_);
        link->lane->changed_.notify_all();
      });
  std::size_t offered = 0;
  for (const std::size_t i : free) {
    offer(hashes[i], options.priority);
    if (++offered == options_.full_batch) wake();  // the lane begins while the rest is offered
  }
  wake();
  return OffloadHandle(call);
}

void OffloadLane::wake() {
  const MutexLock lock(mu_);
  if (!oldest_) oldest_ = clock_.now();
  changed_.notify_all();
}

void OffloadLane::suggest(std::span<const SequenceHash> hashes, std::uint8_t priority) {
  std::uint64_t filtered = 0;
  for (const SequenceHash& hash : hashes) {
    {
      const MutexLock lock(mu_);
      if (blocked_.contains(hash)) continue;  // it goes when its precondition has passed
    }
    if (options_.policy({hash, priority, options_.uses ? options_.uses(hash) : 0, &to_})) {
      offer(hash, priority, true);
    } else {
      ++filtered;
    }
  }
  {
    const MutexLock lock(mu_);
    counters_.filtered += filtered;
  }
  wake();
}

void OffloadLane::offer(const SequenceHash& hash, std::uint8_t priority, bool for_good) {
  const Offer answer = queue_->offer(hash, priority, for_good);
  if (answer == Offer::kGone) end(hash, &OffloadProgress::gone, {});
  if (answer == Offer::kNoRoom) end(hash, &OffloadProgress::refused, {});
}

// The queue does not know the hash any more.
void OffloadLane::end(const SequenceHash& hash, std::size_t OffloadProgress::* outcome,
                      const std::optional<Error>& error) {
  const Ended ended{hash, outcome};
  end(std::span(&ended, 1), error);
}

void OffloadLane::end(std::span<const Ended> ended, const std::optional<Error>& error) {
  std::vector<std::vector<std::shared_ptr<OffloadCall>>> calls(ended.size());
  {
    const MutexLock lock(mu_);
    for (std::size_t i = 0; i < ended.size(); ++i) {
      if (ended[i].outcome == &OffloadProgress::gone) ++counters_.gone;
      unwanted_.erase(ended[i].hash);
      const auto found = calls_.find(ended[i].hash);
      if (found == calls_.end()) continue;
      calls[i] = std::move(found->second);
      calls_.erase(found);
    }
  }
  for (std::size_t i = 0; i < ended.size(); ++i)
    for (const std::shared_ptr<OffloadCall>& call : calls[i])
      tell(call, ended[i].hash, ended[i].outcome,
           ended[i].outcome == &OffloadProgress::failed ? error : std::nullopt);
}

void OffloadLane::tell(const std::shared_ptr<OffloadCall>& call, const SequenceHash& hash,
                       std::size_t OffloadProgress::* outcome, const std::optional<Error>& error) {
  if (!call->end(hash, outcome, error) || !call->deadline()) return;
  const MutexLock lock(mu_);
  deadlines_.erase({*call->deadline(), call});
}

// The call stays written down until the name is out of the queue: if the lane takes it first, the call hears what became of it.
void OffloadLane::forget(const SequenceHash& hash, const std::shared_ptr<OffloadCall>& call) {
  bool last = false;
  {
    const MutexLock lock(mu_);
    const auto found = calls_.find(hash);
    if (found == calls_.end() || std::ranges::find(found->second, call) == found->second.end()) return;
    last = found->second.size() == 1;
    if (!last) std::erase(found->second, call);  // others still want it
    if (last && blocked_.erase(hash) != 0) {
      calls_.erase(found);
      last = false;
    }
  }
  if (last && !let_go(hash, call)) return;
  tell(call, hash, call->given_up(), {});
}

bool OffloadLane::let_go(const SequenceHash& hash, const std::shared_ptr<OffloadCall>& call) {
  const Release released = queue_->release(hash);
  if (released == Release::kUnknown) return false;  // it ends just now
  std::optional<std::uint8_t> again;
  std::vector<std::shared_ptr<Batch>> stop;
  bool out = true;
  {
    const MutexLock lock(mu_);
    changed_.notify_all();  // another may be on deck now
    const auto found = calls_.find(hash);
    if (found == calls_.end()) return false;
    std::vector<std::shared_ptr<OffloadCall>>& calls = found->second;
    if (released == Release::kInFlight && calls.size() == 1 && calls.front() == call) {
      out = false;
      unwanted_.insert(hash);
      std::ranges::copy_if(batches_, std::back_inserter(stop),
                           [this](const auto& batch) ASHLAR_REQUIRES(mu_) { return unwanted(*batch); });
    } else {
      std::erase(calls, call);
      // Somebody joined meanwhile.
      if (!calls.empty() && released == Release::kOut) again = calls.front()->priority();
      if (calls.empty()) calls_.erase(found);
    }
  }
  for (const std::shared_ptr<Batch>& batch : stop) batch->control.cancel();
  if (again) offer(hash, *again);
  return out;
}

bool OffloadLane::unwanted(const Batch& batch) const {
  return std::ranges::all_of(batch.hashes, [this](const SequenceHash& hash)
                                               ASHLAR_REQUIRES(mu_) { return unwanted_.contains(hash); });
}

void OffloadLane::stopped(const SequenceHash& hash, std::uint8_t priority, bool for_good) {
  std::vector<std::pair<std::shared_ptr<OffloadCall>, std::size_t OffloadProgress::*>> given_up;
  bool wanted = for_good;
  {
    const MutexLock lock(mu_);
    ++counters_.stopped;
    unwanted_.erase(hash);
    const auto found = calls_.find(hash);
    if (found != calls_.end()) {
      for (const std::shared_ptr<OffloadCall>& call : found->second)
        if (std::size_t OffloadProgress::* const how = call->given_up()) given_up.emplace_back(call, how);
      for (const auto& [call, how] : given_up) std::erase(found->second, call);
      wanted |= !found->second.empty();
      if (found->second.empty()) calls_.erase(found);
    }
  }
  for (const auto& [call, how] : given_up) tell(call, hash, how, {});
  if (wanted) offer(hash, priority, for_good);
}

void OffloadLane::expire() {
  std::vector<std::shared_ptr<OffloadCall>> due;
  {
    const MutexLock lock(mu_);
    const Clock::TimePoint now = clock_.now();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now)
      due.push_back(std::move(deadlines_.extract(deadlines_.begin()).value().second));
  }
  for (const std::shared_ptr<OffloadCall>& call : due)
    for (const SequenceHash& hash : call->pending_hashes()) forget(hash, call);
}

void OffloadLane::withdraw(std::span<const SequenceHash> hashes) {
  for (const SequenceHash& hash : hashes) {
    bool waited = false;
    {
      const MutexLock lock(mu_);
      waited = blocked_.erase(hash) != 0;
    }
    if (queue_->cancel(hash) || waited) end(hash, &OffloadProgress::cancelled, {});
  }
  const MutexLock lock(mu_);
  changed_.notify_all();
  while (!stopping_ &&
         std::ranges::any_of(hashes, [&](const SequenceHash& hash) { return queue_->in_flight(hash); }))
    changed_.wait(mu_);
}

std::size_t OffloadLane::give_up() {
  std::vector<SequenceHash> waiting;
  std::size_t count = 0;
  {
    const MutexLock lock(mu_);
    count = blocked_.size();
    blocked_.clear();
  }
  count += queue_->clear();
  {
    const MutexLock lock(mu_);
    for (const auto& [hash, calls] : calls_)
      if (!queue_->in_flight(hash)) waiting.push_back(hash);
  }
  for (const SequenceHash& hash : waiting) end(hash, &OffloadProgress::cancelled, {});
  return count;
}

OffloadProgress OffloadHandle::progress() const {
  return call_->progress();
}
bool OffloadHandle::done() const {
  const OffloadProgress progress = call_->progress();
  return progress.ended() == progress.total;
}
// Who waits sees to the deadline too: the lane's thread may be busy with a copy.
bool OffloadHandle::wait_for_end(std::optional<Clock::TimePoint> when) const {
  const std::optional<Clock::TimePoint> deadline = call_->deadline();
  if (deadline && (!when || *deadline < *when)) {
    if (call_->wait(deadline)) return true;
    const MutexLock lock(call_->link()->mu);
    if (call_->link()->lane != nullptr) call_->link()->lane->expire();
  }
  return call_->wait(when);
}
Result<OffloadProgress> OffloadHandle::wait() const {
  static_cast<void>(wait_for_end({}));
  return call_->result();
}
Result<OffloadProgress> OffloadHandle::wait_until(Clock::TimePoint when) const {
  static_cast<void>(wait_for_end(when));
  return call_->result();
}
void OffloadHandle::cancel() const {
  call_->cancel();
  const MutexLock lock(call_->link()->mu);
  if (call_->link()->lane == nullptr) return;
  OffloadLane& lane = *call_->link()->lane;
  for (const SequenceHash& hash : call_->pending_hashes()) lane.forget(hash, call_);
  const MutexLock its_lock(lane.mu_);
  lane.changed_.notify_all();  // those who drain: there may be nothing left
}

}  // namespace ashlar::tiers
