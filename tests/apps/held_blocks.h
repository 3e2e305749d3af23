// What streams add up to, and what the engines of recordings held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar {

using Held = std::set<std::pair<std::uint8_t, std::uint64_t>>;  // tier, name

inline void take_in(Held& held, std::span<const events::KvEvent> events) {
  for (const events::KvEvent& event : events) {
    const std::pair key(event.tier.value(), event.name().value());
    if (event.kind == events::KvEventKind::kStored) held.insert(key);
    if (event.kind == events::KvEventKind::kRemoved) held.erase(key);
    if (event.kind == events::KvEventKind::kCleared) held.clear();
  }
}

// What an engine of that recording holds after so many messages.
inline Held held_after(const std::string& name, std::size_t messages) {
  auto session =
      feed::EngineSession::create(
          feed::RecordingSource::create({.path = std::string(ASHLAR_TEST_DATA) + "/vllm/" + name + ".kvrec"})
              .value())
          .value();
  Held held;
  std::vector<events::KvEvent> out;
  for (bool more = true; more && session.counters().applied < messages;) {
    out.clear();
    more = session.step({}, out).has_value();
    take_in(held, out);
  }
  return held;
}
// In the end.
inline Held held_by_engine(const std::string& name) {
  return held_after(name, std::numeric_limits<std::size_t>::max());
}

// What all streams that it hears hold.
class Holder final : public feed::StreamListener {
 public:
  void on_reset(const events::StreamId&) override { held.clear(); }
  void on_events(const events::EventBatch& batch) override {
    take_in(held, batch.events);
    stream = batch.stream;
    keys = batch.keys;
  }
  Held held;
  events::StreamId stream;
  events::StreamKeys keys;
};

}  // namespace ashlar
