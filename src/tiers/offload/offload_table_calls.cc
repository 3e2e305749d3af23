// What callers, handles and the manager ask of the table.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "tiers/offload/offload_table.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

void OffloadTable::offer(std::span<const Wanted> wanted, std::span<const SequenceHash> filtered,
                         std::uint8_t priority, const std::shared_ptr<OffloadCall>& call) {
  std::vector<SequenceHash> first;  // looked for here, not by the worker at some later time
  {
    Aftermath after;
    const MutexLock lock(mu_);
    for (const Wanted& one : wanted) join(one, priority, call, after);
    counters_.filtered += filtered.size();
    for (const SequenceHash& hash : filtered)
      if (call != nullptr) call->end(hash, &OffloadProgress::filtered);
    first = next_for_deck();
    work_.notify_all();
  }
  refill(std::move(first));
  const block::Fence* before = nullptr;
  for (const Wanted& one : wanted)
    for (const block::Fence& fence : one.after) {
      if (before == nullptr || *before != fence) watch(fence);
      before = &fence;
    }
}

void OffloadTable::offered(const std::shared_ptr<OffloadCall>& call) {
  if (!call->deadline) return;
  {
    Aftermath after;
    const MutexLock lock(mu_);
    if (call->pending.empty()) return;
    deadlines_.emplace(*call->deadline, call);
    expire(after);  // it may have passed
    work_.notify_all();
  }
  refill();
}

// The callback runs on the thread that signals, or that destroys the signal; here, if the fence has settled
// since its block was recorded as blocked: nobody else would look at that block again.
void OffloadTable::watch(const block::Fence& fence) {
  fence.on_settled([weak = weak_from_this()](bool) {
    const std::shared_ptr<OffloadTable> self = weak.lock();
    if (self == nullptr) return;
    const MutexLock lock(self->mu_);
    self->fences_changed_ = true;
    self->work_.notify_all();
  });
}

// The thread that asks enforces deadlines: the worker's may be busy with a copy.
OffloadProgress OffloadTable::progress(OffloadCall& call) {
  OffloadProgress progress;
  {
    Aftermath after;
    const MutexLock lock(mu_);
    if (call.deadline) expire(after);
    progress = call.progress;
  }
  return progress;
}

Result<OffloadProgress> OffloadTable::wait(OffloadCall& call, std::optional<Clock::TimePoint> when) {
  for (;;) {
    Aftermath after;
    const MutexLock lock(mu_);
    for (;;) {
      if (call.deadline) expire(after);
      if (call.pending.empty() || (when && clock_.now() >= *when)) return call.result();
      if (!after.empty()) break;  // other calls ended; first, without the lock
      const Clock::TimePoint next =
          std::min(when.value_or(Clock::TimePoint::max()), call.deadline.value_or(Clock::TimePoint::max()));
      if (next != Clock::TimePoint::max()) {
        clock_.wait_until(call.ended, mu_, next);
      } else {
        call.ended.wait(mu_);
      }
    }
  }
}

void OffloadTable::cancel(const std::shared_ptr<OffloadCall>& call) {
  {
    Aftermath after;
    const MutexLock lock(mu_);
    expire(after);  // what is late is not cancelled
    if (call->pending.empty()) return;
    abandon(call, &OffloadProgress::cancelled, after);
  }
  refill();
}

void OffloadTable::stop() {
  const MutexLock lock(mu_);
  stopping_ = true;
  work_.notify_all();
  changed_.notify_all();
}

void OffloadTable::close() {
  Aftermath after;
  const MutexLock lock(mu_);
  stopping_ = true;
  while (count(Stage::kUpgrading) != 0) changed_.wait(mu_);  // a handle's cancel() holds blocks now
  ASHLAR_CHECK(count(Stage::kInFlight) == 0, "%zu blocks are in flight at the end of the table",
               count(Stage::kInFlight));
  while (!entries_.empty()) end(entries_.begin(), &OffloadProgress::cancelled, after);
}

bool OffloadTable::drain(std::optional<Clock::TimePoint> until) {
  const MutexLock lock(mu_);
  ++flushers_;
  work_.notify_all();
  // A fence may have passed whose callback has not run yet.
  const auto is_free = [this](const auto& blocked) ASHLAR_REQUIRES(mu_) {
    const Entry& entry = entries_.at(blocked.second);
    const auto passed = [](const Precondition& one) { return one.fence.passed(); };
    return std::ranges::all_of(entry.after, passed) && entry.may_be_written();
  };
  bool quiet = false;
  for (;;) {
    quiet = entries_.size() == count(Stage::kBlocked) && !fences_changed_ &&
            std::ranges::none_of(list(Stage::kBlocked), is_free);
    if (stopping_ || quiet || (until && clock_.now() >= *until)) break;
    if (until) {
      clock_.wait_until(changed_, mu_, *until);
    } else {
      changed_.wait(mu_);
    }
  }
  --flushers_;
  return quiet;
}

void OffloadTable::withdraw(std::span<const SequenceHash> hashes, Started started) {
  std::vector<std::pair<SequenceHash, std::uint64_t>> leaving;
  {
    Aftermath after;
    const MutexLock lock(mu_);
    for (const SequenceHash& hash : hashes) {
      const auto at = entries_.find(hash);
      if (at == entries_.end()) continue;
      Entry& entry = at->second;
      if (entry.stage != Stage::kInFlight && entry.stage != Stage::kUpgrading) {
        end(at, &OffloadProgress::cancelled, after);
        continue;
      }
      entry.withdrawn = true;
      leaving.emplace_back(hash, entry.rank.age);
      if (started == Started::kStop && entry.batch != nullptr &&
          std::ranges::find(after.stopped, entry.batch) == after.stopped.end())
        after.stopped.push_back(entry.batch);
    }
  }
  refill();
  const MutexLock lock(mu_);
  const auto is_here = [this](const auto& one) ASHLAR_REQUIRES(mu_) {
    const auto at = entries_.find(one.first);
    return at != entries_.end() && at->second.rank.age == one.second;
  };
  while (!stopping_ && std::ranges::any_of(leaving, is_here)) changed_.wait(mu_);
}

