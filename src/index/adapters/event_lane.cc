#include "index/adapters/event_lane.h"

#include <algorithm>
#include <utility>

#include "base/interleaving.h"

namespace ashlar::index::detail {

EventLane::Push EventLane::try_push(const EventHead& head, std::span<const StoredBlock> blocks,
                                    std::span<const BlockName> names, std::uint64_t& number) {
  bool wake = false;
  {
    const MutexLock lock(mu_);
    if (closed_) return Push::kClosed;
    if (counters_.depth >= capacity_) return Push::kFull;
    waiting_.append(head, blocks, names);
    number = ++counters_.queued;
    counters_.depth += std::max<std::size_t>(head.count, 1);
    counters_.high_water = std::max(counters_.high_water, counters_.depth);
    wake = std::exchange(asleep_, false);
  }
  if (wake) work_.notify_one();
  return Push::kAccepted;
}

void EventLane::wait_for_room() {
  interleaving_point("lane.full");
  const MutexLock lock(mu_);
  if (closed_ || counters_.depth < capacity_) return;
  ++counters_.waits;
  ++waiting_for_room_;
  while (!closed_ && counters_.depth >= capacity_) room_.wait(mu_);
  --waiting_for_room_;
}

void EventLane::wait_until_applied(std::uint64_t number) {
  const MutexLock lock(mu_);
  ++waiting_for_applied_;
  while (applied_ < number) applied_changed_.wait(mu_);
  --waiting_for_applied_;
}

std::uint64_t EventLane::accepted() const {
  const MutexLock lock(mu_);
  return counters_.queued;
}

std::uint64_t EventLane::applied() const {
  const MutexLock lock(mu_);
  return applied_;
}

void EventLane::close() {
  {
    const MutexLock lock(mu_);
    closed_ = true;
    asleep_ = false;
  }
  work_.notify_one();
  room_.notify_all();
}

LaneCounters EventLane::counters() const {
  const MutexLock lock(mu_);
  return counters_;
}

void EventLane::run() {
  EventBatch batch;
  for (;;) {
    const std::size_t done = batch.events();
    // Only an event far over the limit makes an array larger than this.
    batch.clear(4 * capacity_);
    bool tell_room = false;
    {
      const MutexLock lock(mu_);
      applied_ += done;
      if (done > 0 && waiting_for_applied_ > 0) applied_changed_.notify_all();
      while (waiting_.empty() && !closed_) {
        asleep_ = true;
        work_.wait(mu_);
      }
      asleep_ = false;
      if (waiting_.empty()) return;
      std::swap(batch, waiting_);
      counters_.depth = 0;
      tell_room = waiting_for_room_ > 0;
    }
    if (tell_room) room_.notify_all();
    interleaving_point("lane.before_apply");
    batch.apply(target_);
  }
}

}  // namespace ashlar::index::detail
