// IndexListener: puts what a StreamReceiver hears of workers into a routing index.
//
// A worker that begins anew, or whose picture is replaced by a snapshot, is cleared from the index first.
//
// Thread safety: thread-compatible. Complexity: as IndexFeeder.
#pragma once

#include <map>

#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar::feed {

class IndexListener final : public StreamListener {
 public:
  // The sink must outlive the listener.
  explicit IndexListener(events::IndexSink& sink) : sink_(sink) {}

  void on_reset(const events::StreamId& stream) override;
  void on_events(const events::EventBatch& batch) override;

  // Of one (worker, rank); nothing when it was never heard of.
  const IndexFeederCounters* counters(const events::Worker& worker) const;

 private:
  events::IndexSink& sink_;
  std::map<events::Worker, IndexFeeder> feeders_;
};

}  // namespace ashlar::feed
