#include "ashlar/events/event_manager.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/start_thread.h"
#include "events/publish_table.h"
#include "events/sink_queue.h"
#include "events/stream_state.h"

namespace ashlar::events {

Result<void> BatchProfile::validate() const {
  if (max_events == 0 || max_events > (std::size_t{1} << 20))
    return make_error(ErrorCode::kInvalidArgument, "max_events is %zu; it must be in 1..2^20", max_events);
  if (capacity < max_events)
    return make_error(ErrorCode::kInvalidArgument, "capacity is %zu, less than the %zu events of one batch",
                      capacity, max_events);
  if (max_age < Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "max_age is negative");
  if (max_age > std::chrono::hours(24) || retry_max > std::chrono::hours(24))
    return make_error(ErrorCode::kInvalidArgument, "max_age and retry_max are a day at most");
  if (retry <= Clock::Duration::zero() || retry_max < retry)
    return make_error(ErrorCode::kInvalidArgument, "retry must be above 0 and not above retry_max");
  return {};
}

Result<void> EventManagerOptions::validate() const {
  if (handle_capacity < 2)
    return make_error(ErrorCode::kInvalidArgument, "handle_capacity must be 2 or more");
  if (drain_every <= Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "drain_every must be above 0");
  if (access_every <= Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "access_every must be above 0");
  if (shutdown_wait < Clock::Duration::zero())
    return make_error(ErrorCode::kInvalidArgument, "shutdown_wait is negative");
  constexpr Clock::Duration kLongest = std::chrono::hours(24);
  if (drain_every > kLongest || access_every > kLongest || shutdown_wait > kLongest)
    return make_error(ErrorCode::kInvalidArgument,
                      "drain_every, access_every and shutdown_wait are a day at most");
  return {};
}

struct EventManager::Parts {
  explicit Parts(EventManagerOptions given)
      : options(std::move(given)),
        clock(options.clock == nullptr ? &Clock::real() : options.clock),
        table(std::make_shared<detail::PublishTable>(options.handle_capacity)) {}

  void drain_locked() ASHLAR_REQUIRES(drain_mu) {
    fresh.clear();
    state.drain(fresh);
    if (!samplers.empty() && clock->now() >= next_access) {
      next_access = clock->now() + options.access_every;
      std::vector<KvEvent> accesses;
      for (const auto& sampler : samplers) sampler->report(accesses);
      for (const KvEvent& event : accesses) state.pass(event, fresh);
    }
    hand_out_locked();
  }
  void hand_out_locked() ASHLAR_REQUIRES(drain_mu) {
    for (const auto& queue : queues) queue->append(fresh);
  }
  OwnedBatch snapshot_locked() ASHLAR_REQUIRES(drain_mu) {
    OwnedBatch batch;
    batch.head.stream = options.stream;
    batch.head.keys = options.keys;
    batch.head.kind = BatchKind::kSnapshot;
    batch.head.first = state.next_number();
    batch.events = state.list();
    return batch;
  }
  std::vector<LocationName> names_of(std::span<const KvEvent> events) {
    std::vector<LocationName> out;
    std::uint16_t last = 0;
    for (const KvEvent& event : events) {
      if (event.location == last || event.location == 0) continue;
      last = event.location;
      if (std::ranges::any_of(out, [&](const LocationName& name) { return name.number == last; })) continue;
      const MutexLock lock(names_mu);
      const auto at = std::ranges::find(names, last, &LocationName::number);
      if (at != names.end()) out.push_back(*at);
    }
    return out;
  }
  SinkQueue::Context context() {
    return {.stream = options.stream,
            .keys = options.keys,
            .clock = clock,
            .snapshot =
                [this](SinkQueue& queue) {
                  const MutexLock lock(drain_mu);
                  queue.begin_at(state.next_number());
                  return snapshot_locked();
                },
            .locations = [this](std::span<const KvEvent> events) { return names_of(events); }};
  }
  void run() {
    const MutexLock lock(drain_mu);
    while (!stopping) {
      drain_locked();
      clock->wait_until(woken, drain_mu, clock->now() + options.drain_every);
    }
  }

  const EventManagerOptions options;
  Clock* const clock;
  const std::shared_ptr<detail::PublishTable> table;

  Mutex names_mu;
  std::vector<LocationName> names ASHLAR_GUARDED_BY(names_mu);

