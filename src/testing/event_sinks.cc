#include "ashlar/testing/event_sinks.h"

namespace ashlar::testing {

void PresenceMirror::on_events(std::span<const events::KvEvent> events) {
  for (const events::KvEvent& event : events) apply(event);
}

void PresenceMirror::report(const events::KvEvent& event, const char* what) {
  if (!problem_.empty()) return;
  problem_ = "event " + std::to_string(event.sequence) + " (" + event.hash.to_string() + ", block " +
             std::to_string(event.block) + "): " + what;
}

void PresenceMirror::apply(const events::KvEvent& event) {
  if (event.kind == events::KvEventKind::kResync) {
    ++resyncs_;
    next_sequence_ = event.sequence;
    return;
  }
  if (event.sequence != next_sequence_) report(event, "its number does not follow the one before");
  next_sequence_ = event.sequence + 1;
  const Key key{event.tier, event.hash};
  if (event.kind == events::KvEventKind::kStored) {
    if (!present_.emplace(key, event.block).second) report(event, "stored, and present already");
    if (event.parent() && !present_.contains({event.tier, *event.parent()}))
      report(event, "its parent is not here");
    return;
  }
  const auto there = present_.find(key);
  if (there == present_.end()) {
    report(event, "removed, and not present");
    return;
  }
  if (there->second != event.block) report(event, "removed from another block than it was stored in");
  present_.erase(there);
}

}  // namespace ashlar::testing
