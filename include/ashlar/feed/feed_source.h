// FeedSource: where batches of events come from: a bus, NATS, a file.
//
// A source delivers what arrives, as it arrives: batches may be missing, doubled or out of order.
// StreamReceiver puts them right, and asks the source for what is missing.
//
// Thread safety: thread-compatible.
#pragma once

#include <string>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::feed {

class BatchConsumer {
 public:
  virtual ~BatchConsumer() = default;
  // The batch is valid during the call only.
  virtual void on_batch(const events::EventBatch& batch) = 0;
};

class FeedSource {
 public:
  virtual ~FeedSource() = default;

  // Delivers what is there; when there is nothing, waits for something, up to `timeout`. Returns how many
  // batches were delivered. What cannot be decoded is counted in damaged() and skipped: the gap it leaves is
  // found by its numbers. Errors: kUnavailable: the feed is not connected now, and tries to be; poll again.
  // kNotFound: the feed has ended.
  virtual Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) = 0;

  // Delivers what a stream published from event `from` on, as far as it is still kept: either batches that
  // begin at `from` or before, or a snapshot of a later moment. Returns false when neither can be had.
  // Errors: kUnavailable, kTimeout: somebody who should have answered did not.
  virtual Result<bool> recover(const events::StreamId& stream, std::uint64_t from,
                               BatchConsumer& consumer) = 0;

  // Messages that could not be decoded.
  virtual std::uint64_t damaged() const noexcept = 0;
  // Of a file that has ended: bytes of a last batch that its writer did not finish. They are no damage.
  virtual std::uint64_t unfinished_bytes() const noexcept { return 0; }
  virtual std::string describe() const = 0;
};

}  // namespace ashlar::feed
