// EventLog: a bounded ring of events between the transition that makes them and the sinks that want them.
//
// The producer appends inside its own critical section: no allocation, no wait, no call out. When the ring is
// full the event is dropped and counted, and the next thing a sink sees at that place is one kResync record.
// The drain hands events to a sink outside every lock; at most one drain runs at a time, a second caller
// returns at once and the running one delivers its events too.
//
// Thread safety: append() is confined to the owner's lock; drain() and the counters are thread-safe.
// Complexity:    append() is O(1), drain() O(events).
// Invariant:     what a sink sees has rising sequence numbers, and every hole in them is preceded by a
//                kResync.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ashlar/events/event_sink.h"
#include "ashlar/events/kv_event.h"

namespace ashlar {
template <class T>
class LargeArray;
}  // namespace ashlar

namespace ashlar::events {

class EventLog {
 public:
  // Capacity is rounded up to a power of two, at least 2.
  explicit EventLog(std::size_t capacity = 1 << 16);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // A log has one producer at a time. False when it has one already.
  [[nodiscard]] bool claim() noexcept { return !claimed_.exchange(true, std::memory_order_acquire); }
  // The producer has appended its last; another may claim the log, and its numbers go on.
  void release_claim() noexcept { claimed_.store(false, std::memory_order_release); }

  // Gives the event its sequence number and keeps it, or drops and counts it when the ring is full.
  // Requires: the producer's lock, the same for every call; see claim().
  void append(const KvEvent& event) noexcept;

  // Delivers everything that is in the log, in order, in batches. Returns how many records went to the sink;
  // 0 when another drain is running. The sink may use the manager that fills this log.
  std::size_t drain(EventSink& sink);

  std::size_t capacity() const noexcept { return mask_ + 1; }
  // Records that wait for a drain.
  std::size_t pending() const noexcept;
  // Events dropped since the start because the ring was full.
  std::uint64_t lost() const noexcept { return lost_total_.load(std::memory_order_relaxed); }
  // Sequence number that the next event gets.
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
  std::uint64_t refused_ = 0;  // events that a sink threw at; only the running drain looks at it
  // acquire / release: one producer's appends happen before the next one's.
  std::atomic<bool> claimed_{false};
};

}  // namespace ashlar::events
