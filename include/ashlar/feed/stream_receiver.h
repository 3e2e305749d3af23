// StreamReceiver: orders the batches of a feed: a listener gets each event once and in order, or starts over.
//
// For every worker it tracks the incarnation and the number of the next event. Duplicates are dropped;
// overlapping batches are trimmed. At a gap it asks the feed for the missing events: kept batches, or a
// snapshot. If the feed has neither, the state of the worker is dropped, and the events after the gap start
// an incomplete state, which the next snapshot completes. A later incarnation of a worker replaces the one
// before; batches of an earlier one are stale. Two incarnations that keep publishing in turn are two
// publishers with the same worker number: the earlier one is ignored, with a warning. A stream with
// unexpected keys is refused.
//
// Batches after a gap and parts of an unfinished snapshot are limited: events per worker, and bytes over all.
// When a batch does not fit, the gap is abandoned (`resyncs`). A snapshot that does not fit is abandoned too
// (`overflowed`); the known state stays, marked incomplete.
//
// Thread safety: thread-compatible.
// Complexity:    O(events) per batch. Memory: a record per worker, and at most max_waiting_bytes.
// Invariant:     only batches beyond the next number of their stream wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ashlar/base/byte_budget.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::feed {

// Receives ordered streams. User-defined consumers implement it.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  // The known state of the worker is void. Stored events of its current state follow, unless it restarted.
  virtual void on_reset(const events::StreamId& stream) = 0;
  // The next events, numbered without gaps since the last reset. The batch is valid during the call only.
  virtual void on_events(const events::EventBatch& batch) = 0;
};

class StreamReceiver final : public BatchConsumer {
 public:
  struct Options {
    // Required keys of streams; a zero field accepts anything.
    std::optional<events::StreamKeys> keys = {};
    std::size_t max_waiting = std::size_t{1} << 18;  // events after gaps, per worker
    std::size_t max_waiting_bytes = std::size_t{256}
                                    << 20;  // after gaps and in unfinished snapshots, over all workers
    std::size_t max_workers = std::size_t{1} << 16;  // more are refused
    // Recognises streams that the listener publishes itself, which are dropped. Empty: there are none.
    std::function<bool(const events::StreamId&)> is_own = {};
    std::uint32_t ask_again = 256;  // polls between two attempts to complete a worker
  };
  struct Counters {
    std::uint64_t batches = 0;
    std::uint64_t events = 0;      // delivered
    std::uint64_t duplicates = 0;  // events received before
    std::uint64_t stale = 0;       // batches of earlier incarnations
    std::uint64_t refused = 0;     // batches with other keys
    std::uint64_t gaps = 0;
    std::uint64_t replayed = 0;    // gaps closed by kept batches
    std::uint64_t snapshots = 0;   // applied
    std::uint64_t resyncs = 0;     // abandoned gaps
    std::uint64_t restarts = 0;    // new incarnations
    std::uint64_t overflowed = 0;  // snapshots beyond max_waiting_bytes
    std::uint64_t own = 0;         // batches of is_own streams
    std::uint64_t shadowed = 0;    // earlier incarnations that keep publishing
  };

  StreamReceiver(FeedSource& source, StreamListener& listener)
      : StreamReceiver(source, listener, Options{}) {}
  StreamReceiver(FeedSource& source, StreamListener& listener, const Options& options)
      : source_(source), listener_(listener), options_(options), budget_(options.max_waiting_bytes) {}
  StreamReceiver(const StreamReceiver&) = delete;
  StreamReceiver& operator=(const StreamReceiver&) = delete;

  // Receives batches, waiting up to `timeout` for one, and closes gaps. Returns how many batches came.
  // Errors: those of the feed; the state is unchanged.
  Result<std::size_t> poll(Clock::Duration timeout);
  // For feeds that are not polled: call mend() afterwards.
  void on_batch(const events::EventBatch& batch) override;
  void mend();

  // Whether the state of the worker is complete: no gap is open, and none was abandoned since the last
  // snapshot.
  bool is_complete(const events::Worker& worker) const;
  // Where it stands in the worker's stream: what an index that it feeds holds, apart from a gap. Empty: the
  // worker is unknown.
  std::optional<events::StreamPosition> position(const events::Worker& worker) const;
  const Counters& counters() const noexcept { return counters_; }
  // Bytes counted against max_waiting_bytes.
  std::size_t waiting_bytes() const noexcept { return budget_.used(); }
  // Why the last batch or snapshot was refused.
  const std::string& last_refusal() const noexcept { return last_refusal_; }
  // The last worker found with two publishers; empty: none.
  const std::string& last_shadowed() const noexcept { return last_shadowed_; }
  // Aborts on inconsistent stream state. For tests; O(waiting batches).
  void check_invariants() const;

 private:
  // The previous incarnation, while it still publishes.
  struct EarlierLife {
    std::uint64_t incarnation = 0;
    std::uint64_t end = 0;     // number after its last event
    std::uint32_t turns = 0;   // how often it published something new after the current one
    bool is_speaking = false;  // it published the last new batch
  };
  struct WaitingBatch {
    ByteShare share;
    events::OwnedBatch batch;
  };
  struct Stream {
    events::StreamId id = {};
    std::uint64_t next = 0;
    bool complete = true;
    bool broken = false;   // a gap is open
    bool started = false;  // something was delivered, or the stream was received from its first event
    std::map<std::uint64_t, WaitingBatch> waiting = {};  // after a gap, by first number
    std::size_t waiting_events = 0;
    std::map<std::uint32_t, WaitingBatch> parts = {};  // of an arriving snapshot
    std::uint64_t parts_first = 0;
    std::uint32_t parts_wanted = 0;
    std::uint32_t parts_idle = 0;                     // batches since the last part
    std::optional<std::uint64_t> parts_refused = {};  // number of the snapshot that did not fit
    EarlierLife earlier = {};
  };

  bool accepts(const events::EventBatch& batch);
  void take_events(Stream& stream, const events::EventBatch& batch);
  void take_snapshot(Stream& stream, const events::EventBatch& batch);
  void hand_on(Stream& stream, const events::EventBatch& batch);
  void take_waiting(Stream& stream);
  // Reserves bytes for a batch after a gap, abandoning gaps if needed; nullopt if its own gap was abandoned
  // too.
  std::optional<ByteShare> make_room(Stream& stream, const events::EventBatch& batch);
  // Returns true if the snapshot is complete.
  bool add_part(Stream& stream, const events::EventBatch& batch);
  void refuse_snapshot(Stream& stream, const events::EventBatch& batch);
  void refuse(std::string why);
  void hear_earlier(Stream& stream, const events::EventBatch& batch);
  void give_up(Stream& stream);

  FeedSource& source_;
  StreamListener& listener_;
  const Options options_;
  ByteBudget budget_;  // of waiting batches
  std::unordered_map<events::Worker, Stream> streams_;
  Counters counters_;
  std::string last_refusal_;
  std::string last_shadowed_;
  std::uint64_t polls_ = 0;
};

}  // namespace ashlar::feed
