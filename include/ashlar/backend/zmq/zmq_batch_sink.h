// ZmqBatchSink: publishes batches in Ashlar's own format (docs/formats/events.md) on a PUB socket, and keeps
// the last for replay.
//
// A listener that needs more than is kept may request a snapshot, if serve_snapshots() set a source. A sink
// may carry the streams of several workers; a request is then answered with the snapshots of all of them.
//
// Thread safety: publish() is thread-compatible, the rest thread-safe.
// Complexity:    O(events).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::backend::zmq {

class ZmqBatchSink final : public events::BatchSink {
 public:
  struct Options {
    // Its function `snapshot` is set by the sink.
    EnginePublisherOptions publisher = {};
    std::string topic = "ashlar";
    std::size_t snapshot_part = 8192;  // events

    Result<void> validate() const;
  };

  // Errors: as EnginePublisher::create().
  static Result<std::unique_ptr<ZmqBatchSink>> create(Options options);
  ~ZmqBatchSink() override;

  // Errors: kCapacity, as the publisher.
  Result<void> publish(const events::EventBatch& batch) override;
  std::string describe() const override;

  // Sets the source of snapshots; null: none. On return the previous source is no longer in use and may be
  // destroyed.
  void serve_snapshots(events::SnapshotSource* source);
  // Adds or removes one of several sources; a removed source may be destroyed on return.
  void add_snapshots(events::SnapshotSource& source);
  void remove_snapshots(events::SnapshotSource& source);
  EnginePublisher& publisher() noexcept { return *publisher_; }

 private:
  class Snapshots;
  ZmqBatchSink(Options options, std::shared_ptr<Snapshots> snapshots,
               std::unique_ptr<EnginePublisher> publisher);

  const Options options_;
  const std::shared_ptr<Snapshots> snapshots_;
  const std::unique_ptr<EnginePublisher> publisher_;
  std::vector<std::byte> bytes_;
};

}  // namespace ashlar::backend::zmq
