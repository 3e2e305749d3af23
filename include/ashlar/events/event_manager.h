// EventManager: merges the events of a worker's tiers into one numbered stream, and publishes it.
//
//   EventLogs (one per block manager), PublishHandles, AccessSampler
//     -> drain: one thread numbers the events and keeps the resulting state
//       -> a queue and a thread per sink: batches by count, age and load
//         -> BatchSink: in-process bus, NATS, ZeroMQ, file
//
// Producers never wait: they append to bounded logs. Nothing is lost silently. If a log overflows, its owner
// lists its blocks, and the difference is published as events. If a sink falls behind by more than its queue
// holds, it gets a snapshot, which tells listeners to start over. A sink added late starts with a snapshot.
//
// Numbers: the drain numbers the events of the stream (worker, incarnation) from 0, the same for every sink.
//
// Thread safety: thread-safe. Takes events.drain, then events.sink_queue (docs/concurrency.md); calls sinks
//                without a lock, listers with events.drain held.
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
#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/events/access_sampler.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/publish_handle.h"

namespace ashlar::events {

// When queued events go to a sink: as soon as one of the limits is reached.
struct BatchProfile {
  std::size_t max_events = 512;  // in a batch
  Clock::Duration max_age =
      std::chrono::milliseconds(2);  // of the oldest event; half of it with half a batch
  std::size_t capacity = std::size_t{1}
                         << 17;  // events that may be queued; beyond it a snapshot replaces them
  Clock::Duration retry = std::chrono::milliseconds(20);  // after a failure; doubled up to retry_max
  Clock::Duration retry_max = std::chrono::seconds(1);

  // For routers: publishes within milliseconds.
  static BatchProfile router() { return {}; }
  // For storage subscribers: publishes every 10 s, sooner under load.
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
  std::size_t handle_capacity = std::size_t{1} << 16;  // events of PublishHandles between two drains
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
  std::uint64_t repaired = 0;  // overflows repaired from the owner's list
  std::uint64_t resyncs = 0;   // overflows without a list: the log's blocks were removed
  std::size_t present = 0;     // blocks in the state of the stream
  std::vector<SinkCounters> sinks;
};

class EventManager final : public SnapshotSource {
 public:
  // Appends the blocks that the owner of a log holds, as Stored events, parents first; returns the number of
  // the log's next event. Called with events.drain held: it must not call the EventManager. If it throws, the
  // log counts as a resync.
  using Lister = std::function<std::uint64_t(std::vector<KvEvent>&)>;

  // Errors: those of the options; kCapacity: no thread.
  static Result<std::unique_ptr<EventManager>> create(EventManagerOptions options);
  // Publishes queued events first, within options.shutdown_wait. Remove sources before their owners are
  // destroyed.
  ~EventManager() override;

  // ---- sources

  // Starts with the lister's blocks; without a lister, with the events in the log. Errors: kAlreadyExists.
  Result<void> add_source(std::shared_ptr<EventLog> log, Lister lister = {});
  // Publishes the removal of its blocks. Errors: kNotFound.
  Result<void> remove_source(const std::shared_ptr<EventLog>& log);
  // Publishes its hits as Access events, every options.access_every. Adding a sampler twice has no effect.
  void add_accesses(std::shared_ptr<AccessSampler> sampler);
  // Names a KvEvent::location.
  void name_location(std::uint16_t number, std::string name);

  // Publishes Stored if this is the first handle of (hash, tier). The kind of `block` is ignored.
  [[nodiscard]] PublishHandle publish(const KvEvent& block);
  [[nodiscard]] Publisher publisher();

  // ---- sinks

  // Errors: those of the profile; kCapacity: no thread.
  Result<void> add_sink(std::shared_ptr<BatchSink> sink, const BatchProfile& profile = {});
  // Errors: kNotFound; kInvalidArgument: called by the sink itself.
  Result<void> remove_sink(const std::shared_ptr<BatchSink>& sink);

  // Waits until every sink has published all events before the call. Errors: kTimeout with the sink and its
  // last error.
  Result<void> flush(Clock::TimePoint until);
  // Drains the logs on the calling thread.
  void drain();

  // ---- state

  OwnedBatch snapshot() override;
  const StreamId& stream() const noexcept;
  EventCounters counters() const;
  // Registers views of the counters, which end with the result: those of the stream, and those of the sinks
  // there are at each scrape, by name. The result must go before the manager.
  // Errors: those of MetricRegistry::add().
  Result<std::vector<MetricRegistration>> add_metrics(MetricRegistry& metrics,
                                                      const MetricLabels& labels = {}) const;
  // Aborts if the state of the stream or the queue of a sink is inconsistent. For tests; O(n log n) in the
  // blocks present.
  void check_invariants() const;

 private:
  struct Parts;
  explicit EventManager(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ashlar::events
