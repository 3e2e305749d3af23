#include "ashlar/feed/stream_relay.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::feed {

using events::EventManager;
using events::KvEvent;

namespace {

constexpr std::size_t kChunk = 4096;  // events between two drains; the log holds them all

}  // namespace

StreamRelay::~StreamRelay() = default;

std::shared_ptr<events::EventLog> StreamRelay::new_log() {
  auto log = std::make_shared<events::EventLog>(2 * kChunk);
  ASHLAR_CHECK(log->claim(), "a new log has no producer");
  return log;
}

StreamRelay::Out* StreamRelay::out_of(const events::Worker& worker, const events::StreamKeys& keys,
                                      std::size_t events) {
  if (const auto at = outs_.find(worker); at != outs_.end()) return &at->second;
  if (worker.rank >= options_.ranks) {
    left_out_.beyond_ranks += events;
    left_out_.last = "rank " + std::to_string(worker.rank) + " of worker " +
                     std::to_string(worker.id.value()) + "; ranks below " + std::to_string(options_.ranks) +
                     " are relayed";
    return nullptr;
  }
  if (!refused_.contains(worker)) {
    if (outs_.size() + refused_.size() >= options_.max_workers) {
      left_out_.beyond_workers += events;
      left_out_.last = "worker " + std::to_string(worker.id.value()) + " rank " +
                       std::to_string(worker.rank) + " comes behind " + std::to_string(options_.max_workers) +
                       " others, and no more are relayed";
      return nullptr;
    }
    Out out;
    Result<void, SinkFailure> opened = open(out, {worker, options_.incarnation}, keys);
    if (opened) return &outs_.emplace(worker, std::move(out)).first->second;
    if (!opened.error().is_of_stream && status_) status_ = opened.error().error;
    refused_.emplace(worker, std::move(opened).error().error);
  }
  left_out_.without_sinks += events;
  return nullptr;
}

Result<void, StreamRelay::SinkFailure> StreamRelay::open(Out& out, const events::StreamId& stream,
                                                         const events::StreamKeys& keys) {
  // The relay drains by itself; the manager's own drain only reports.
  Result<std::unique_ptr<EventManager>> manager =
      EventManager::create({.stream = stream,
                            .keys = keys == events::StreamKeys() ? options_.keys : keys,
                            .drain_every = std::chrono::milliseconds(100),
                            .clock = options_.clock});
  if (!manager) return SinkFailure{manager.error()};
  ASHLAR_TRY(auto sinks, options_.sinks(stream, **manager));
  for (auto& sink : sinks)
    if (Result<void> added = (*manager)->add_sink(std::move(sink), options_.profile); !added)
      return SinkFailure{added.error()};
  out.log = new_log();
  if (Result<void> added = (*manager)->add_source(out.log); !added) return SinkFailure{added.error()};
  out.manager = *std::move(manager);
  return {};
}

bool StreamRelay::publishes(const events::StreamId& stream) const {
  if (stream.incarnation != options_.incarnation) return false;
  const auto at = outs_.find(stream.worker);
  return at != outs_.end() && at->second.incarnation != stream.incarnation;
}

void StreamRelay::append(Out& out, std::span<const KvEvent> events) {
  while (!events.empty()) {
    const std::size_t n = std::min(kChunk, events.size());
    for (KvEvent event : events.first(n)) {
      event.drop_parent_name();  // what an engine called the parent then says nothing to who listens later
      out.log->append(event);
    }
    out.manager->drain();
    ASHLAR_CHECK(out.log->lost() == 0, "the relay drains before its log is full; %llu events were lost",
                 static_cast<unsigned long long>(out.log->lost()));
    events = events.subspan(n);
    relayed_ += n;
  }
}

void StreamRelay::on_reset(const events::StreamId& stream) {
  const auto at = outs_.find(stream.worker);
  if (at == outs_.end() || publishes(stream)) return;
  Out& out = at->second;
  static_cast<void>(out.manager->remove_source(out.log));
  out.log = new_log();
  static_cast<void>(out.manager->add_source(out.log));
}

void StreamRelay::on_events(const events::EventBatch& batch) {
  if (publishes(batch.stream)) {
    ++returned_;
    return;
  }
  Out* out = out_of(batch.stream.worker, batch.keys, batch.events.size());
  if (out == nullptr) return;
  if (!out->incarnation) out->incarnation = batch.stream.incarnation;
  for (const events::LocationName& location : batch.locations)
    out->manager->name_location(location.number, location.name);
  append(*out, batch.events);
}

void StreamRelay::relay(const events::Worker& worker, std::span<const KvEvent> events) {
  if (Out* out = out_of(worker, {}, events.size())) append(*out, events);
}

Result<void> StreamRelay::flush(Clock::TimePoint until) {
  for (auto& [worker, out] : outs_) {
    if (Result<void> flushed = out.manager->flush(until); !flushed) return flushed;
  }
  return status_;
}

std::vector<events::EventCounters> StreamRelay::counters() const {
  std::vector<events::EventCounters> out;
  out.reserve(outs_.size());
  for (const auto& [worker, one] : outs_) out.push_back(one.manager->counters());
  return out;
}

}  // namespace ashlar::feed
