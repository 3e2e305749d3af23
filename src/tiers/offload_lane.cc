// Who wants to know about a hash is written down before the hash is offered, and the queue forgets a hash before those are
// told. So a call either hears of the copy that is under way, or finds the name free and starts another. Whoever takes a name
// out of the queue looks afterwards whether somebody joined meanwhile, and offers it again.
#include "ashlar/tiers/offload_lane.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"
#include "tiers/offload_call.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

namespace {

constexpr Clock::Duration kLookAgain = std::chrono::milliseconds(50);

}  // namespace

Result<void> OffloadLaneOptions::validate() const {
  if (batch_blocks == 0 || full_batch == 0 || full_batch > batch_blocks || full_batch > queue.on_deck)
    return make_error(ErrorCode::kInvalidArgument,
                      "full_batch is %zu; it is at least 1 and at most batch_blocks (%zu) and on_deck (%zu)",
                      full_batch, batch_blocks, queue.on_deck);
  if (batch_bytes == 0) return make_error(ErrorCode::kInvalidArgument, "batch_bytes is 0; nothing would go");
  if (max_wait < Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "max_wait is negative");
  if (!policy)
    return make_error(ErrorCode::kInvalidArgument, "policy is empty; every_block() lets all through");
  return queue.validate();
}

OffloadLane::OffloadLane(TierPool& from, TierPool& to, Begin begin, OffloadLaneOptions options,
                         Arrived arrived)
    : to_(to),
      begin_(std::move(begin)),
      options_(std::move(options)),
      arrived_(std::move(arrived)),
      clock_(options_.clock == nullptr ? Clock::real() : *options_.clock),
      link_(std::make_shared<LaneLink>()),
      largest_batch_(std::clamp<std::uint64_t>(
          options_.batch_bytes / std::max<std::uint64_t>(1, from.block_bytes()), 1, options_.batch_blocks)) {
  const MutexLock lock(link_->mu);
  link_->lane = this;
}

Result<std::unique_ptr<OffloadLane>> OffloadLane::create(TierPool& from, TierPool& to, Begin begin,
                                                         OffloadLaneOptions options, Arrived arrived) {
  if (const Result<void> valid = options.validate(); !valid) return valid.error();
  std::unique_ptr<OffloadLane> lane(
      new OffloadLane(from, to, std::move(begin), std::move(options), std::move(arrived)));
  Result<std::unique_ptr<OffloadQueue>> queue = OffloadQueue::create(
      lane->options_.queue, [&from](const SequenceHash& hash) { return from.hold(hash); },
      [raw = lane.get()](const SequenceHash& hash, Offer why) {
        raw->end(hash, why == Offer::kNoRoom ? &OffloadProgress::refused : &OffloadProgress::gone, {});
      });
  if (!queue) return queue.error();
  lane->queue_ = *std::move(queue);
  if (const Result<void> started = start_thread(&lane->thread_, [raw = lane.get()] { raw->run(); }); !started)
    return started.error();
  return lane;
}

OffloadLane::~OffloadLane() {
  {
    const MutexLock lock(link_->mu);
    link_->lane = nullptr;
  }
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (queue_ != nullptr) queue_->clear();
  std::vector<SequenceHash> left;
  {
    const MutexLock lock(mu_);
    for (const auto& [hash, calls] : calls_) left.push_back(hash);
  }
  for (const SequenceHash& hash : left) end(hash, &OffloadProgress::cancelled, {});
}

OffloadHandle OffloadLane::offload(std::span<const SequenceHash> hashes, const OffloadOptions& options) {
  ASHLAR_CHECK(options.after.size() <= 1 || options.after.size() == hashes.size(),
               "%zu preconditions for %zu blocks", options.after.size(), hashes.size());
  const auto call = std::make_shared<OffloadCall>(hashes.size(), options.priority, clock_, link_);
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
    for (const std::size_t i : accepted) {
      calls_[hashes[i]].push_back(call);
      const block::Fence* const after =
          options.after.empty() ? nullptr : &options.after[options.after.size() == 1 ? 0 : i];
      const bool waits = after != nullptr && !after->passed();
      const auto found = blocked_.find(hashes[i]);
      if (found == blocked_.end() && !waits) {
        free.push_back(i);
        continue;
      }
      // Who has no precondition of its own waits with those who have.
      Blocked& blocked = found == blocked_.end() ? blocked_[hashes[i]] : found->second;
      blocked.priority = std::max(blocked.priority, options.priority);
      if (waits) blocked.after.push_back(*after);
    }
  }
  for (const block::Fence& after : options.after)
    after.on_passed([link = link_] {
      const MutexLock lock(link->mu);
      if (link->lane == nullptr) return;
      const MutexLock its_lock(link->lane->mu_);
      link->lane->changed_.notify_all();
    });
  for (const std::size_t i : free) offer(hashes[i], options.priority);
  const MutexLock lock(mu_);
  if (!oldest_) oldest_ = clock_.now();
  changed_.notify_all();
  return OffloadHandle(call);
}

