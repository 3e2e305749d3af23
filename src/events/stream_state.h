// StreamState: the drain of an EventManager: numbers what the sources say and keeps what it adds up to.
//
// Thread safety: thread-compatible; its owner holds events.drain.
// Invariant:     replaying every event that came out, in order, gives exactly present().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/events/event_log.h"
#include "ashlar/events/event_manager.h"

namespace ashlar::events {

class StreamState {
 public:
  struct Counters {
    std::uint64_t lost = 0;
    std::uint64_t repaired = 0;
    std::uint64_t resyncs = 0;
  };

  // Begins with what the lister says, where there is one; else with the log as it is. False when the log is a source already.
  bool add(std::shared_ptr<EventLog> log, EventManager::Lister lister, std::vector<KvEvent>& out);
  // Its blocks are removed, as events. False when it is none.
  bool remove(const std::shared_ptr<EventLog>& log, std::vector<KvEvent>& out);
  // Takes what waits in all logs and appends it to `out`, numbered.
  void drain(std::vector<KvEvent>& out);
  // Numbers an event that changes nothing.
  void pass(KvEvent event, std::vector<KvEvent>& out) { emit(event, out); }

  std::uint64_t next_number() const noexcept { return next_number_; }
  std::size_t present() const noexcept;
  // As Stored events, parents first.
  std::vector<KvEvent> list() const;
  const Counters& counters() const noexcept { return counters_; }

 private:
  // Two names of one producer may mean the same content; each comes and goes by itself.
  struct Key {
    explicit Key(const KvEvent& event) : Key(event.hash, event) {}
    Key(const tokens::SequenceHash& its_hash, const KvEvent& like)
        : hash(its_hash), name(like.has_name ? like.name_bits : 0), tier(like.tier) {}
    tokens::SequenceHash hash;
    std::uint64_t name;
    TierId tier;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<tokens::SequenceHash>()(key.hash) + key.tier.value() + key.name;
    }
  };
  struct Source {
    std::shared_ptr<EventLog> log;
    EventManager::Lister lister;
    std::unordered_map<Key, KvEvent, KeyHash> present = {};
    std::uint64_t heard = 0;  // events below this number of the log are known, from a list
  };
  class Drainer;

  static bool covers(const KvEvent& cleared, TierId tier) {
    return cleared.tier == kAllTiers || cleared.tier == tier;
  }

  void emit(KvEvent event, std::vector<KvEvent>& out);
  void apply(Source& source, const KvEvent& event, std::vector<KvEvent>& out);
  // Asks the lister, and says what is different.
  void catch_up(Source& source, std::vector<KvEvent>& out);
  // Events of the source were lost here.
  void mend(Source& source, const KvEvent& marker, std::vector<KvEvent>& out);
  // Removes what `stays` does not keep, children first.
  template <class Stays>
  void remove_from(Source& source, const Stays& stays, std::vector<KvEvent>& out);

  std::vector<std::unique_ptr<Source>> sources_;
  std::uint64_t next_number_ = 0;
  Counters counters_;
};

}  // namespace ashlar::events
