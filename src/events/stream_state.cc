// A stream is the union of its sources: an event is emitted only when the first source gains a (name, tier)
// or the last one loses it. After an overflow the lister gives the true state, and remove_from() and insert()
// emit the difference to the known state.
#include "events/stream_state.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::events {

class StreamState::Drainer final : public EventSink {
 public:
  Drainer(StreamState& state, Source& source, std::vector<KvEvent>& out)
      : state_(state), source_(source), out_(out) {}
  void on_events(std::span<const KvEvent> events) override {
    for (const KvEvent& event : events) state_.apply(source_, event, out_);
  }

 private:
  StreamState& state_;
  Source& source_;
  std::vector<KvEvent>& out_;
};

bool StreamState::add(std::shared_ptr<EventLog> log, EventManager::Lister lister, std::vector<KvEvent>& out) {
  for (const auto& source : sources_)
    if (source->log == log) return false;
  sources_.push_back(std::make_unique<Source>(Source{.log = std::move(log), .lister = std::move(lister)}));
  if (sources_.back()->lister) catch_up(*sources_.back(), out);
  return true;
}

bool StreamState::remove(const std::shared_ptr<EventLog>& log, std::vector<KvEvent>& out) {
  const auto at = std::ranges::find_if(sources_, [&](const auto& source) { return source->log == log; });
  if (at == sources_.end()) return false;
  remove_from(**at, [](const KvEvent&) { return false; }, out);
  sources_.erase(at);
  return true;
}

void StreamState::drain(std::vector<KvEvent>& out) {
  for (const auto& source : sources_) {
    Drainer drainer(*this, *source, out);
    source->log->drain(drainer);
  }
}

std::size_t StreamState::present() const noexcept {
  std::size_t count = 0;
  for (const auto& source : sources_) count += source->present.size();
  return count;
}

std::vector<KvEvent> StreamState::list() const {
  std::vector<KvEvent> out;
  out.reserve(present());
  for (const auto& source : sources_)
    source->present.for_each([&](const Present& one) {
      out.push_back(one.event);
      out.back().sequence = 0;
    });
  std::ranges::sort(out, [](const KvEvent& a, const KvEvent& b) {
    if (a.tier != b.tier) return a.tier < b.tier;
    if (const auto by = a.hash <=> b.hash; by != 0) return by < 0;
    return a.name_bits < b.name_bits;
  });
  const auto [last, end] = std::ranges::unique(out, [](const KvEvent& a, const KvEvent& b) {
    return EventKey(a).is_of(b);  // of two sources
  });
  out.erase(last, end);
  return out;
}

bool StreamState::is_held_elsewhere(const Source& source, const EventKey& key) const noexcept {
  return std::ranges::any_of(sources_, [&](const auto& other) {
    return other.get() != &source && (other->tiers >> key.tier.value() & 1u) != 0 &&
           other->find(key) != SlotMap<Present>::kNone;
  });
}

void StreamState::insert(Source& source, const KvEvent& event, std::vector<KvEvent>& out) {
  ASHLAR_DCHECK(source.find(EventKey(event)) == SlotMap<Present>::kNone,
                "a source holds each (name, tier) once");
  source.tiers |= 1u << event.tier.value();
  source.present.insert({event});
  if (!is_held_elsewhere(source, EventKey(event))) emit(event, out);
}

void StreamState::emit(KvEvent event, std::vector<KvEvent>& out) {
  event.sequence = next_number_++;
  out.push_back(event);
}

