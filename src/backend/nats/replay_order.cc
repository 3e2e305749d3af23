#include "backend/nats/replay_order.h"

#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::backend::nats {

void ReplayOrder::add(events::OwnedBatch batch) {
  if (batch.head.stream != stream_) return;
  if (batch.head.kind == events::BatchKind::kSnapshot) {
    add_part(std::move(batch));
  } else {
    add_events(std::move(batch));
  }
}

void ReplayOrder::add_events(events::OwnedBatch batch) {
  const events::EventBatch view = batch.view();
  if (view.end() <= next_) {
    is_known_ = is_known_ || (view.end() == next_ && held_.empty());
    return;
  }
  if (view.first <= next_) {
    deliver(batch);
    deliver_held();
    return;
  }
  is_known_ = false;
  held_bytes_ += events::memory_of(view);
  held_.emplace(view.first, std::move(batch));
  // Too late for mere reordering: the gap stays, and only a snapshot closes it.
  while (held_.size() > kHeld || held_bytes_ > max_bytes_) static_cast<void>(take_first_held());
}

void ReplayOrder::add_part(events::OwnedBatch batch) {
  // The listener knows as much, or the server lost the batches in between.
  if (batch.head.first < next_ || (batch.head.first == next_ && delivered_ > 0)) return;
  const bool was_too_large = parts_.is_too_large();
  if (!parts_.add(batch)) {
    if (parts_.is_too_large() && !was_too_large) ++oversized_;
    // An unfinished snapshot, followed by another.
    if (parts_.head().published_ns == batch.head.published_ns) return;
    parts_ = SnapshotParts(max_bytes_);
    if (!parts_.add(std::move(batch))) return;
  }
  if (!parts_.is_complete()) return;
  for (const events::OwnedBatch& part : parts_.take()) deliver(part);
  deliver_held();
}

void ReplayOrder::deliver(const events::OwnedBatch& batch) {
  const events::EventBatch view = batch.view();
  ASHLAR_CHECK(view.kind == events::BatchKind::kSnapshot ? view.first >= next_ : view.first <= next_,
               "a listener that needs event %llu is told of %llu", static_cast<unsigned long long>(next_),
               static_cast<unsigned long long>(view.first));
  consumer_.on_batch(view);
  ++delivered_;
  next_ = view.end();
}

void ReplayOrder::deliver_held() {
  while (!held_.empty() && held_.begin()->first <= next_) {
    const events::OwnedBatch first = take_first_held();
    if (first.view().end() > next_) deliver(first);
  }
  ASHLAR_DCHECK(!held_.empty() || held_bytes_ == 0, "%zu bytes are counted, and no batch is held",
                held_bytes_);
}

events::OwnedBatch ReplayOrder::take_first_held() {
  auto first = held_.extract(held_.begin());
  ASHLAR_DCHECK(held_bytes_ >= events::memory_of(first.mapped().view()),
                "%zu bytes are counted as held, less than the first batch has", held_bytes_);
  held_bytes_ -= events::memory_of(first.mapped().view());
  return std::move(first.mapped());
}

}  // namespace ashlar::backend::nats
