// EventManager: from what happens in the tiers of a worker to those who want to know.
//
//   EventLogs (one per block manager), PublishHandles, AccessSampler
//     -> drain: one thread numbers the events of the stream and keeps what they add up to
//       -> a queue per sink: batches by count, age and load, on a thread of its own
//         -> BatchSink: in-process bus, NATS, ZeroMQ, file
//
// Producers never wait: they append to bounded logs. Nothing is lost silently: where a log overflowed, its
// owner is asked for what it holds, and the difference goes out as events; where a sink fell behind for more
// than its queue holds, or failed for so long, it gets a snapshot, which tells listeners to begin anew. A sink
// that is added late begins with a snapshot.
//
// Numbers: events of the stream (worker, incarnation) are numbered from 0 by the drain, the same for every
// sink.
//
// Thread safety: thread-safe. Takes events.drain, then events.sink_queue (docs/concurrency.md); calls listers and
// sinks outside queues.
// Complexity:    O(1) per event on the drain; memory: one record per block that is present.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/access_sampler.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/publish_handle.h"

namespace ashlar::events {

// When the events that wait for a sink go out: as soon as one of these holds.
struct BatchProfile {
  std::size_t max_events = 512;                            // in a batch
  Clock::Duration max_age = std::chrono::milliseconds(2);  // of the oldest; half of it with half a batch
  std::size_t capacity = std::size_t{1} << 17;  // events that may wait; then they are dropped for a snapshot
  Clock::Duration retry = std::chrono::milliseconds(20);  // after a failure; doubled up to retry_max
  Clock::Duration retry_max = std::chrono::seconds(1);

  // For routers: within milliseconds.
  static BatchProfile router() { return {}; }
  // For storage subscribers: every 10 s, sooner under load.
  static BatchProfile coarse() {
    BatchProfile profile;
    profile.max_events = 4096;
    profile.max_age = std::chrono::seconds(10);
    return profile;
  }
  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

struct EventManagerOptions {
  StreamId stream = {};
  StreamKeys keys = {};
  std::size_t handle_capacity = std::size_t{1} << 16;  // events of PublishHandles that wait for the drain
  Clock::Duration drain_every = std::chrono::milliseconds(1);
  std::shared_ptr<AccessSampler> accesses = {};  // as add_accesses()
  Clock::Duration access_every = std::chrono::seconds(1);
  Clock::Duration shutdown_wait = std::chrono::seconds(5);  // how long the destructor waits for the sinks
  Clock* clock = nullptr;

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

// Of one sink.
struct SinkCounters {
  std::string sink;
  std::uint64_t batches = 0;
  std::uint64_t events = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t failures = 0;  // of the sink
  std::uint64_t dropped = 0;   // events that a snapshot replaced
  std::size_t waiting = 0;
  std::string last_error;
};

struct EventCounters {
  std::uint64_t events = 0;    // numbered so far
  std::uint64_t lost = 0;      // by logs that overflowed
  std::uint64_t repaired = 0;  // logs whose owner was asked for what it holds
  std::uint64_t resyncs = 0;   // logs whose owner could not be asked: what they held is forgotten
  std::size_t present = 0;     // blocks that the stream adds up to
  std::vector<SinkCounters> sinks;
};

class EventManager final : public SnapshotSource {
 public:
  // Appends what the owner of a log holds, as Stored events, parents first; returns the number of the log's
  // next event. Called with events.drain held: it must not call the EventManager. One that throws could not
  // be asked.
  using Lister = std::function<std::uint64_t(std::vector<KvEvent>&)>;

  // Errors: those of the options; kCapacity: no thread.
  static Result<std::unique_ptr<EventManager>> create(EventManagerOptions options);
  // What waits goes out first, within options.shutdown_wait. Sources should be removed before their owners
  // go.
  ~EventManager() override;

  // ---- where events come from

  // Begins with what the lister says; without one with what the log has. Errors: kAlreadyExists.
  Result<void> add_source(std::shared_ptr<EventLog> log, Lister lister = {});
  // What it held is removed, as events. Errors: kNotFound.
  Result<void> remove_source(const std::shared_ptr<EventLog>& log);
  // Its hits become Access events, every options.access_every. One that is there already is there once.
  void add_accesses(std::shared_ptr<AccessSampler> sampler);
  // What KvEvent::location means.
  void name_location(std::uint16_t number, std::string name);

  // Says Stored if this is the first handle of (hash, tier). The event's kind does not matter.
  [[nodiscard]] PublishHandle publish(const KvEvent& block);
  [[nodiscard]] Publisher publisher();

  // ---- where they go

  // Errors: those of the profile; kCapacity: no thread.
  Result<void> add_sink(std::shared_ptr<BatchSink> sink, const BatchProfile& profile = {});
  // Errors: kNotFound; kInvalidArgument: by the sink itself.
  Result<void> remove_sink(const std::shared_ptr<BatchSink>& sink);

  // Waits until everything that happened before the call has gone out of every sink. Errors: kTimeout with
  // the sink and its last error.
  Result<void> flush(Clock::TimePoint until);
  // Takes what is in the logs now, on this thread.
  void drain();

  // ---- what is known

  OwnedBatch snapshot() override;
  const StreamId& stream() const noexcept;
  EventCounters counters() const;
  // Aborts where the state of the stream or the queue of a sink contradicts itself. For tests; O(n log n) in the
  // blocks present.
  void check_invariants() const;

 private:
  struct Parts;
  explicit EventManager(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ashlar::events