void OffloadLane::suggest(std::span<const SequenceHash> hashes, std::uint8_t priority) {
  std::uint64_t filtered = 0;
  for (const SequenceHash& hash : hashes) {
    {
      const MutexLock lock(mu_);
      if (blocked_.contains(hash)) continue;  // it goes when its precondition has passed
    }
    if (options_.policy({hash, priority, options_.uses ? options_.uses(hash) : 0, &to_})) {
      offer(hash, priority);
    } else {
      ++filtered;
    }
  }
  const MutexLock lock(mu_);
  counters_.filtered += filtered;
  if (!oldest_) oldest_ = clock_.now();
  changed_.notify_all();
}

void OffloadLane::offer(const SequenceHash& hash, std::uint8_t priority) {
  const Offer answer = queue_->offer(hash, priority);
  if (answer == Offer::kGone) end(hash, &OffloadProgress::gone, {});
  if (answer == Offer::kNoRoom) end(hash, &OffloadProgress::refused, {});
}

void OffloadLane::unblock() {
  std::vector<std::pair<SequenceHash, std::uint8_t>> free;
  std::vector<SequenceHash> hopeless;
  {
    const MutexLock lock(mu_);
    for (auto at = blocked_.begin(); at != blocked_.end();) {
      const Blocked& blocked = at->second;
      const bool abandoned = std::ranges::any_of(
          blocked.after, [](const block::Fence& fence) { return fence.abandoned() && !fence.passed(); });
      if (!abandoned && !blocked.passed()) {
        ++at;
        continue;
      }
      if (abandoned) hopeless.push_back(at->first);
      if (!abandoned) free.emplace_back(at->first, blocked.priority);
      at = blocked_.erase(at);
    }
  }
  for (const auto& [hash, priority] : free) offer(hash, priority);
  for (const SequenceHash& hash : hopeless)
    end(hash, &OffloadProgress::failed,
        make_error(ErrorCode::kCancelled, "the precondition of block %s was abandoned and can never pass",
                   hash.to_string().c_str()));
}

bool OffloadLane::Blocked::passed() const {
  return std::ranges::all_of(after, [](const block::Fence& fence) { return fence.passed(); });
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
      const auto found = calls_.find(ended[i].hash);
      if (found == calls_.end()) continue;
      calls[i] = std::move(found->second);
      calls_.erase(found);
    }
  }
  for (std::size_t i = 0; i < ended.size(); ++i)
    for (const std::shared_ptr<OffloadCall>& call : calls[i])
      call->end(ended[i].hash, ended[i].outcome,
                ended[i].outcome == &OffloadProgress::failed ? error : std::nullopt);
}

