// StreamReceiver: puts the batches of a feed right: each event once, in order, or everything anew.
//
// For every worker it knows the incarnation and the number of the next event. Batches that were heard already
// are dropped, of those that overlap the rest is taken. A gap makes it ask the feed for what is missing:
// batches that are still kept, or a snapshot. When the feed has neither, what was known of the worker is
// dropped, and the events behind the gap begin an incomplete picture, which the next snapshot completes. A
// later incarnation of a worker ends the one before: what it held is gone; a batch of an earlier one is
// stale. Two lives of a worker that speak in turns are two publishers with the same number: the earlier one
// is not heard, and a warning says so. A stream whose keys are not the expected ones is refused.
//
// What waits for a gap to close, and the parts of a snapshot that is not whole yet, take memory: of each
// worker so many events, and of all together so many bytes. Batches that find no room end the wait: the gap
// is given up (`resyncs`). A snapshot that finds none is given up too (`overflowed`); what was known stays,
// and the picture is not complete.
//
// Thread safety: thread-compatible. Complexity: O(events); memory: max_waiting_bytes.
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
#include "ashlar/feed/feed_source.h"

namespace ashlar::feed {

// Who hears the events of streams that are right.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  // All that was known of the worker is void. What it holds comes now, as Stored events, unless it begins
  // anew.
  virtual void on_reset(const events::StreamId& stream) = 0;
  // The next events, numbered without holes since the last reset. The batch is valid during the call only.
  virtual void on_events(const events::EventBatch& batch) = 0;
};

class StreamReceiver final : public BatchConsumer {
 public:
  struct Options {
    // Streams must be named like this; what is zero in it may be anything.
    std::optional<events::StreamKeys> keys = {};
    std::size_t max_waiting = std::size_t{1} << 18;  // events behind gaps, per worker
    std::size_t max_waiting_bytes = std::size_t{256}
                                    << 20;  // behind gaps, and of unfinished snapshots; of all workers
    std::size_t max_workers = std::size_t{1} << 16;  // more are refused
    // Streams that the listener publishes itself: what comes back of them is dropped. Without one there are
    // none.
    std::function<bool(const events::StreamId&)> is_own = {};
    std::uint32_t ask_again = 256;  // polls after which a worker that is not complete is asked for once more
  };
  struct Counters {
    std::uint64_t batches = 0;
    std::uint64_t events = 0;      // handed on
    std::uint64_t duplicates = 0;  // events that were heard already
    std::uint64_t stale = 0;       // batches of earlier incarnations
    std::uint64_t refused = 0;     // batches whose keys are others
    std::uint64_t gaps = 0;
    std::uint64_t replayed = 0;    // gaps that batches of the feed closed
    std::uint64_t snapshots = 0;   // that were taken
    std::uint64_t resyncs = 0;     // gaps that nothing closed
    std::uint64_t restarts = 0;    // workers that began a new life
    std::uint64_t overflowed = 0;  // snapshots that did not fit max_waiting_bytes
    std::uint64_t own = 0;         // batches of is_own streams
    std::uint64_t shadowed = 0;    // lives that go on speaking beside a later one of the same worker
  };

  StreamReceiver(FeedSource& source, StreamListener& listener)
      : StreamReceiver(source, listener, Options{}) {}
  StreamReceiver(FeedSource& source, StreamListener& listener, const Options& options)
      : source_(source), listener_(listener), options_(options), budget_(options.max_waiting_bytes) {}
  StreamReceiver(const StreamReceiver&) = delete;
  StreamReceiver& operator=(const StreamReceiver&) = delete;

  // Takes what the feed has, waiting up to `timeout` for something, and mends what is broken. Returns how
  // many batches came. Errors: those of the feed; the state is as it was.
  Result<std::size_t> poll(Clock::Duration timeout);
  // For feeds that are driven otherwise: call mend() after it.
  void on_batch(const events::EventBatch& batch) override;
  void mend();

  // Whether the picture of the worker is whole: no gap is open, and none was closed by forgetting.
  bool is_complete(const events::Worker& worker) const;
  const Counters& counters() const noexcept { return counters_; }
  // What waits, as it counts against max_waiting_bytes.
  std::size_t waiting_bytes() const noexcept { return budget_.used(); }
  // Why the last batch or snapshot was refused.
  const std::string& last_refusal() const noexcept { return last_refusal_; }
  // Which worker was last found to have two lives at once, and which; empty: none.
  const std::string& last_shadowed() const noexcept { return last_shadowed_; }
  // Aborts where what is known of a stream contradicts itself. For tests; O(batches that wait).
  void check_invariants() const;

 private:
  // The last life before the current one, as far as it is still heard.
  struct EarlierLife {
    std::uint64_t incarnation = 0;
    std::uint64_t end = 0;     // of what it said
    std::uint32_t turns = 0;   // how often it said something new behind the current one
    bool is_speaking = false;  // it was the last to say something new
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
    bool started = false;  // something was handed on, or the stream was heard from its first event
    std::map<std::uint64_t, WaitingBatch> waiting = {};  // behind a gap, by first number
    std::size_t waiting_events = 0;
    std::map<std::uint32_t, WaitingBatch> parts = {};  // of a snapshot that is arriving
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
  // Room for a batch behind a gap, after giving gaps up where there is none; nothing: its own too.
  std::optional<ByteShare> make_room(Stream& stream, const events::EventBatch& batch);
  // True: the snapshot is whole.
  bool add_part(Stream& stream, const events::EventBatch& batch);
  void refuse_snapshot(Stream& stream, const events::EventBatch& batch);
  void refuse(std::string why);
  void hear_earlier(Stream& stream, const events::EventBatch& batch);
  void give_up(Stream& stream);

  FeedSource& source_;
  StreamListener& listener_;
  const Options options_;
  ByteBudget budget_;  // of what waits
  std::unordered_map<events::Worker, Stream> streams_;
  Counters counters_;
  std::string last_refusal_;
  std::string last_shadowed_;
  std::uint64_t polls_ = 0;
};

}  // namespace ashlar::feed
