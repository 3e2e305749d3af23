#include "ashlar/feed/index_feeder.h"

namespace ashlar::feed {

void IndexListener::on_reset(const events::StreamId& stream) {
  feeders_.erase(stream.worker);
  sink_.clear(stream.worker);
}

void IndexListener::on_events(const events::EventBatch& batch) {
  const events::Worker& worker = batch.stream.worker;
  const auto at = feeders_.try_emplace(worker, sink_, worker.id).first;
  at->second.apply(worker.rank, batch.events);
}

const IndexFeederCounters* IndexListener::counters(const events::Worker& worker) const {
  const auto at = feeders_.find(worker);
  return at == feeders_.end() ? nullptr : &at->second.counters();
}

void IndexListener::check_invariants() const {
  for (const auto& [worker, feeder] : feeders_) feeder.check_invariants();
}

}  // namespace ashlar::feed