void StreamState::apply(Source& source, const KvEvent& event, std::vector<KvEvent>& out) {
  if (event.kind == KvEventKind::kResync) return mend(source, event, out);
  if (event.sequence < source.heard) return;
  switch (event.kind) {
    case KvEventKind::kStored:
      if (const auto slot = source.find(EventKey(event)); slot != SlotMap<Present>::kNone) {
        source.present.at(slot).event = event;
        return;
      }
      return insert(source, event, out);
    case KvEventKind::kRemoved: {
      const EventKey key(event);
      const auto slot = source.find(key);
      if (slot == SlotMap<Present>::kNone) return;
      source.present.erase(slot);
      if (is_held_elsewhere(source, key)) return;
      break;
    }
    case KvEventKind::kCleared:
      if (sources_.size() > 2)  // others may hold some of its blocks: remove its own one by one
        return remove_from(source, [&](const KvEvent& one) { return !covers(event, one.tier); }, out);
      if (source.present.erase_if([&](const Present& one) { return covers(event, one.event.tier); }) == 0)
        return;
      break;
    default:
      break;
  }
  emit(event, out);
}

template <class Stays>
void StreamState::remove_from(Source& source, const Stays& stays, std::vector<KvEvent>& out) {
  std::vector<KvEvent> gone;
  source.present.erase_if([&](const Present& one) {
    if (stays(one.event)) return false;
    KvEvent event = one.event;
    event.kind = KvEventKind::kRemoved;
    gone.push_back(event);
    return true;
  });
  std::ranges::sort(gone, [](const KvEvent& a, const KvEvent& b) { return b.hash < a.hash; });
  for (const KvEvent& event : gone)
    if (!is_held_elsewhere(source, EventKey(event))) emit(event, out);
}

void StreamState::mend(Source& source, const KvEvent& marker, std::vector<KvEvent>& out) {
  counters_.lost += marker.block;
  if (!source.lister) {
    ++counters_.resyncs;
    remove_from(source, [](const KvEvent&) { return false; }, out);
    return;
  }
  ++counters_.repaired;
  catch_up(source, out);
}

void StreamState::catch_up(Source& source, std::vector<KvEvent>& out) {
  std::vector<KvEvent> held;
  try {
    source.heard = source.lister(held);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the list is lost
    ++counters_.resyncs;
    held.clear();
  }
  SlotMap<Present> now;
  for (const KvEvent& event : held) now.insert({event});
  // A block that was evicted and restored meanwhile may have moved.
  const auto stays = [&](const KvEvent& event) {
    const EventKey key(event);
    const auto slot = now.find(key.mixed(), [&](const Present& one) { return key.is_of(one.event); });
    return slot != SlotMap<Present>::kNone && now.at(slot).event.block == event.block &&
           now.at(slot).event.location == event.location;
  };
  remove_from(source, stays, out);
  for (const KvEvent& event : held) {
    if (source.find(EventKey(event)) == SlotMap<Present>::kNone) insert(source, event, out);
  }
}

void StreamState::check_invariants() const {
  for (const auto& source : sources_) {
    ASHLAR_CHECK(std::ranges::count(sources_, source->log, [](const auto& one) { return one->log; }) == 1,
                 "a log is a source once");
    ASHLAR_CHECK(source->heard <= source->log->next_sequence(),
                 "event %llu was listed, but the log has not numbered it",
                 static_cast<unsigned long long>(source->heard));
    source->present.check_invariants();
    source->present.for_each([&](const Present& one) {
      ASHLAR_CHECK(one.event.kind == KvEventKind::kStored, "what is present was stored, not %s",
                   to_string(one.event.kind).data());
      ASHLAR_CHECK((source->tiers >> one.event.tier.value() & 1u) != 0,
                   "a block lies in tier %u, which other sources think this one does not use",
                   unsigned{one.event.tier.value()});
      ASHLAR_CHECK(source->present.at(source->find(EventKey(one.event))).event == one.event,
                   "two records of one source have the same key");
    });
  }
  const std::vector<KvEvent> listed = list();
  ASHLAR_CHECK(listed.size() <= present(), "a snapshot lists %zu blocks, more than the %zu present",
               listed.size(), present());
  for (std::size_t i = 1; i < listed.size(); ++i)
    ASHLAR_CHECK(listed[i - 1].tier < listed[i].tier ||
                     (listed[i - 1].tier == listed[i].tier && listed[i - 1].hash <= listed[i].hash),
                 "a snapshot lists parents first: by tier, then by position");
}

}  // namespace ashlar::events
