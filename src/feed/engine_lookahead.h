// EngineLookahead: prefetches what the next events of a batch name while an event is applied: the places of
// kPlaces names, and for the first half of them that are removed, the records.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "feed/held_blocks.h"

namespace ashlar::feed {

class EngineLookahead {
 public:
  // `probes` and `numbers` are where those of the names are kept.
  EngineLookahead(const events::EngineBatch& batch, const HeldBlocks& blocks,
                  std::vector<HeldBlocks::Probe>& probes, std::vector<std::uint32_t>& numbers)
      : batch_(batch), blocks_(blocks), probes_(probes), numbers_(numbers) {
    if (probes_.size() < batch.names.size()) probes_.resize(batch.names.size());
    if (numbers_.size() < batch.names.size()) numbers_.resize(batch.names.size());
  }

  // The event is applied now.
  void pass(const events::EngineEvent& event) {
    passed_ += event.names.count;
    while (places_.event < batch_.events.size() &&
           (places_.names < passed_ + kPlaces || places_.event <= at_)) {
      const events::EngineEvent& next = batch_.events[places_.event++];
      places_.names += next.names.count;
      blocks_.probe(next.group.value_or(0), batch_.names_of(next), probes_of(next));
    }
    while (records_.event < places_.event &&
           (records_.names < passed_ + kPlaces / 2 || records_.event <= at_)) {
      const events::EngineEvent& next = batch_.events[records_.event++];
      records_.names += next.names.count;
      if (next.kind == events::EngineEventKind::kRemoved)
        blocks_.prefetch_records(probes_of(next), numbers_of(next));
    }
    ++at_;
  }
  // Of the names of an event that was passed.
  std::span<HeldBlocks::Probe> probes_of(const events::EngineEvent& event) const {
    return std::span(probes_).subspan(event.names.begin, event.names.count);
  }
  // Of those of a removal: where their records probably are.
  std::span<std::uint32_t> numbers_of(const events::EngineEvent& event) const {
    return std::span(numbers_).subspan(event.names.begin, event.names.count);
  }

 private:
  static constexpr std::size_t kPlaces = 16;
  struct Cursor {
    std::size_t event = 0;
    std::size_t names = 0;  // of the events before it
  };
  const events::EngineBatch& batch_;
  const HeldBlocks& blocks_;
  std::vector<HeldBlocks::Probe>& probes_;
  std::vector<std::uint32_t>& numbers_;
  std::size_t at_ = 0;  // the next event to pass
  std::size_t passed_ = 0;
  Cursor places_;
  Cursor records_;
};

}  // namespace ashlar::feed
