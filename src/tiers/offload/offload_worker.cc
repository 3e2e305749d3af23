// The worker's thread: it waits for batches and copies them. Calls from outside are in
// offload_worker_calls.cc.
#include "tiers/offload/offload_worker.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"
#include "tiers/offload/offload_call.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

namespace {

constexpr Clock::Duration kWorkerLooksAgain = std::chrono::milliseconds(50);
// One batch is copied while the previous one is completed.
constexpr std::size_t kMostBatches = 2;

}  // namespace

bool OffloadCandidate::is_present_below() const {
  return to->has(hash);
}

Result<void> OffloadWorkerOptions::validate() const {
  if (batch_blocks == 0 || full_batch == 0 || full_batch > batch_blocks || full_batch > queue.on_deck)
    return make_error(ErrorCode::kInvalidArgument,
                      "full_batch is %zu; it is at least 1 and at most batch_blocks (%zu) and on_deck (%zu)",
                      full_batch, batch_blocks, queue.on_deck);
  if (batch_bytes == 0)
    return make_error(ErrorCode::kInvalidArgument, "batch_bytes is 0; no block would be offloaded");
  if (max_wait < Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "max_wait is negative");
  if (!policy)
    return make_error(ErrorCode::kInvalidArgument, "policy is empty; every_block() lets all through");
  return queue.validate();
}

OffloadWorker::OffloadWorker(TierPool& from, TierPool& to, Begin begin, OffloadWorkerOptions options,
                             Arrived arrived)
    : to_(to),
      begin_(std::move(begin)),
      options_(std::move(options)),
      arrived_(std::move(arrived)),
      clock_(options_.clock == nullptr ? Clock::real() : *options_.clock),
      link_(std::make_shared<OffloadWorkerLink>()),
      largest_batch_(std::clamp<std::uint64_t>(
          options_.batch_bytes / std::max<std::uint64_t>(1, from.block_bytes()), 1, options_.batch_blocks)) {
  const MutexLock lock(link_->mu);
  link_->worker = this;
}

Result<std::unique_ptr<OffloadWorker>> OffloadWorker::create(TierPool& from, TierPool& to, Begin begin,
                                                             OffloadWorkerOptions options, Arrived arrived) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  std::unique_ptr<OffloadWorker> worker(
      new OffloadWorker(from, to, std::move(begin), std::move(options), std::move(arrived)));
  Result<std::unique_ptr<OffloadQueue>> queue = OffloadQueue::create(
      worker->options_.queue, [&from](const SequenceHash& hash) { return from.hold(hash); },
      [raw = worker.get()](const SequenceHash& hash, Offer why) {
        raw->end(hash, why == Offer::kNoRoom ? &OffloadProgress::refused : &OffloadProgress::gone, {});
      });
  if (!queue) return queue.error();
  worker->queue_ = *std::move(queue);
  if (const Result<void> started = start_thread(&worker->thread_, [raw = worker.get()] { raw->run(); });
      !started)
    return started.error();
  return worker;
}

