// Sinks for tests: EventRecorder keeps every event, PresenceMirror the resulting state.
//
// Thread safety: thread-compatible; an EventLog calls a sink from one drain at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/events/event_log.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::testing {

// Keeps every event, in the order of the log.
//
//   EventRecorder recorder;
//   const auto events = recorder.drain(*options.events);   // what happened since the last drain
//
// Complexity: O(events); memory grows until clear().
class EventRecorder final : public events::EventSink {
 public:
  void on_events(std::span<const events::KvEvent> events) override {
    events_.insert(events_.end(), events.begin(), events.end());
  }
  const std::vector<events::KvEvent>& events() const noexcept { return events_; }
  // Drains the log into this recorder and returns the new events. The span is valid until the next events.
  std::span<const events::KvEvent> drain(events::EventLog& log) {
    const std::size_t before = events_.size();
    log.drain(*this);
    return std::span(events_).subspan(before);
  }
  void clear() noexcept { events_.clear(); }

 private:
  std::vector<events::KvEvent> events_;
};

// The (hash, tier) pairs present according to the events. Remembers the first inconsistent event: a Stored of
// a present block, a Removed of an absent one, a parent that cannot be one, a number out of sequence. A
// kResync does not change the state; numbering continues there.
//
// Complexity: O(log present) per event.
class PresenceMirror final : public events::EventSink {
 public:
  void on_events(std::span<const events::KvEvent> events) override;

  using Key = std::pair<events::TierId, tokens::SequenceHash>;
  const std::set<Key>& present() const noexcept { return present_; }
  bool contains(events::TierId tier, const tokens::SequenceHash& hash) const {
    return present_.contains({tier, hash});
  }
  // How often the log overflowed, as it reported.
  std::size_t resyncs() const noexcept { return resyncs_; }
  // Empty while every event is consistent.
  const std::string& problem() const noexcept { return problem_; }

 private:
  void apply(const events::KvEvent& event);
  void report(const events::KvEvent& event, const char* what);

  std::set<Key> present_;
  std::uint64_t next_sequence_ = 0;
  std::size_t resyncs_ = 0;
  std::string problem_;
};

}  // namespace ashlar::testing