std::size_t OffloadTable::drop_queued(Later later) {
  Aftermath after;
  const MutexLock lock(mu_);
  if (later == Later::kRefuse) refusing_ = true;
  std::size_t dropped = 0;
  for (const Stage stage : {Stage::kBlocked, Stage::kWaiting, Stage::kOnDeck})
    while (!list(stage).empty()) {
      end(entries_.find(list(stage).begin()->second), &OffloadProgress::cancelled, after);
      ++dropped;
    }
  for (auto& [hash, entry] : entries_)
    if (entry.stage == Stage::kUpgrading) {
      entry.withdrawn = true;
      ++dropped;
    }
  return dropped;
}

void OffloadTable::set_priority(const SequenceHash& hash, std::uint8_t priority) {
  const MutexLock lock(mu_);
  const auto at = entries_.find(hash);
  if (at == entries_.end() || at->second.stage == Stage::kInFlight) return;
  move(at->second, Rank{static_cast<std::uint8_t>(255 - priority), at->second.rank.age});
}

OffloadCounters OffloadTable::counters() const {
  const MutexLock lock(mu_);
  OffloadCounters counters = counters_;
  counters.blocked = count(Stage::kBlocked);
  counters.queue.on_deck = count(Stage::kOnDeck);
  counters.queue.waiting = count(Stage::kWaiting) + count(Stage::kUpgrading);
  counters.queue.in_flight = count(Stage::kInFlight);
  return counters;
}

void OffloadTable::check_invariants() const {
  const MutexLock lock(mu_);
  for (std::size_t stage = 0; stage < kLists; ++stage) {
    ASHLAR_CHECK(lists_[stage].size() == counts_[stage], "%zu blocks are listed in stage %zu, of %zu",
                 lists_[stage].size(), stage, counts_[stage]);
    for (const auto& [rank, hash] : lists_[stage]) {
      const auto at = entries_.find(hash);
      ASHLAR_CHECK(at != entries_.end() && static_cast<std::size_t>(at->second.stage) == stage &&
                       at->second.rank == rank,
                   "block %s is listed in stage %zu, and its entry says otherwise", hash.to_string().c_str(),
                   stage);
    }
  }
  const std::size_t counted = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  ASHLAR_CHECK(counted == entries_.size(), "%zu blocks are counted, %zu have an entry", counted,
               entries_.size());
  const std::size_t deck = count(Stage::kOnDeck) + count(Stage::kUpgrading);
  ASHLAR_CHECK(deck <= options_.queue.on_deck, "%zu blocks are on deck or reserved; room for %zu", deck,
               options_.queue.on_deck);
  ASHLAR_CHECK(deck + count(Stage::kWaiting) <= options_.queue.on_deck + options_.queue.waiting,
               "%zu blocks wait; room for %zu", count(Stage::kWaiting), options_.queue.waiting);
  for (const auto& [hash, entry] : entries_) {
    const std::string name = hash.to_string();
    ASHLAR_CHECK(entry.hold.has_value() == (entry.stage == Stage::kOnDeck),
                 "block %s is held elsewhere than on deck", name.c_str());
    ASHLAR_CHECK((entry.batch != nullptr) == (entry.stage == Stage::kInFlight),
                 "block %s has a batch though it is not in flight, or none though it is", name.c_str());
    ASHLAR_CHECK(entry.wanted() || entry.stage == Stage::kInFlight || entry.stage == Stage::kUpgrading,
                 "block %s stays though nobody wants it", name.c_str());
    ASHLAR_CHECK(entry.after.empty() || (entry.stage != Stage::kWaiting && entry.stage != Stage::kOnDeck),
                 "block %s is queued before its preconditions have passed", name.c_str());
    for (const std::shared_ptr<OffloadCall>& call : entry.calls)
      ASHLAR_CHECK(call->pending.find(hash) != nullptr,
                   "a call still waits for block %s, which has ended for it", name.c_str());
    for (const Precondition& one : entry.after)
      ASHLAR_CHECK(one.call == nullptr ||
                       std::ranges::find(entry.calls, one.call, &std::shared_ptr<OffloadCall>::get) !=
                           entry.calls.end(),
                   "block %s waits for the precondition of a call that has ended", name.c_str());
  }
  for (const auto& [deadline, call] : deadlines_)
    ASHLAR_CHECK(call->deadline == deadline && !call->pending.empty(),
                 "a call is listed under another deadline than its own, or has ended");
}

OffloadProgress OffloadHandle::progress() const {
  return call_->table->progress(*call_);
}
bool OffloadHandle::done() const {
  const OffloadProgress now = progress();
  return now.ended() == now.total;
}
Result<OffloadProgress> OffloadHandle::wait() const {
  return call_->table->wait(*call_, {});
}
Result<OffloadProgress> OffloadHandle::wait_until(Clock::TimePoint when) const {
  return call_->table->wait(*call_, when);
}
void OffloadHandle::cancel() const {
  call_->table->cancel(call_);
}

}  // namespace ashlar::tiers
