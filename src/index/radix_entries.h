// RadixEntries: the names of one store among the names of its worker (radix_place.h).
//
// A store first puts all its names into the map, the new ones without a place, which finds those that stand twice or
// are known; then either every name gets its place in the tree, or the map is brought back to where it was. Entries of
// the first 1,024 names are remembered, so that giving places does not search again.
//
// Thread safety: thread-compatible; the map must not change otherwise meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/index/indexer.h"
#include "index/radix_node.h"
#include "index/radix_place.h"
#include "index/radix_tally.h"

namespace ashlar::index {

class RadixEntries {
 public:
  // How many names ahead the map is fetched.
  static constexpr std::size_t kAhead = 16;

  // Requires: the event has blocks.
  RadixEntries(RadixNames& names, std::span<const StoredBlock> blocks)
      : names_(names), blocks_(blocks), capacity_(names.map().capacity()) {}
  RadixEntries(const RadixEntries&) = delete;
  RadixEntries& operator=(const RadixEntries&) = delete;

  std::span<const StoredBlock> blocks() const noexcept { return blocks_; }
  // What the name of a block means; pending where insert() was the first to see it.
  RadixPlace& place(std::size_t i) noexcept {
    return i < kept_ ? entries_[i]->place : names_.map().find(blocks_[i].name)->place;
  }

  // Puts all names into the map, the new ones without a place. Stops at a name that stands twice.
  bool insert() {
    EntryMap<RadixNames::Entry>& map = names_.map();
    // An event whose first name is new has new names only, most of the time.
    if (map.find(blocks_[0].name) == nullptr) map.reserve(map.size() + blocks_.size());
    const std::size_t capacity = map.capacity();
    for (std::size_t i = 0; i < std::min(kAhead, blocks_.size()); ++i) map.prefetch(blocks_[i].name);
    for (; inserted_ < blocks_.size(); ++inserted_) {
      if (inserted_ + kAhead < blocks_.size()) map.prefetch(blocks_[inserted_ + kAhead].name);
      const auto [entry, is_new] = map.insert({blocks_[inserted_].name, RadixPlace::pending()});
      if (inserted_ < kKept) entries_[inserted_] = entry;
      if (is_new) continue;
      if (entry->place.is_pending()) return false;
      any_known_ = true;
    }
    if (map.capacity() == capacity) kept_ = std::min(kKept, blocks_.size());
    return true;
  }
  // Some names were in the map before.
  bool any_known() const noexcept { return any_known_; }
  // Takes the names out again that have no place. The map is as it was, to the byte.
  void undo() {
    kept_ = 0;
    for (const StoredBlock& block : blocks_.first(inserted_)) {
      RadixNames::Entry* entry = names_.map().find(block.name);
      if (entry->place.is_pending()) names_.map().erase(entry);
    }
    names_.map().restore_capacity(capacity_);
  }

  // The blocks from `first` on, `count` of them, lie at the node from the offset on, where the worker held
  // `held_before` in the tier.
  void give_places(StorageTier tier, const RadixNode* node, std::uint32_t offset, std::size_t first,
                   std::uint32_t count, std::uint64_t held_before, RadixTally& tally) {
    for (std::size_t i = first; i < first + count; ++i, ++offset) {
      RadixPlace& here = place(i);
      if (here.is_pending()) here = RadixPlace(node, offset);
      if (here.in_tier(tier)) {
        ++tally.counters.repeated;
      } else {
        here.add_tier(tier);
        if ((held_before >> offset & 1) != 0) names_.add_name(here, tier);
      }
    }
  }

 private:
  static constexpr std::size_t kKept = 1024;

  RadixNames& names_;
  const std::span<const StoredBlock> blocks_;
  const std::size_t capacity_;  // of the map, before
  std::size_t inserted_ = 0;
  bool any_known_ = false;
  std::size_t kept_ = 0;  // pointers below that are good
  std::array<RadixNames::Entry*, kKept> entries_;
};

}  // namespace ashlar::index
