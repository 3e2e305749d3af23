// The drain appends to pending_; the thread swaps it into taken_ and publishes it batch by batch. When the
// queue exceeds its capacity, all queued events are dropped and a snapshot is owed: the thread takes it under
// events.drain, so that its state and the number of the next event are consistent.
#include "events/sink_queue.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"

namespace ashlar::events {
namespace {

// A sink should not throw; treat an exception as a failure.
template <class F>
Result<void> guarded(const F& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "the sink threw: %s", error.what());
  } catch (...) {
    return make_error(ErrorCode::kInternal, "the sink threw a non-standard exception");
  }
}

std::int64_t unix_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

SinkQueue::SinkQueue(std::shared_ptr<BatchSink> sink, const BatchProfile& profile, Context context)
    : sink_(std::move(sink)),
      name_(sink_->describe()),
      profile_(profile),
      context_(std::move(context)),
      retry_(profile.retry) {}

SinkQueue::~SinkQueue() {
  stop();
}

Result<void> SinkQueue::start(std::uint64_t first, bool owes_snapshot) {
  {
    const MutexLock lock(mu_);
    out_ = flushed_ = first;
    owes_snapshot_ = owes_snapshot;
  }
  return start_thread(&thread_, [this] { run(); });
}

void SinkQueue::append(std::span<const KvEvent> events) {
  if (events.empty()) return;
  const MutexLock lock(mu_);
  if (owes_snapshot_) {
    counters_.dropped += events.size();
    return;
  }
  if (waiting_locked() + events.size() > profile_.capacity) {
    counters_.dropped += waiting_locked() + events.size();
    pending_.clear();
    taken_left_ = 0;
    owes_snapshot_ = true;
    changed_.notify_all();
    return;
  }
  ASHLAR_DCHECK(pending_.empty() || pending_.back().sequence + 1 == events.front().sequence,
                "events reach a sink in order: %llu follows %llu",
                static_cast<unsigned long long>(events.front().sequence),
                static_cast<unsigned long long>(pending_.back().sequence));
  const bool first = pending_.empty();
  if (first) oldest_ = context_.clock->now();
  const std::size_t before = pending_.size();
  pending_.insert(pending_.end(), events.begin(), events.end());
  // Each eighth of a batch brings the deadline nearer.
  const auto eighths = [&](std::size_t count) {
    return std::min<std::size_t>(8, 8 * count / profile_.max_events);
  };
  if (first || eighths(before) != eighths(pending_.size())) changed_.notify_all();
}

void SinkQueue::begin_at(std::uint64_t first) {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(first >= out_, "a snapshot before event %llu, but the sink has all up to %llu",
               static_cast<unsigned long long>(first), static_cast<unsigned long long>(out_));
  pending_.clear();
  taken_left_ = 0;
  taken_.clear();
  taken_done_ = 0;
  owes_snapshot_ = false;
  sends_snapshot_ = true;
}

void SinkQueue::hurry(std::uint64_t number, Clock::TimePoint until) {
  const MutexLock lock(mu_);
  hurry_ = std::max(hurry_, number);
  finish_by_ = std::max(finish_by_, until);
  changed_.notify_all();
}

bool SinkQueue::wait_for(std::uint64_t number, Clock::TimePoint until) {
  const MutexLock lock(mu_);
  while (flushed_ < number || owes_snapshot_ || sends_snapshot_) {
    if (stopping_ || context_.clock->now() >= until) return false;
    context_.clock->wait_until(changed_, mu_, until);
  }
  return true;
}

void SinkQueue::stop() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

SinkCounters SinkQueue::counters() const {
  const MutexLock lock(mu_);
  SinkCounters counters = counters_;
  counters.sink = name_;
  counters.waiting = waiting_locked();
  return counters;
}

void SinkQueue::check_invariants() const {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(flushed_ <= out_, "a sink finishes only what it was given");
  ASHLAR_CHECK(!owes_snapshot_ || waiting_locked() == 0, "a snapshot replaces the %zu events that wait",
               waiting_locked());
  ASHLAR_CHECK(waiting_locked() <= profile_.capacity, "%zu events wait, %zu may", waiting_locked(),
               profile_.capacity);
  if (pending_.empty()) return;
  ASHLAR_CHECK(pending_.back().sequence - pending_.front().sequence + 1 == pending_.size(),
               "the events that wait have numbers without holes");
  ASHLAR_CHECK(owes_snapshot_ || sends_snapshot_ || taken_left_ != 0 || pending_.front().sequence == out_,
               "event %llu goes out next, but %llu waits first", static_cast<unsigned long long>(out_),
               static_cast<unsigned long long>(pending_.front().sequence));
}

// The more events wait, the sooner: half a batch goes out after half of the time.
Clock::TimePoint SinkQueue::due_at_locked() const {
  const double full = static_cast<double>(pending_.size()) / static_cast<double>(profile_.max_events);
  const double share = std::max(0.0, 1.0 - full);
  return oldest_ + Clock::Duration(static_cast<Clock::Duration::rep>(
                       static_cast<double>(profile_.max_age.count()) * share));
}

bool SinkQueue::is_due_locked(Clock::TimePoint now) const {
  if (retry_at_ && now < *retry_at_) return false;
  if (owes_snapshot_ || sends_snapshot_ || taken_left_ != 0) return true;
  if (pending_.empty()) return hurry_ > flushed_ && out_ >= hurry_;
  return pending_.size() >= profile_.max_events || hurry_ > out_ || now >= due_at_locked();
}

