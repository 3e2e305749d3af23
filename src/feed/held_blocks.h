// HeldBlocks: the blocks that a rank of an engine holds, by name.
//
// An array of 16-byte entries leads from a name to a record; records lie in chunks, side by side in the order
// in which they came, and do not move. prefetch() hides the miss of a look-up: events name blocks by the
// dozen.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected, but for the steps that double or halve the array.
// Invariant:     an empty table owns no memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/tier.h"
#include "base/entry_map.h"
#include "feed/block_content.h"
#include "feed/engine_run.h"

namespace ashlar::feed {

struct EngineBlock {
  EngineKey key;
  BlockContent content;
  std::array<std::uint32_t, events::kStorageTiers> counts{};  // 0 in all of them: a free record
  bool ambiguous = false;                                     // its name also arrived with other content
  bool indexed = true;
};

class HeldBlocks {
 public:
  std::size_t size() const noexcept { return places_.size(); }
  bool empty() const noexcept { return places_.empty(); }

  void prefetch(const EngineKey& key) const noexcept { places_.prefetch(key); }
  // Null when the rank does not hold it.
  EngineBlock* find(const EngineKey& key) noexcept {
    const Place* const place = places_.find(key);
    return place == nullptr ? nullptr : &record(place->number);
  }
  const EngineBlock* find(const EngineKey& key) const noexcept {
    return const_cast<HeldBlocks*>(this)->find(key);
  }
  // Requires: its key is absent. Throws std::bad_alloc with nothing changed.
  EngineBlock& add(EngineBlock block) {
    if (free_.empty() && end_ == chunks_.size() * kChunk) {
      chunks_.push_back(std::make_unique<std::array<EngineBlock, kChunk>>());
      if (const std::size_t records = chunks_.size() * kChunk; free_.capacity() < records)
        free_.reserve(2 * records);
    }
    const std::uint32_t number = free_.empty() ? end_ + 1 : free_.back();
    const bool fresh = places_.insert({block.key.name, block.key.group, number}).second;
    ASHLAR_DCHECK(fresh, "a block is added that is there; %zu are", size());
    if (free_.empty())
      ++end_;
    else
      free_.pop_back();
    return record(number) = std::move(block);
  }
  void erase(const EngineBlock& block) noexcept {
    Place* const place = places_.find(block.key);
    const std::uint32_t number = place->number;
    places_.erase(place);
    if (places_.empty()) return clear();
    record(number) = EngineBlock{};
    free_.push_back(number);  // its memory was reserved
  }
  void clear() noexcept {
    places_.clear();
    chunks_.clear();
    chunks_.shrink_to_fit();
    free_ = {};
    end_ = 0;
  }
  // In no order that means anything.
  template <class F>
  void for_each(F&& fn) {
    places_.for_each([&](const Place& place) { fn(record(place.number)); });
  }
  template <class F>
  void for_each(F&& fn) const {
    const_cast<HeldBlocks*>(this)->for_each([&](const EngineBlock& block) { fn(block); });
  }

 private:
  static constexpr std::size_t kChunk = 128;
  struct Place {
    using Key = EngineKey;
    events::BlockName name;
    std::uint32_t group = 0;
    std::uint32_t number = 0;  // of the record, from 1 on

    Key key() const noexcept { return {group, name}; }
    bool empty() const noexcept { return number == 0; }
    static std::uint64_t hash(const Key& key, std::uint64_t seed) noexcept {
      return seeded_hash(key.name.value(), key.group, seed);
    }
  };
  static_assert(sizeof(Place) == 16);

  EngineBlock& record(std::uint32_t number) noexcept {
    return (*chunks_[(number - 1) / kChunk])[(number - 1) % kChunk];
  }

  EntryMap<Place> places_;
  std::vector<std::unique_ptr<std::array<EngineBlock, kChunk>>> chunks_;
  std::vector<std::uint32_t> free_;
  std::uint32_t end_ = 0;  // records that were given out
};

}  // namespace ashlar::feed
