// SinkQueue: the events waiting for one sink, and the thread that publishes them in batches.
//
// Thread safety: thread-safe. Takes events.sink_queue; calls the sink and the snapshot callback without it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/events/event_manager.h"

namespace ashlar::events {

class SinkQueue {
 public:
  struct Context {
    StreamId stream;
    StreamKeys keys;
    Clock* clock = nullptr;
    // Takes a snapshot; calls begin_at() with its number before any event is appended.
    std::function<OwnedBatch(SinkQueue&)> snapshot;
    // Names of the locations that events refer to.
    std::function<std::vector<LocationName>(std::span<const KvEvent>)> locations;
  };

  SinkQueue(std::shared_ptr<BatchSink> sink, const BatchProfile& profile, Context context);
  ~SinkQueue();
  SinkQueue(const SinkQueue&) = delete;
  SinkQueue& operator=(const SinkQueue&) = delete;

  // Starts with event `first`, after a snapshot if `owes_snapshot`. Errors: kCapacity: no thread.
  Result<void> start(std::uint64_t first, bool owes_snapshot);
  void append(std::span<const KvEvent> events);
  // For the snapshot callback: the snapshot, taken just before event `first`, replaces the queued events.
  void begin_at(std::uint64_t first);
  // Publishes everything below `number` at once, and flushes the sink by `until`.
  void hurry(std::uint64_t number, Clock::TimePoint until);
  bool wait_for(std::uint64_t number, Clock::TimePoint until);
  // Drops unpublished events.
  void stop();

  const std::shared_ptr<BatchSink>& sink() const noexcept { return sink_; }
  // Whether the caller is the thread that calls the sink.
  bool is_its_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }
  SinkCounters counters() const;
  // Aborts on an inconsistent queue. For tests.
  void check_invariants() const;

 private:
  void run();
  bool is_due_locked(Clock::TimePoint now) const ASHLAR_REQUIRES(mu_);
  Clock::TimePoint due_at_locked() const ASHLAR_REQUIRES(mu_);
  // Publishes taken_. Returns false if the sink failed.
  bool send_events();
  bool send_snapshot();
  bool finish();
  Result<void> publish(EventBatch batch);
  void note_failure(const Error& error);
  std::size_t waiting_locked() const ASHLAR_REQUIRES(mu_) { return taken_left_ + pending_.size(); }

  const std::shared_ptr<BatchSink> sink_;
  const std::string name_;
  const BatchProfile profile_;
  const Context context_;
  std::thread thread_;

  // Used by the thread only.
  std::vector<KvEvent> taken_;
  std::size_t taken_done_ = 0;
  std::optional<OwnedBatch> snapshot_;  // being sent
  std::size_t snapshot_part_ = 0;       // the next part to send
  Clock::Duration retry_ = {};

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<KvEvent> pending_ ASHLAR_GUARDED_BY(mu_);
  Clock::TimePoint oldest_ ASHLAR_GUARDED_BY(mu_) = {};
  std::size_t taken_left_ ASHLAR_GUARDED_BY(mu_) = 0;  // of taken_, not yet published
  std::uint64_t out_ ASHLAR_GUARDED_BY(mu_) = 0;       // every event below is published
  std::uint64_t flushed_ ASHLAR_GUARDED_BY(mu_) = 0;   // every event below is flushed by the sink
  std::uint64_t hurry_ ASHLAR_GUARDED_BY(mu_) = 0;
  Clock::TimePoint finish_by_ ASHLAR_GUARDED_BY(mu_) = {};
  std::optional<Clock::TimePoint> retry_at_ ASHLAR_GUARDED_BY(mu_);
  bool owes_snapshot_ ASHLAR_GUARDED_BY(mu_) = false;
  bool sends_snapshot_ ASHLAR_GUARDED_BY(mu_) = false;  // taken, and not yet published
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  SinkCounters counters_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::events
