#include "backend/nats/replay_order.h"

#include <utility>

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
  held_.emplace(view.first, std::move(batch));
  // Too long a time to be the order of things: the gap stays, and only a snapshot helps.
  if (held_.size() > kHeld) held_.erase(held_.begin());
}

void ReplayOrder::add_part(events::OwnedBatch batch) {
  // The listener knows as much, or the server lost what was between.
  if (batch.head.first < next_ || (batch.head.first == next_ && delivered_ > 0)) return;
  if (!parts_.add(batch)) {
    // One that was not finished, and then another.
    if (parts_.head().published_ns == batch.head.published_ns) return;
    parts_ = {};
    if (!parts_.add(std::move(batch))) return;
  }
  if (!parts_.is_complete()) return;
  for (const events::OwnedBatch& part : parts_.take()) deliver(part);
  deliver_held();
}

void ReplayOrder::deliver(const events::OwnedBatch& batch) {
  const events::EventBatch view = batch.view();
  consumer_.on_batch(view);
  ++delivered_;
  next_ = view.end();
}

void ReplayOrder::deliver_held() {
  while (!held_.empty() && held_.begin()->first <= next_) {
    const auto first = held_.extract(held_.begin());
    if (first.mapped().view().end() > next_) deliver(first.mapped());
  }
}

}  // namespace ashlar::backend::nats
