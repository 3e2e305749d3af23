// Waiters are recorded before the hash is queued, and the queue forgets a hash before its waiters are told.
// So a call either learns of the copy in flight, or finds the hash free and starts another. Code that takes a
// hash out of the queue checks afterwards whether a caller joined meanwhile, and offers it again.
//
// A call that is cancelled or late ends at once. A hash that no call wants then leaves the queue; a copy in
// flight is stopped when no call wants any block of its batch. A call that joins before the copy has ended is
// found when it ends, and the block is offered again.
#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "tiers/offload/offload_call.h"
#include "tiers/offload/offload_worker.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

OffloadHandle OffloadWorker::offload(std::span<const SequenceHash> hashes, const OffloadOptions& options,
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
      std::vector<std::pair<const OffloadCall*, block::Fence>> waits;
      for (const std::span<const block::Fence> fences :
           {std::span<const block::Fence>(options.after), also}) {
        if (fences.empty()) continue;
        const block::Fence& fence = fences[fences.size() == 1 ? 0 : i];
        if (!fence.passed()) waits.emplace_back(call.get(), fence);
      }
      const auto found = blocked_.find(hashes[i]);
      if (found == blocked_.end() && waits.empty()) {
        free.push_back(i);
        continue;
      }
      // A caller without a precondition of its own waits with those that have one.
      Blocked& blocked = found == blocked_.end() ? blocked_[hashes[i]] : found->second;
      blocked.priority = std::max(blocked.priority, options.priority);
      blocked.after.insert(blocked.after.end(), waits.begin(), waits.end());
    }
  }
  for (const std::span<const block::Fence> fences : {std::span<const block::Fence>(options.after), also})
    for (const block::Fence& fence : fences) wake_when_passed(fence);
  std::size_t offered = 0;
  for (const std::size_t i : free) {
    offer(hashes[i], options.priority);
    if (++offered == options_.full_batch) wake();  // the worker starts while the rest is offered
  }
  wake();
  // A call abandoned or ended before its blocks were offered could not take them out.
  if (call->abandoned() != nullptr || call->ended()) {
    expire();
    for (const std::size_t i : accepted) drop_unwanted(hashes[i]);
  }
  return OffloadHandle(call);
}

void OffloadWorker::wake() {
  const MutexLock lock(mu_);
  if (!oldest_) oldest_ = clock_.now();
  changed_.notify_all();
}

void OffloadWorker::suggest(std::span<const SequenceHash> hashes, std::uint8_t priority,
                            std::span<const block::Fence> after) {
  ASHLAR_CHECK(after.size() <= 1 || after.size() == hashes.size(), "%zu preconditions for %zu blocks",
               after.size(), hashes.size());
  std::uint64_t filtered = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const SequenceHash& hash = hashes[i];
    if (!options_.policy({hash, priority, options_.uses ? options_.uses(hash) : 0, &to_})) {
      ++filtered;
      continue;
    }
    const block::Fence* const fence = after.empty() ? nullptr : &after[after.size() == 1 ? 0 : i];
    bool fresh = false;
    {
      const MutexLock lock(mu_);
      auto blocked = blocked_.find(hash);
      if (blocked == blocked_.end() && fence != nullptr && !fence->passed()) {
        blocked = blocked_.try_emplace(hash).first;
        fresh = true;
      }
      if (blocked != blocked_.end()) {  // offered once its precondition has passed
        Blocked& waits = blocked->second;
        fresh |= fence != nullptr && !waits.permanently;
        if (fresh) waits.after.emplace_back(nullptr, *fence);
        waits.permanently = true;
        waits.priority = std::max(waits.priority, priority);
        if (!fresh) continue;
      }
    }
    if (fresh) {
      wake_when_passed(*fence);
    } else {
      offer(hash, priority, true);
    }
  }
  {
    const MutexLock lock(mu_);
    counters_.filtered += filtered;
  }
  wake();
}

void OffloadWorker::wake_when_passed(const block::Fence& fence) {
  if (fence.passed()) return;
  fence.on_passed([link = link_] {
    const MutexLock lock(link->mu);
    if (link->worker == nullptr) return;
    const MutexLock its_lock(link->worker->mu_);
    link->worker->changed_.notify_all();
  });
}

void OffloadWorker::offer(const SequenceHash& hash, std::uint8_t priority, bool permanently) {
  const Offer answer = queue_->offer(hash, priority, permanently);
  if (answer == Offer::kGone) end(hash, &OffloadProgress::gone, {});
  if (answer == Offer::kNoRoom) end(hash, &OffloadProgress::refused, {});
}