// The call stays written down until the name is out of the queue: if the lane takes it first, it arrives, and the call hears
// of that.
void OffloadLane::forget(const SequenceHash& hash, const std::shared_ptr<OffloadCall>& call) {
  bool mine = false;
  {
    const MutexLock lock(mu_);
    const auto found = calls_.find(hash);
    if (found == calls_.end() || std::ranges::find(found->second, call) == found->second.end()) return;
    mine = found->second.size() == 1;
    if (!mine) std::erase(found->second, call);  // others still want it
    if (mine && blocked_.erase(hash) != 0) {
      calls_.erase(found);
      mine = false;
    }
  }
  if (mine) {
    if (!queue_->cancel(hash)) return;  // it arrives
    std::optional<std::uint8_t> again;
    {
      const MutexLock lock(mu_);
      const auto found = calls_.find(hash);
      if (found != calls_.end()) {
        std::erase(found->second, call);
        if (found->second.empty()) {
          calls_.erase(found);
        } else {
          again = found->second.front()->priority();  // somebody joined meanwhile
        }
      }
      changed_.notify_all();  // another may be on deck now
    }
    if (again) offer(hash, *again);
  }
  call->end(hash, &OffloadProgress::cancelled, {});
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

std::optional<Clock::TimePoint> OffloadLane::next_batch() {
  const OffloadQueueCounters queue = queue_->counters();
  if (queue.on_deck + queue.waiting == 0) {
    oldest_.reset();
    return std::nullopt;
  }
  if (!oldest_) oldest_ = clock_.now();
  const bool enough = flushers_ != 0 || queue.on_deck >= std::min(options_.full_batch, largest_batch_);
  const Clock::Duration wait =
      enough ? Clock::Duration::zero() : std::min(options_.max_wait, Clock::TimePoint::max() - *oldest_);
  return std::max(not_before_, *oldest_ + wait);
}

bool OffloadLane::wait_for_batch(bool wait) {
  for (;;) {
    unblock();
    const MutexLock lock(mu_);
    if (wait) moving_ = false;
    if (stopping_) return false;
    std::optional<Clock::TimePoint> next = next_batch();
    const Clock::TimePoint now = clock_.now();
    if (next && *next <= now) {
      moving_ = true;
      oldest_.reset();
      return true;
    }
    if (!wait) return false;
    if (!next) changed_.notify_all();  // those who drain
    // Nobody tells when a precondition is abandoned.
    if (!blocked_.empty()) next = std::min(next.value_or(Clock::TimePoint::max()), now + kLookAgain);
    if (std::ranges::any_of(blocked_, [](const auto& one) { return one.second.passed(); })) continue;
    if (next) {
      clock_.wait_until(changed_, mu_, *next);
    } else {
      changed_.wait(mu_);
    }
  }
}

void OffloadLane::run() {
  std::optional<Batch> before;
  // A budget is kept by one batch after the other.
  const bool overlap = options_.bytes_per_second == 0;
  for (;;) {
    std::optional<Batch> next;
    const bool wait = !before.has_value();
    if ((wait || overlap) && wait_for_batch(wait)) {
      next = begin(queue_->take(largest_batch_));
    } else if (wait) {
      return;
    }
    if (before) finish(*before);
    before = std::move(next);
  }
}

OffloadLane::Batch OffloadLane::begin(std::vector<OffloadQueue::Item> items) {
  Batch batch;
  std::vector<block::Hold> holds;
  for (OffloadQueue::Item& item : items) {
    batch.hashes.push_back(item.hold.sequence_hash());
    batch.priorities.push_back(item.priority);
    holds.push_back(std::move(item.hold));
  }
  if (!holds.empty()) batch.finish = begin_(std::move(holds));
  return batch;
}

void OffloadLane::finish(const Batch& batch) {
  if (batch.hashes.empty()) return;
  const MoveReport report = batch.finish();
  {
    const MutexLock lock(mu_);
    ++counters_.batches;
    counters_.arrived += report.count(Moved::kArrived);
    counters_.there += report.count(Moved::kThere);
    counters_.damaged += report.count(Moved::kDamaged);
    counters_.failed += report.count(Moved::kFailed);
    counters_.bytes += report.bytes;
    if (options_.bytes_per_second != 0)
      not_before_ =
          std::max(not_before_, clock_.now()) +
          std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(report.bytes) /
                                                             static_cast<double>(options_.bytes_per_second)));
  }
  const auto outcome = [](Moved moved) {
    switch (moved) {
      case Moved::kArrived:
        return &OffloadProgress::arrived;
      case Moved::kThere:
        return &OffloadProgress::there;
      case Moved::kGone:
        return &OffloadProgress::gone;
      case Moved::kDamaged:
      case Moved::kFailed:
        break;
    }
    return &OffloadProgress::failed;
  };
  std::vector<Ended> ended;
  for (std::size_t i = 0; i < batch.hashes.size(); ++i) {
    // While it is in flight: who waits for the end of that knows that the next lane has been asked.
    if (report.blocks[i] == Moved::kArrived && arrived_) arrived_(batch.hashes[i], batch.priorities[i]);
    queue_->finished(batch.hashes[i]);
    ended.push_back({batch.hashes[i], outcome(report.blocks[i])});
  }
  end(ended, report.error);
  const MutexLock lock(mu_);
  changed_.notify_all();  // those who wait for it to land
}

bool OffloadLane::drain(std::optional<Clock::TimePoint> until) {
  const MutexLock lock(mu_);
  ++flushers_;
  changed_.notify_all();
  bool quiet = false;
  for (;;) {
    const OffloadQueueCounters queue = queue_->counters();
    quiet = !moving_ && queue.on_deck + queue.waiting + queue.in_flight == 0;
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

OffloadLaneCounters OffloadLane::counters() const {
  OffloadLaneCounters counters;
  {
    const MutexLock lock(mu_);
    counters = counters_;
    counters.blocked = blocked_.size();
  }
  counters.queue = queue_->counters();
  return counters;
}

OffloadProgress OffloadHandle::progress() const {
  return call_->progress();
}
bool OffloadHandle::done() const {
  const OffloadProgress progress = call_->progress();
  return progress.ended() == progress.total;
}
Result<OffloadProgress> OffloadHandle::wait() const {
  return call_->wait({});
}
Result<OffloadProgress> OffloadHandle::wait_until(Clock::TimePoint when) const {
  return call_->wait(when);
}
void OffloadHandle::cancel() const {
  const MutexLock lock(call_->link()->mu);
  if (call_->link()->lane == nullptr) return;
  OffloadLane& lane = *call_->link()->lane;
  for (const SequenceHash& hash : call_->pending_hashes()) lane.forget(hash, call_);
  const MutexLock its_lock(lane.mu_);
  lane.changed_.notify_all();  // those who drain: there may be nothing left
}

}  // namespace ashlar::tiers
