// ReplayOrder: selects and orders the stored batches that a listener needs when it knows a stream up to
// `from`.
//
// Batches come in stored order: some twice, some after their successors because they were resent. Each is
// delivered so that it starts where the last one ended, or before. At a gap, the next whole snapshot
// continues.
//
// Thread safety: thread-compatible.
// Complexity:    holds at most kHeld early batches and one snapshot, each up to max_bytes. The first early
//                batches are dropped first; a larger snapshot is not delivered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "ashlar/events/event_batch.h"
#include "ashlar/feed/feed_source.h"
#include "backend/nats/snapshot_parts.h"

namespace ashlar::backend::nats {

class ReplayOrder {
 public:
  static constexpr std::size_t kHeld = 1024;

  ReplayOrder(const events::StreamId& stream, std::uint64_t from, feed::BatchConsumer& consumer,
              std::size_t max_bytes = events::kMaxDecodedBytes) noexcept
      : stream_(stream), next_(from), consumer_(consumer), max_bytes_(max_bytes), parts_(max_bytes) {}

  // Batches of other streams are ignored.
  void add(events::OwnedBatch batch);
  std::size_t delivered() const noexcept { return delivered_; }
  // Whether the listener advanced, or has everything there was.
  bool has_recovered() const noexcept { return delivered_ > 0 || is_known_; }
  // Snapshots larger than max_bytes.
  std::size_t oversized() const noexcept { return oversized_; }

 private:
  void add_events(events::OwnedBatch batch);
  void add_part(events::OwnedBatch batch);
  void deliver(const events::OwnedBatch& batch);
  void deliver_held();
  events::OwnedBatch take_first_held();

  const events::StreamId stream_;
  std::uint64_t next_;  // number of the next event the listener needs
  feed::BatchConsumer& consumer_;
  const std::size_t max_bytes_;
  std::multimap<std::uint64_t, events::OwnedBatch> held_;  // by first; all begin after next_
  std::size_t held_bytes_ = 0;
  SnapshotParts parts_;
  std::size_t oversized_ = 0;
  std::size_t delivered_ = 0;
  bool is_known_ = false;  // batches of the stream were seen, and ended at next_
};

}  // namespace ashlar::backend::nats
