#include "ashlar/feed/stream_relay.h"

#include <algorithm>
#include <utility>

namespace ashlar::feed {

using events::EventManager;
using events::KvEvent;

namespace {
constexpr std::size_t kChunk = 4096;  // events between two drains; the log holds them all
}

StreamRelay::~StreamRelay() = default;

std::shared_ptr<events::EventLog> StreamRelay::new_log() {
  auto log = std::make_shared<events::EventLog>(2 * kChunk);
  static_cast<void>(log->claim());
  return log;
}

StreamRelay::Out* StreamRelay::out_of(const events::Worker& worker, const events::StreamKeys& keys) {
  if (const auto at = outs_.find(worker); at != outs_.end()) return &at->second;
  if (refused_.contains(worker)) return nullptr;
  Out out;
  if (Result<void> opened = open(out, {worker, options_.incarnation}, keys); !opened) {
    refused_.emplace(worker, std::move(opened).error());
    return nullptr;
  }
  return &outs_.emplace(worker, std::move(out)).first->second;
}

Result<void> StreamRelay::open(Out& out, const events::StreamId& stream, const events::StreamKeys& keys) {
  // The relay drains by itself; the manager's own drain only reports.
  Result<std::unique_ptr<EventManager>> manager =
      EventManager::create({.stream = stream,
                            .keys = keys == events::StreamKeys() ? options_.keys : keys,
                            .drain_every = std::chrono::milliseconds(100),
                            .clock = options_.clock});
  if (!manager) return manager.error();
  auto sinks = options_.sinks(stream, **manager);
  if (!sinks) return sinks.error();
  for (auto& sink : *sinks)
    if (Result<void> added = (*manager)->add_sink(std::move(sink), options_.profile); !added) return added;
  out.log = new_log();
  if (Result<void> added = (*manager)->add_source(out.log); !added) return added;
  out.manager = *std::move(manager);
  return {};
}

void StreamRelay::append(Out& out, std::span<const KvEvent> events) {
  while (!events.empty()) {
    const std::size_t n = std::min(kChunk, events.size());
    for (const KvEvent& event : events.first(n)) out.log->append(event);
    out.manager->drain();
    events = events.subspan(n);
    relayed_ += n;
  }
}

void StreamRelay::on_reset(const events::StreamId& stream) {
  const auto at = outs_.find(stream.worker);
  if (at == outs_.end()) return;
  Out& out = at->second;
  static_cast<void>(out.manager->remove_source(out.log));
  out.log = new_log();
  static_cast<void>(out.manager->add_source(out.log));
}

void StreamRelay::on_events(const events::EventBatch& batch) {
  Out* out = out_of(batch.stream.worker, batch.keys);
  if (out == nullptr) return;
  for (const events::LocationName& location : batch.locations)
    out->manager->name_location(location.number, location.name);
  append(*out, batch.events);
}

void StreamRelay::relay(const events::Worker& worker, std::span<const KvEvent> events) {
  if (Out* out = out_of(worker, {})) append(*out, events);
}

Result<void> StreamRelay::flush(Clock::TimePoint until) {
  for (auto& [worker, out] : outs_) {
    if (Result<void> flushed = out.manager->flush(until); !flushed) return flushed;
  }
  if (const std::optional<Error> failed = error()) return *failed;
  return {};
}

std::optional<Error> StreamRelay::error() const {
  if (!outs_.empty() || refused_.empty()) return std::nullopt;
  return refused_.begin()->second;
}

std::vector<events::EventCounters> StreamRelay::counters() const {
  std::vector<events::EventCounters> out;
  for (const auto& [worker, one] : outs_) out.push_back(one.manager->counters());
  return out;
}

}  // namespace ashlar::feed