void SinkQueue::run() {
  for (;;) {
    enum class Next : std::uint8_t { kSnapshot, kEvents, kFinish };
    Next next = Next::kEvents;
    {
      const MutexLock lock(mu_);
      for (;;) {
        if (stopping_) return;
        const Clock::TimePoint now = context_.clock->now();
        if (is_due_locked(now)) break;
        if (retry_at_ && now < *retry_at_) {
          context_.clock->wait_until(changed_, mu_, *retry_at_);
        } else if (!pending_.empty()) {
          context_.clock->wait_until(changed_, mu_, due_at_locked());
        } else {
          changed_.wait(mu_);
        }
      }
      if (owes_snapshot_) snapshot_.reset();  // the one being sent is too old
      if (owes_snapshot_ || sends_snapshot_) {
        next = Next::kSnapshot;
      } else if (taken_left_ == 0 && pending_.empty()) {
        next = Next::kFinish;
      } else if (taken_left_ == 0) {
        taken_.clear();
        taken_done_ = 0;
        taken_.swap(pending_);
        taken_left_ = taken_.size();
      }
    }
    const bool good = next == Next::kSnapshot ? send_snapshot()
                      : next == Next::kEvents ? send_events()
                                              : finish();
    const MutexLock lock(mu_);
    if (good) {
      retry_ = profile_.retry;
      retry_at_.reset();
    } else {
      retry_at_ = context_.clock->now() + retry_;
      retry_ = std::min(retry_ * 2, profile_.retry_max);
    }
    changed_.notify_all();
  }
}

Result<void> SinkQueue::publish(EventBatch batch) {
  batch.stream = context_.stream;
  batch.keys = context_.keys;
  if (batch.published_ns == 0) batch.published_ns = unix_now_ns();
  const std::vector<LocationName> locations = context_.locations(batch.events);
  batch.locations = locations;
  return guarded([&] { return sink_->publish(batch); });
}

// The sink has every batch; now flush it.
bool SinkQueue::finish() {
  std::uint64_t number = 0;
  Clock::TimePoint until;
  {
    const MutexLock lock(mu_);
    number = out_;
    until = finish_by_;
  }
  if (const Result<void> flushed = guarded([&] { return sink_->flush(until); }); !flushed) {
    note_failure(flushed.error());
    return false;
  }
  const MutexLock lock(mu_);
  flushed_ = std::max(flushed_, number);
  return true;
}

void SinkQueue::note_failure(const Error& error) {
  const MutexLock lock(mu_);
  ++counters_.failures;
  counters_.last_error = error.to_string();
}

bool SinkQueue::send_events() {
  while (taken_done_ < taken_.size()) {
    const std::size_t count = std::min(profile_.max_events, taken_.size() - taken_done_);
    const std::span<const KvEvent> events = std::span(taken_).subspan(taken_done_, count);
    if (const Result<void> published = publish({.first = events.front().sequence, .events = events});
        !published) {
      note_failure(published.error());
      return false;
    }
    const MutexLock lock(mu_);
    ++counters_.batches;
    counters_.events += count;
    taken_done_ += count;
    if (owes_snapshot_) return true;  // the rest was dropped meanwhile
    ASHLAR_DCHECK(taken_left_ >= count, "%zu events went out, %zu were to", count, taken_left_);
    taken_left_ -= count;
    out_ = events.back().sequence + 1;
    changed_.notify_all();
    if (stopping_) return true;
  }
  return true;
}

// A failed part is retried; the parts before it are out.
bool SinkQueue::send_snapshot() {
  if (!snapshot_) {
    snapshot_ = context_.snapshot(*this);
    snapshot_part_ = 0;
    // It tells listeners which parts belong together.
    snapshot_->head.published_ns = unix_now_ns();
  }
  const std::size_t count = snapshot_->events.size();
  const std::size_t each = std::max(profile_.max_events, count / kMaxSnapshotParts + 1);
  const std::size_t parts = std::max<std::size_t>(1, (count + each - 1) / each);
  for (; snapshot_part_ < parts; ++snapshot_part_) {
    const std::size_t from = snapshot_part_ * each;
    const Result<void> published =
        publish({.kind = BatchKind::kSnapshot,
                 .first = snapshot_->head.first,
                 .part = static_cast<std::uint32_t>(snapshot_part_),
                 .parts = static_cast<std::uint32_t>(parts),
                 .published_ns = snapshot_->head.published_ns,
                 .events = std::span(snapshot_->events).subspan(from, std::min(each, count - from))});
    if (!published) {
      note_failure(published.error());
      // The sink splits every part further.
      if (published.error().code() == ErrorCode::kCapacity) {
        snapshot_part_ = 0;
        snapshot_->head.published_ns = unix_now_ns();
      }
      return false;
    }
    const MutexLock lock(mu_);
    if (owes_snapshot_ || stopping_) return true;
  }
  const MutexLock lock(mu_);
  ++counters_.snapshots;
  out_ = std::max(out_, snapshot_->head.first);
  sends_snapshot_ = false;
  snapshot_.reset();
  return true;
}

}  // namespace ashlar::events
