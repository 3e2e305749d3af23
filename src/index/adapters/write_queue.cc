#include "index/adapters/write_queue.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "base/interleaving.h"

namespace ashlar::index::detail {

WriteQueue::Push WriteQueue::try_push(const CallHead& head, std::span<const StoredBlock> blocks,
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

void WriteQueue::wait_for_room() {
  interleaving_point("write_queue.full");
  const MutexLock lock(mu_);
  if (closed_ || counters_.depth < capacity_) return;
  ++counters_.waits;
  ++waiting_for_room_;
  while (!closed_ && counters_.depth >= capacity_) room_.wait(mu_);
  --waiting_for_room_;
}

void WriteQueue::wait_until_applied(std::uint64_t number) {
  const MutexLock lock(mu_);
  ASHLAR_DCHECK(number <= counters_.queued, "event %llu was never accepted: this wait would not end",
                static_cast<unsigned long long>(number));
  ++waiting_for_applied_;
  while (applied_ < number) applied_changed_.wait(mu_);
  --waiting_for_applied_;
}

std::uint64_t WriteQueue::accepted() const {
  const MutexLock lock(mu_);
  return counters_.queued;
}

std::uint64_t WriteQueue::applied() const {
  const MutexLock lock(mu_);
  return applied_;
}

void WriteQueue::close() {
  {
    const MutexLock lock(mu_);
    closed_ = true;
    asleep_ = false;
  }
  work_.notify_one();
  room_.notify_all();
}

WriteQueueCounters WriteQueue::counters() const {
  const MutexLock lock(mu_);
  return counters_;
}

void WriteQueue::run() {
  CallBatch batch;
  for (;;) {
    const std::size_t done = batch.events();
    // Only an event far over the limit grows an array beyond this.
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
      ASHLAR_DCHECK(applied_ + batch.events() == counters_.queued,
                    "an accepted event is applied or in this batch");
      counters_.depth = 0;
      tell_room = waiting_for_room_ > 0;
    }
    if (tell_room) room_.notify_all();
    interleaving_point("write_queue.before_apply");
    batch.apply(target_);
  }
}

}  // namespace ashlar::index::detail
