// SnapshotBucket: the last snapshot of each worker, in a key-value bucket.
//
// A worker has two places, a and b. A snapshot is written to the one that is not current, part by part under
// `<worker>.<rank>.<place>.<part>`; then `<worker>.<rank>.head` is switched to it, by a write that fails if
// another writer switched it meanwhile. A reader takes the head, then the parts; if a part does not belong to
// the head's snapshot, a newer one is being written, and the reader starts over.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "backend/nats/handles.h"
#include "backend/nats/jet_stream.h"
#include "backend/nats/snapshot_head.h"

namespace ashlar::backend::nats {

class SnapshotBucket {
 public:
  // nullopt if the bucket is missing and `storage` is null; otherwise a missing bucket is created as
  // `storage` says.
  static Result<std::optional<SnapshotBucket>> open(const JetStream& jet_stream, const std::string& name,
                                                    const NatsStreamOptions* storage);

  // Requires: one batch of kind kSnapshot. Errors: kAlreadyExists: a later incarnation of the worker, or
  // another writer, has written.
  Result<void> write(const events::EventBatch& snapshot, std::size_t limit);
  // The parts of the worker's last snapshot; nullopt if there is none. Errors: kCorruption: head and parts
  // did not match, several times in a row; kCapacity: it takes more than `max_bytes` of memory.
  Result<std::optional<std::vector<events::OwnedBatch>>> read(const events::Worker& worker,
                                                              std::size_t max_bytes);

 private:
  explicit SnapshotBucket(Bucket bucket) noexcept : bucket_(std::move(bucket)) {}
  Result<std::optional<SnapshotHead>> read_head(const std::string& worker);
  Result<std::optional<std::vector<events::OwnedBatch>>> read_once(const std::string& worker,
                                                                   std::size_t max_bytes);

  Bucket bucket_;
};

}  // namespace ashlar::backend::nats
