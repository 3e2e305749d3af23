// EventBus: the feed within a process, and the default one: a sink of an EventManager, and as many
// subscriptions as one likes.
//
// A subscription has a bounded queue of batches. One that falls behind loses the oldest; the receiver sees
// the gap by the numbers and recovers from the batches that the bus still keeps, or from a snapshot.
//
// Thread safety: thread-safe; one subscription is thread-compatible.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ashlar/events/event_batch.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::feed {

class EventBus {
 public:
  struct Options {
    std::size_t queue_batches = 4096;   // that wait for one subscription
    std::size_t replay_batches = 1024;  // kept for those who lost some
    Clock* clock = nullptr;
  };
  EventBus() : EventBus(Options{}) {}
  explicit EventBus(const Options& options);
  ~EventBus();

  // For EventManager::add_sink(). May outlive the bus, and then publishes to nobody.
  std::shared_ptr<events::BatchSink> sink();
  // Batches from now on; what came before is to be had by recover(). May outlive the bus, and has then ended.
  std::unique_ptr<FeedSource> subscribe();
  // Who is asked for a snapshot when the batches that are kept do not reach back far enough. The source
  // outlives the bus, or is taken back with null.
  void serve_snapshots(events::SnapshotSource* source);

 private:
  struct State;
  class Sink;
  class Subscription;
  std::shared_ptr<State> state_;
};

}  // namespace ashlar::feed
