// StreamState: numbers the events of all sources of an EventManager and keeps the resulting state.
//
// Thread safety: thread-compatible; its owner holds events.drain.
// Invariant:     replaying every emitted event, in order, gives exactly present().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/events/event_log.h"
#include "ashlar/events/event_manager.h"
#include "events/event_key.h"
#include "events/slot_map.h"

namespace ashlar::events {

class StreamState {
 public:
  struct Counters {
    std::uint64_t lost = 0;
    std::uint64_t repaired = 0;
    std::uint64_t resyncs = 0;
  };

  // Starts with the lister's list; without a lister, with the log. Returns false if the log is already a
  // source.
  bool add(std::shared_ptr<EventLog> log, EventManager::Lister lister, std::vector<KvEvent>& out);
  // Emits the removal of its blocks. Returns false if the log is not a source.
  bool remove(const std::shared_ptr<EventLog>& log, std::vector<KvEvent>& out);
  // Drains all logs and appends their events to `out`, numbered.
  void drain(std::vector<KvEvent>& out);
  // Numbers an event that changes no state.
  void pass(KvEvent event, std::vector<KvEvent>& out) { emit(event, out); }

  std::uint64_t next_number() const noexcept { return next_number_; }
  std::size_t present() const noexcept;
  // As Stored events, by tier and position: a parent that the tier holds stands before its children.
  std::vector<KvEvent> list() const;
  const Counters& counters() const noexcept { return counters_; }

  // Aborts on an inconsistent state. For tests; O(n log n) in the blocks present.
  void check_invariants() const;

 private:
  struct Present {
    KvEvent event;
    std::uint64_t hash() const noexcept { return EventKey(event).mixed(); }
  };
  struct Source {
    std::shared_ptr<EventLog> log;
    EventManager::Lister lister;
    SlotMap<Present> present = {};
    unsigned tiers = 0;       // a bit for each tier it has used
    std::uint64_t heard = 0;  // a list covers log events below this number

    SlotMap<Present>::Slot find(const EventKey& key) const noexcept {
      return present.find(key.mixed(), [&](const Present& one) { return key.is_of(one.event); });
    }
  };
  class Drainer;

  static bool covers(const KvEvent& cleared, TierId tier) {
    return cleared.tier == kAllTiers || cleared.tier == tier;
  }

  void emit(KvEvent event, std::vector<KvEvent>& out);
  // Whether another source also holds it: two owners of one (hash, tier) are one to listeners.
  bool is_held_elsewhere(const Source& source, const EventKey& key) const noexcept;
  void insert(Source& source, const KvEvent& event, std::vector<KvEvent>& out);
  void apply(Source& source, const KvEvent& event, std::vector<KvEvent>& out);
  // Calls the lister and emits the differences.
  void catch_up(Source& source, std::vector<KvEvent>& out);
  // Events of the source were lost.
  void mend(Source& source, const KvEvent& marker, std::vector<KvEvent>& out);
  // Removes the blocks that `stays` rejects, children first.
  template <class Stays>
  void remove_from(Source& source, const Stays& stays, std::vector<KvEvent>& out);

  std::vector<std::unique_ptr<Source>> sources_;
  std::uint64_t next_number_ = 0;
  Counters counters_;
};

}  // namespace ashlar::events