// The queue no longer knows the hash.
void OffloadWorker::end(const SequenceHash& hash, std::size_t OffloadProgress::* outcome,
                        const std::optional<Error>& error) {
  const Ended ended{hash, outcome};
  end(std::span(&ended, 1), error);
}

void OffloadWorker::end(std::span<const Ended> ended, const std::optional<Error>& error) {
  std::vector<std::vector<std::shared_ptr<OffloadCall>>> calls(ended.size());
  {
    const MutexLock lock(mu_);
    for (std::size_t i = 0; i < ended.size(); ++i) {
      if (ended[i].outcome == &OffloadProgress::gone) ++counters_.gone;
      leave_blocked(ended[i].hash, nullptr);
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

void OffloadWorker::tell(const std::shared_ptr<OffloadCall>& call, const SequenceHash& hash,
                         std::size_t OffloadProgress::* outcome, const std::optional<Error>& error) {
  if (!call->end(hash, outcome, error) || !call->deadline()) return;
  const MutexLock lock(mu_);
  deadlines_.erase({*call->deadline(), call});
}

void OffloadWorker::forget(const SequenceHash& hash, const std::shared_ptr<OffloadCall>& call) {
  {
    const MutexLock lock(mu_);
    const auto found = calls_.find(hash);
    if (found == calls_.end() || std::erase(found->second, call) == 0) return;
    if (found->second.empty()) calls_.erase(found);
    leave_blocked(hash, call.get());
    changed_.notify_all();  // other calls may have waited for its precondition
  }
  tell(call, hash, call->abandoned(), {});
  drop_unwanted(hash);
}

// A block offered permanently keeps the preconditions known at that time: its bytes may not be written yet.
void OffloadWorker::leave_blocked(const SequenceHash& hash, const OffloadCall* call) {
  const auto blocked = blocked_.find(hash);
  if (blocked == blocked_.end()) return;
  Blocked& waits = blocked->second;
  const auto leaves = [&](const auto& wait) { return call == nullptr || wait.first == call; };
  if (waits.permanently) {
    for (auto& wait : waits.after)
      if (leaves(wait)) wait.first = nullptr;
    return;
  }
  std::erase_if(waits.after, leaves);
  if (call == nullptr || !calls_.contains(hash)) blocked_.erase(blocked);
}

void OffloadWorker::drop_unwanted(const SequenceHash& hash) {
  bool done = false;
  while (!done) {
    {
      const MutexLock lock(mu_);
      if (calls_.contains(hash)) return;
      between_.insert(hash);
    }
    const Release released = queue_->release(hash);
    std::optional<std::uint8_t> again;
    std::vector<std::shared_ptr<Batch>> stop;
    {
      const MutexLock lock(mu_);
      again = wanted_by(hash);
      if (released == Release::kInFlight && !again)
        std::ranges::copy_if(batches_, std::back_inserter(stop),
                             [this](const auto& batch) ASHLAR_REQUIRES(mu_) { return unwanted(*batch); });
      if (released != Release::kOut || blocked_.contains(hash)) again.reset();
    }
    for (const std::shared_ptr<Batch>& batch : stop) batch->control.cancel();
    if (again) offer(hash, *again);  // a caller joined meanwhile, and may have cancelled since
    done = !again;
    arrived_somewhere(hash);
  }
}

void OffloadWorker::arrived_somewhere(const SequenceHash& hash) {
  const MutexLock lock(mu_);
  const auto found = between_.find(hash);
  ASHLAR_CHECK(found != between_.end(), "block %s arrives in the queue but was not in transition",
               hash.to_string().c_str());
  between_.erase(found);
  if (!oldest_) oldest_ = clock_.now();
  changed_.notify_all();  // another may be on deck now
}

std::optional<std::uint8_t> OffloadWorker::wanted_by(const SequenceHash& hash) const {
  const auto found = calls_.find(hash);
  if (found == calls_.end()) return std::nullopt;
  std::uint8_t highest = 0;
  for (const std::shared_ptr<OffloadCall>& call : found->second)
    highest = std::max(highest, call->priority());
  return highest;
}

bool OffloadWorker::unwanted(const Batch& batch) const {
  return std::ranges::all_of(batch.members, [this](const Member& member) ASHLAR_REQUIRES(mu_) {
    return !calls_.contains(member.hash) && !queue_->is_permanent(member.hash);
  });
}

void OffloadWorker::stopped(const Member& member) {
  std::optional<std::uint8_t> priority;
  bool withdrawn = false;
  {
    const MutexLock lock(mu_);
    ++counters_.stopped;
    withdrawn = withdrawn_.contains(member.hash);
    priority = wanted_by(member.hash);
    if (member.permanently) priority = std::max(member.priority, priority.value_or(0));
    if (const auto blocked = blocked_.find(member.hash); blocked != blocked_.end() && priority) {
      // It is offered once its precondition has passed.
      blocked->second.permanently |= member.permanently;
      blocked->second.priority = std::max(blocked->second.priority, *priority);
      priority.reset();
    }
  }
  if (withdrawn) end(member.hash, &OffloadProgress::cancelled, {});
  if (withdrawn || !priority) return;
  offer(member.hash, *priority, member.permanently);
  if (!member.permanently) drop_unwanted(member.hash);
}

void OffloadWorker::expire() {
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

// A stopped copy may be re-offered before its batch has ended, so the loop checks again after each wait.
void OffloadWorker::withdraw(std::span<const SequenceHash> hashes, Started started) {
  const auto has_some = [&](const std::shared_ptr<Batch>& batch) {
    return std::ranges::any_of(batch->members, [&](const Member& member) {
      return std::ranges::find(hashes, member.hash) != hashes.end();
    });
  };
  if (started == Started::kStop) {
    const MutexLock lock(mu_);
    withdrawn_.insert(hashes.begin(), hashes.end());
  }
  for (bool again = true; again;) {
    again = false;
    for (const SequenceHash& hash : hashes) {
      bool waited = false;
      {
        const MutexLock lock(mu_);
        waited = blocked_.erase(hash) != 0;
      }
      if (!queue_->cancel(hash) && !waited) continue;
      again = true;
      end(hash, &OffloadProgress::cancelled, {});
    }
    if (started == Started::kStop) {
      std::vector<std::shared_ptr<Batch>> stop;
      {
        const MutexLock lock(mu_);
        std::ranges::copy_if(batches_, std::back_inserter(stop), has_some);
      }
      for (const std::shared_ptr<Batch>& batch : stop) batch->control.cancel();
    }
    const MutexLock lock(mu_);
    changed_.notify_all();
    const auto on_its_way = [this](const SequenceHash& hash) ASHLAR_REQUIRES(mu_) {
      return queue_->in_flight(hash) || between_.contains(hash) ||
             std::ranges::any_of(batches_, [&](const auto& batch) {
               return std::ranges::find(batch->members, hash, &Member::hash) != batch->members.end();
             });
    };
    while (!stopping_ && std::ranges::any_of(hashes, on_its_way)) {
      again = true;
      changed_.wait(mu_);
      if (started == Started::kStop) break;  // there may be another batch to stop
    }
    again &= !stopping_;
  }
  if (started == Started::kFinish) return;
  const MutexLock lock(mu_);
  for (const SequenceHash& hash : hashes) {
    const auto found = withdrawn_.find(hash);
    ASHLAR_CHECK(found != withdrawn_.end(), "block %s was withdrawn, but another call ended its withdrawal",
                 hash.to_string().c_str());
    withdrawn_.erase(found);
  }
}

std::size_t OffloadWorker::drop_queued() {
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
  const MutexLock lock(mu_);
  changed_.notify_all();  // wakes drain()
  return count;
}

OffloadProgress OffloadHandle::progress() const {
  see_to_deadline();
  return call_->progress();
}
bool OffloadHandle::done() const {
  const OffloadProgress now = progress();
  return now.ended() == now.total;
}
// The calling thread enforces the deadline: the worker's thread may be busy with a copy.
void OffloadHandle::see_to_deadline() const {
  if (!call_->deadline() || call_->abandoned() == nullptr) return;
  const MutexLock lock(call_->link()->mu);
  if (call_->link()->worker != nullptr) call_->link()->worker->expire();
}
void OffloadHandle::wait_for_end(std::optional<Clock::TimePoint> when) const {
  const std::optional<Clock::TimePoint> deadline = call_->deadline();
  if (deadline && (!when || *deadline < *when)) {
    if (call_->wait(deadline)) return;
    see_to_deadline();
  }
  call_->wait(when);
}
Result<OffloadProgress> OffloadHandle::wait() const {
  wait_for_end({});
  return call_->result();
}
Result<OffloadProgress> OffloadHandle::wait_until(Clock::TimePoint when) const {
  wait_for_end(when);
  return call_->result();
}
void OffloadHandle::cancel() const {
  call_->cancel();
  const MutexLock lock(call_->link()->mu);
  if (call_->link()->worker == nullptr) return;
  OffloadWorker& worker = *call_->link()->worker;
  worker.expire();  // ends calls whose deadline has passed
  for (const SequenceHash& hash : call_->pending_hashes()) worker.forget(hash, call_);
  const MutexLock its_lock(worker.mu_);
  worker.changed_.notify_all();  // wakes drain(): the queue may be empty
}

}  // namespace ashlar::tiers
