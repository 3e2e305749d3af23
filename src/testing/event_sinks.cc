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
    if (!present_.insert(key).second) report(event, "stored, and present already");
    if (event.parent() && !event.parent()->can_precede(event.hash))
      report(event, "not the child of its parent");
    return;
  }
  if (present_.erase(key) == 0) report(event, "removed, and not present");
}

}  // namespace ashlar::testing
