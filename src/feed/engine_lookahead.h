// EngineLookahead: prefetches what the next events of a batch name while an event is applied: the places of
// kPlaces names, and for the first half of them that are removed, the records. Events with more than kMost
// names are left out: who applies them looks ahead within them.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/events/engine_codec.h"
#include "feed/held_blocks.h"

namespace ashlar::feed {

// What was found ahead of time of the names of an event, or of some of them.
struct NamesAhead {
  std::span<const HeldBlocks::Probe> probes;
  std::span<const std::uint32_t> numbers;  // of a removal: where the records probably are
};

class EngineLookahead {
 public:
  static constexpr std::size_t kMost = 128;

  // Where it is kept, from batch to batch.
  class Memory {
    friend class EngineLookahead;
    // Two events and the names between them, wherever they wrap.
    static constexpr std::size_t kNames = 4 * kMost;
    std::array<HeldBlocks::Probe, kNames> probes_;
    std::array<std::uint32_t, kNames> numbers_{};
  };

  EngineLookahead(const events::EngineBatch& batch, const HeldBlocks& blocks, Memory& memory)
      : batch_(batch), blocks_(blocks), memory_(memory) {}

  // The event is applied now. Returns what is known of its names; empty: it has too many. Requires: events in
  // their order.
  NamesAhead pass(const events::EngineEvent& event) {
    const Place here = now_.take(event);
    while (places_.event < batch_.events.size() &&
           (places_.names < now_.names + kPlaces || places_.event < now_.event)) {
      const events::EngineEvent& next = batch_.events[places_.event];
      const Place place = places_.take(next);
      if (place.count != 0) blocks_.probe(next.group.value_or(0), batch_.names_of(next), probes_at(place));
    }
    while (records_.event < places_.event &&
           (records_.names < now_.names + kPlaces / 2 || records_.event < now_.event)) {
      const events::EngineEvent& next = batch_.events[records_.event];
      const Place place = records_.take(next);
      if (place.count != 0 && next.kind == events::EngineEventKind::kRemoved)
        blocks_.prefetch_records(probes_at(place), numbers_at(place));
    }
    return {.probes = probes_at(here), .numbers = numbers_at(here)};
  }

 private:
  static constexpr std::size_t kPlaces = 16;
  struct Place {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  // All cursors give an event the same place.
  struct Cursor {
    Place take(const events::EngineEvent& next) noexcept {
      ++event;
      names += next.names.count;
      if (next.names.count > kMost) return {};
      if (end + next.names.count > Memory::kNames) end = 0;
      const Place place{end, next.names.count};
      end += next.names.count;
      return place;
    }
    std::size_t event = 0;
    std::size_t names = 0;  // of the events before it
    std::size_t end = 0;    // of the places of those
  };
  std::span<HeldBlocks::Probe> probes_at(const Place& place) const {
    return std::span(memory_.probes_).subspan(place.first, place.count);
  }
  std::span<std::uint32_t> numbers_at(const Place& place) const {
    return std::span(memory_.numbers_).subspan(place.first, place.count);
  }

  const events::EngineBatch& batch_;
  const HeldBlocks& blocks_;
  Memory& memory_;
  Cursor now_;
  Cursor places_;
  Cursor records_;
};

}  // namespace ashlar::feed
