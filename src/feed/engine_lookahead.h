// EngineLookahead: prefetches what the next events of a batch name while an event is applied: the places of
// kPlaces names, and for the first half of them that are removed, the records.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>

#include "ashlar/events/engine_codec.h"
#include "feed/held_blocks.h"

namespace ashlar::feed {

class EngineLookahead {
 public:
  EngineLookahead(const events::EngineBatch& batch, const HeldBlocks& blocks)
      : batch_(batch), blocks_(blocks) {}

  // The event is applied now.
  void pass(const events::EngineEvent& event) {
    passed_ += event.names.count;
    while (places_.names < passed_ + kPlaces && places_.event < batch_.events.size()) {
      const events::EngineEvent& next = batch_.events[places_.event++];
      places_.names += next.names.count;
      blocks_.prefetch(next.group.value_or(0), batch_.names_of(next));
    }
    while (records_.names < passed_ + kPlaces / 2 && records_.event < batch_.events.size()) {
      const events::EngineEvent& next = batch_.events[records_.event++];
      records_.names += next.names.count;
      if (next.kind == events::EngineEventKind::kRemoved)
        blocks_.prefetch_records(next.group.value_or(0), batch_.names_of(next));
    }
  }

 private:
  static constexpr std::size_t kPlaces = 16;
  struct Cursor {
    std::size_t event = 0;
    std::size_t names = 0;  // of the events before it
  };
  const events::EngineBatch& batch_;
  const HeldBlocks& blocks_;
  std::size_t passed_ = 0;
  Cursor places_;
  Cursor records_;
};

}  // namespace ashlar::feed
