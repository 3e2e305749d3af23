// EventLog: a bounded ring of events between the transitions that emit them and the EventSink that receives
// them.
//
// The producer appends inside its own critical section: no allocation, no wait, no callback. When the ring is
// full the event is dropped and counted, and the sink sees one kResync record in its place. The drain calls
// the sink outside every lock. At most one drain runs at a time: a second caller returns at once, and the
// running drain delivers its events too.
//
// Thread safety: append() is confined to the owner's lock; drain() and the counters are thread-safe.
// Complexity:    append() is O(1), drain() O(events). Memory: capacity() records, taken at construction.
// Invariant:     a sink sees rising sequence numbers, and a kResync precedes every gap in them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ashlar/events/kv_event.h"

namespace ashlar {
template <class T>
class LargeArray;
}  // namespace ashlar

namespace ashlar::events {

// Receives the events of an EventLog. Called by the drain, one call at a time, never under a lock of
// Ashlar's.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // The next events in order. The span is valid during the call only. A sink should not throw: the events of
  // that call are lost, and the next drain begins with a kResync.
  virtual void on_events(std::span<const KvEvent> events) = 0;
};

class EventLog {
 public:
  // Capacity is rounded up to a power of two, at least 2.
  explicit EventLog(std::size_t capacity = 1 << 16);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // A log has one producer at a time. Returns false if it already has one.
  [[nodiscard]] bool claim() noexcept { return !claimed_.exchange(true, std::memory_order_acquire); }
  // Releases the log; another producer may claim it, and the numbering continues.
  void release_claim() noexcept { claimed_.store(false, std::memory_order_release); }

  // Numbers the event and keeps it; drops and counts it if the ring is full.
  // Requires: the producer's lock, the same for every call; see claim().
  void append(const KvEvent& event) noexcept;

  // Delivers all events of the log, in order, in batches. Returns how many records the sink got; 0 if another
  // drain is running. The sink may use the manager that fills this log.
  std::size_t drain(EventSink& sink);

  std::size_t capacity() const noexcept { return mask_ + 1; }
  // Records waiting for a drain.
  std::size_t pending() const noexcept;
  // Events dropped since the start because the ring was full.
  std::uint64_t lost() const noexcept { return lost_total_.load(std::memory_order_relaxed); }
  // Sequence number of the next event.
  std::uint64_t next_sequence() const noexcept { return next_sequence_.load(std::memory_order_relaxed); }

 private:
  bool try_push(const KvEvent& event, std::uint64_t sequence) noexcept;
  std::size_t drain_once(EventSink& sink);
  KvEvent resync_record(std::uint64_t lost) const noexcept;

  // Constant after construction.
  std::size_t mask_;
  std::unique_ptr<LargeArray<KvEvent>> ring_;

  // Written by the producer.
  alignas(64) std::atomic<std::uint64_t> head_{0};
  std::atomic<std::uint64_t> next_sequence_{0};
  std::atomic<std::uint64_t> lost_total_{0};
  std::atomic<std::uint64_t> lost_reported_{0};  // by either side

  // Written by the drain.
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  std::atomic<bool> draining_{false};
  std::uint64_t refused_ = 0;  // events of a call in which the sink threw; used only by the running drain
  // acquire / release: one producer's appends happen before the next one's.
  std::atomic<bool> claimed_{false};
};

}  // namespace ashlar::events