  mutable Mutex drain_mu;
  CondVar woken;
  StreamState state ASHLAR_GUARDED_BY(drain_mu);
  std::vector<KvEvent> fresh ASHLAR_GUARDED_BY(drain_mu);
  std::vector<std::shared_ptr<SinkQueue>> queues ASHLAR_GUARDED_BY(drain_mu);
  std::vector<std::shared_ptr<AccessSampler>> samplers ASHLAR_GUARDED_BY(drain_mu);
  Clock::TimePoint next_access ASHLAR_GUARDED_BY(drain_mu) = {};
  bool stopping ASHLAR_GUARDED_BY(drain_mu) = false;
  std::thread drainer;
};

EventManager::EventManager(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<EventManager>> EventManager::create(EventManagerOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto parts = std::make_unique<Parts>(std::move(options));
  Parts& made = *parts;
  {
    const MutexLock lock(made.drain_mu);
    if (made.options.accesses != nullptr) made.samplers.push_back(made.options.accesses);
    std::vector<KvEvent> nothing;
    made.state.add(
        made.table->log(), [table = made.table.get()](std::vector<KvEvent>& out) { return table->list(out); },
        nothing);
  }
  ASHLAR_RETURN_IF_ERROR(start_thread(&made.drainer, [&made] { made.run(); }));
  return std::unique_ptr<EventManager>(new EventManager(std::move(parts)));
}

EventManager::~EventManager() {
  static_cast<void>(flush(parts_->clock->now() + parts_->options.shutdown_wait));
  {
    const MutexLock lock(parts_->drain_mu);
    parts_->stopping = true;
    parts_->woken.notify_all();
  }
  parts_->drainer.join();
  std::vector<std::shared_ptr<SinkQueue>> queues;
  {
    const MutexLock lock(parts_->drain_mu);
    queues.swap(parts_->queues);
  }
  for (const auto& queue : queues) queue->stop();
}

Result<void> EventManager::add_source(std::shared_ptr<EventLog> log, Lister lister) {
  if (log == nullptr) return make_error(ErrorCode::kInvalidArgument, "there is no log to listen to");
  const MutexLock lock(parts_->drain_mu);
  parts_->fresh.clear();
  if (!parts_->state.add(std::move(log), std::move(lister), parts_->fresh))
    return make_error(ErrorCode::kAlreadyExists, "the log is a source already");
  parts_->hand_out_locked();
  return {};
}

Result<void> EventManager::remove_source(const std::shared_ptr<EventLog>& log) {
  const MutexLock lock(parts_->drain_mu);
  parts_->drain_locked();
  parts_->fresh.clear();
  if (!parts_->state.remove(log, parts_->fresh))
    return make_error(ErrorCode::kNotFound, "the log is not a source");
  parts_->hand_out_locked();
  return {};
}

void EventManager::add_accesses(std::shared_ptr<AccessSampler> sampler) {
  const MutexLock lock(parts_->drain_mu);
  if (sampler != nullptr && std::ranges::find(parts_->samplers, sampler) == parts_->samplers.end())
    parts_->samplers.push_back(std::move(sampler));
}

void EventManager::name_location(std::uint16_t number, std::string name) {
  const MutexLock lock(parts_->names_mu);
  const auto at = std::ranges::find(parts_->names, number, &LocationName::number);
  if (at != parts_->names.end()) {
    at->name = std::move(name);
  } else {
    parts_->names.push_back({number, std::move(name)});
  }
}

PublishHandle EventManager::publish(const KvEvent& block) {
  return parts_->table->publish(block, nullptr);
}

Publisher EventManager::publisher() {
  return Publisher(parts_->table);
}

Result<void> EventManager::add_sink(std::shared_ptr<BatchSink> sink, const BatchProfile& profile) {
  if (sink == nullptr) return make_error(ErrorCode::kInvalidArgument, "there is no sink to add");
  ASHLAR_RETURN_IF_ERROR(profile.validate());
  auto queue = std::make_shared<SinkQueue>(std::move(sink), profile, parts_->context());
  const MutexLock lock(parts_->drain_mu);
  const std::uint64_t next = parts_->state.next_number();
  ASHLAR_RETURN_IF_ERROR(queue->start(next, next != 0));
  parts_->queues.push_back(std::move(queue));
  return {};
}

Result<void> EventManager::remove_sink(const std::shared_ptr<BatchSink>& sink) {
  std::shared_ptr<SinkQueue> queue;
  {
    const MutexLock lock(parts_->drain_mu);
    const auto at =
        std::ranges::find_if(parts_->queues, [&](const auto& one) { return one->sink() == sink; });
    if (at == parts_->queues.end()) return make_error(ErrorCode::kNotFound, "there is no such sink");
    if ((*at)->is_its_thread())
      return make_error(ErrorCode::kInvalidArgument, "a sink cannot remove itself while it is called");
    queue = std::move(*at);
    parts_->queues.erase(at);
  }
  queue->stop();
  return {};
}

void EventManager::drain() {
  const MutexLock lock(parts_->drain_mu);
  parts_->drain_locked();
}

Result<void> EventManager::flush(Clock::TimePoint until) {
  std::vector<std::shared_ptr<SinkQueue>> queues;
  std::uint64_t number = 0;
  {
    const MutexLock lock(parts_->drain_mu);
    parts_->drain_locked();
    number = parts_->state.next_number();
    queues = parts_->queues;
  }
  for (const auto& queue : queues) queue->hurry(number, until);
  for (const auto& queue : queues) {
    if (queue->wait_for(number, until)) continue;
    const SinkCounters counters = queue->counters();
    return make_error(ErrorCode::kTimeout, "%zu events still wait for %s; its last error: %s",
                      counters.waiting, counters.sink.c_str(),
                      counters.last_error.empty() ? "none" : counters.last_error.c_str());
  }
  return {};
}

OwnedBatch EventManager::snapshot() {
  OwnedBatch batch;
  {
    const MutexLock lock(parts_->drain_mu);
    parts_->drain_locked();
    batch = parts_->snapshot_locked();
  }
  batch.locations = parts_->names_of(batch.events);
  return batch;
}

const StreamId& EventManager::stream() const noexcept {
  return parts_->options.stream;
}

EventCounters EventManager::counters() const {
  EventCounters out;
  const MutexLock lock(parts_->drain_mu);
  out.events = parts_->state.next_number();
  out.lost = parts_->state.counters().lost;
  out.repaired = parts_->state.counters().repaired;
  out.resyncs = parts_->state.counters().resyncs;
  out.present = parts_->state.present();
  for (const auto& queue : parts_->queues) out.sinks.push_back(queue->counters());
  return out;
}

Result<std::vector<MetricRegistration>> EventManager::add_metrics(MetricRegistry& metrics,
                                                                  const MetricLabels& labels) const {
  std::vector<MetricRegistration> out;
  const auto keep = [&](Result<MetricRegistration> added) -> Result<void> {
    if (!added) return std::move(added).error();
    out.push_back(*std::move(added));
    return {};
  };
  struct OfStream {
    const char* name;
    const char* help;
    std::uint64_t EventCounters::* member;
  };
  static constexpr OfStream kOfStream[] = {
      {"ashlar_events_total", "Events of the stream.", &EventCounters::events},
      {"ashlar_events_lost_total", "Events lost by logs that overflowed.", &EventCounters::lost},
      {"ashlar_event_repairs_total", "Overflows that were made good from the owner's list.",
       &EventCounters::repaired},
      {"ashlar_event_resyncs_total", "Overflows that removed a log's blocks.", &EventCounters::resyncs},
  };
  for (const OfStream& one : kOfStream)
    ASHLAR_RETURN_IF_ERROR(keep(metrics.add_counter(
        {one.name, one.help, labels}, [this, member = one.member] { return counters().*member; })));
  ASHLAR_RETURN_IF_ERROR(
      keep(metrics.add({"ashlar_event_blocks", "Blocks in the state of the stream.", labels},
                       [this] { return static_cast<double>(counters().present); })));
  ASHLAR_RETURN_IF_ERROR(keep(
      metrics.add({"ashlar_event_waiting", "Events that wait for the sinks, of all sinks.", labels}, [this] {
        std::size_t waiting = 0;
        for (const SinkCounters& sink : counters().sinks) waiting += sink.waiting;
        return static_cast<double>(waiting);
      })));
  struct OfSink {
    const char* name;
    const char* help;
    std::uint64_t SinkCounters::* member;
  };
  static constexpr OfSink kOfSink[] = {
      {"ashlar_event_sink_batches_total", "Batches that the sink took.", &SinkCounters::batches},
      {"ashlar_event_sink_events_total", "Events of these batches.", &SinkCounters::events},
      {"ashlar_event_sink_snapshots_total", "Snapshots that the sink took.", &SinkCounters::snapshots},
      {"ashlar_event_sink_failures_total", "Batches that the sink failed to take.", &SinkCounters::failures},
      {"ashlar_event_sink_dropped_total", "Events that a snapshot replaced for the sink.",
       &SinkCounters::dropped},
  };
  for (const OfSink& one : kOfSink)
    ASHLAR_RETURN_IF_ERROR(
        keep(metrics.add_counters({one.name, one.help, labels}, "sink", [this, member = one.member] {
          std::map<std::string, std::uint64_t> by_sink;
          for (const SinkCounters& sink : counters().sinks) by_sink[sink.sink] += sink.*member;
          return by_sink;
        })));
  return out;
}

void EventManager::check_invariants() const {
  const MutexLock lock(parts_->drain_mu);
  parts_->state.check_invariants();
  for (const auto& queue : parts_->queues) queue->check_invariants();
}

}  // namespace ashlar::events