OffloadWorker::~OffloadWorker() {
  {
    const MutexLock lock(link_->mu);
    link_->worker = nullptr;
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

// A block whose precondition was abandoned may have incomplete bytes: it is offloaded for no caller.
void OffloadWorker::unblock() {
  std::vector<Member> free;
  std::vector<SequenceHash> hopeless;
  {
    const MutexLock lock(mu_);
    for (auto at = blocked_.begin(); at != blocked_.end();) {
      const Blocked& blocked = at->second;
      const bool abandoned = std::ranges::any_of(
          blocked.after, [](const auto& wait) { return wait.second.abandoned() && !wait.second.passed(); });
      if (!abandoned && !blocked.passed()) {
        ++at;
        continue;
      }
      if (abandoned) hopeless.push_back(at->first);
      if (!abandoned) free.push_back({at->first, blocked.priority, blocked.permanently});
      if (!abandoned) between_.insert(at->first);
      at = blocked_.erase(at);
    }
  }
  for (const Member& member : free) {
    offer(member.hash, member.priority, member.permanently);
    if (!member.permanently) drop_unwanted(member.hash);  // its calls may have been abandoned meanwhile
    arrived_somewhere(member.hash);
  }
  for (const SequenceHash& hash : hopeless) {
    queue_->cancel(hash);
    end(hash, &OffloadProgress::failed,
        make_error(ErrorCode::kCancelled, "the precondition of block %s was abandoned and can never pass",
                   hash.to_string().c_str()));
  }
}

bool OffloadWorker::Blocked::passed() const {
  return std::ranges::all_of(after, [](const auto& wait) { return wait.second.passed(); });
}

std::optional<Clock::TimePoint> OffloadWorker::next_batch() {
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

bool OffloadWorker::wait_for_batch(bool wait) {
  for (;;) {
    expire();
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
    if (!next) changed_.notify_all();  // wakes drain()
    // An abandoned precondition sends no notification, so poll.
    if (!blocked_.empty()) next = std::min(next.value_or(Clock::TimePoint::max()), now + kWorkerLooksAgain);
    if (!deadlines_.empty())
      next = std::min(next.value_or(Clock::TimePoint::max()), deadlines_.begin()->first);
    if (std::ranges::any_of(blocked_, [](const auto& one) { return one.second.passed(); })) continue;
    if (next) {
      clock_.wait_until(changed_, mu_, *next);
    } else {
      changed_.wait(mu_);
    }
  }
}

void OffloadWorker::run() {
  std::shared_ptr<Batch> before;
  // A byte budget requires batches to run one after the other.
  const bool overlap = options_.bytes_per_second == 0;
  for (;;) {
    std::shared_ptr<Batch> next;
    const bool wait = before == nullptr;
    if ((wait || overlap) && wait_for_batch(wait)) {
      next = begin(queue_->take(largest_batch_));
    } else if (wait) {
      return;
    }
    if (before != nullptr) finish(before);
    before = std::move(next);
  }
}

std::shared_ptr<OffloadWorker::Batch> OffloadWorker::begin(std::vector<OffloadQueue::Item> items) {
  const auto batch = std::make_shared<Batch>();
  if (items.empty()) return batch;
  std::vector<block::Hold> holds;
  bool wanted = false;
  {
    const MutexLock lock(mu_);
    Clock::TimePoint latest = Clock::TimePoint::min();
    for (OffloadQueue::Item& item : items) {
      const Member& member = batch->members.emplace_back(Member{
          .hash = item.hold.sequence_hash(), .priority = item.priority, .permanently = item.permanently});
      holds.push_back(std::move(item.hold));
      if (member.permanently) latest = Clock::TimePoint::max();
      if (const auto calls = calls_.find(member.hash); calls != calls_.end())
        for (const std::shared_ptr<OffloadCall>& call : calls->second)
          latest = std::max(latest, call->deadline().value_or(Clock::TimePoint::max()));
    }
    if (latest != Clock::TimePoint::max()) batch->deadline = latest;
    wanted = !unwanted(*batch) && clock_.now() < latest;
    batches_.push_back(batch);
    ASHLAR_CHECK(batches_.size() <= kMostBatches, "%zu batches are in flight", batches_.size());
    changed_.notify_all();  // withdraw() may now stop it
  }
  if (wanted) {
    batch->finish = begin_(std::move(holds), {.deadline = batch->deadline, .control = &batch->control});
  } else {
    batch->finish = [count = batch->members.size()] {
      return MoveReport{.blocks = std::vector<Moved>(count, Moved::kStopped), .error = {}};
    };
  }
  return batch;
}

void OffloadWorker::finish(const std::shared_ptr<Batch>& batch) {
  if (batch->members.empty()) return;
  const MoveReport report =
      std::exchange(batch->finish, nullptr)();  // callers notified of the end find no block held
  ASHLAR_CHECK(report.blocks.size() == batch->members.size(), "a batch of %zu blocks ends with %zu outcomes",
               batch->members.size(), report.blocks.size());
  expire();
  {
    const MutexLock lock(mu_);
    ++counters_.batches;
    counters_.arrived += report.count(Moved::kArrived);
    counters_.present += report.count(Moved::kPresent);
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
      case Moved::kPresent:
        return &OffloadProgress::present;
      case Moved::kGone:
        return &OffloadProgress::gone;
      case Moved::kDamaged:
      case Moved::kFailed:
      case Moved::kStopped:
        break;
    }
    return &OffloadProgress::failed;
  };
  // Before the blocks leave flight, so a caller that waits for that knows they were offered to the next
  // worker.
  for (std::size_t i = 0; i < batch->members.size(); ++i)
    if (report.blocks[i] == Moved::kArrived && arrived_)
      arrived_(batch->members[i].hash, batch->members[i].priority);
  std::vector<Ended> ended;
  for (std::size_t i = 0; i < batch->members.size(); ++i) {
    Member member = batch->members[i];
    member.permanently = queue_->finished(member.hash);
    if (report.blocks[i] == Moved::kStopped) {
      stopped(member);
    } else {
      ended.push_back({member.hash, outcome(report.blocks[i])});
    }
  }
  end(ended, report.error);
  const MutexLock lock(mu_);
  std::erase(batches_, batch);
  changed_.notify_all();  // wakes withdraw(), which waits for the batch
}

bool OffloadWorker::drain(std::optional<Clock::TimePoint> until) {
  const MutexLock lock(mu_);
  ++flushers_;
  changed_.notify_all();
  bool quiet = false;
  for (;;) {
    const OffloadQueueCounters queue = queue_->counters();
    quiet = !moving_ && between_.empty() && queue.on_deck + queue.waiting + queue.in_flight == 0 &&
            std::ranges::none_of(blocked_, [](const auto& one) { return one.second.passed(); });
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

void OffloadWorker::check_invariants() const {
  queue_->check_invariants();
  const MutexLock lock(mu_);
  for (const auto& [hash, calls] : calls_) {
    ASHLAR_CHECK(!calls.empty(), "block %s is wanted by no call", hash.to_string().c_str());
    for (const std::shared_ptr<OffloadCall>& call : calls)
      ASHLAR_CHECK(call->is_pending(hash), "a call still waits for block %s, which has ended for it",
                   hash.to_string().c_str());
  }
  for (const auto& [hash, blocked] : blocked_) {
    const auto calls = calls_.find(hash);
    ASHLAR_CHECK(blocked.permanently || calls != calls_.end(),
                 "block %s waits for a precondition, for no call", hash.to_string().c_str());
    for (const auto& [call, fence] : blocked.after)
      ASHLAR_CHECK(
          call == nullptr || (calls != calls_.end() &&
                              std::ranges::find(calls->second, call, &std::shared_ptr<OffloadCall>::get) !=
                                  calls->second.end()),
          "block %s waits for the precondition of a call that has ended", hash.to_string().c_str());
  }
  ASHLAR_CHECK(batches_.size() <= kMostBatches, "%zu batches are in flight", batches_.size());
  for (const std::shared_ptr<Batch>& batch : batches_)
    ASHLAR_CHECK(!batch->members.empty() && batch->members.size() <= largest_batch_,
                 "a batch has %zu blocks; 1 to %zu are allowed", batch->members.size(), largest_batch_);
  for (const auto& [deadline, call] : deadlines_)
    ASHLAR_CHECK(call->deadline() == deadline, "a call is listed under another deadline than its own");
}

OffloadCounters OffloadWorker::counters() const {
  OffloadCounters counters;
  {
    const MutexLock lock(mu_);
    counters = counters_;
    counters.blocked = blocked_.size();
  }
  counters.queue = queue_->counters();
  return counters;
}

}  // namespace ashlar::tiers
