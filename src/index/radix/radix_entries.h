// RadixEntries: the names of one store among the names of its worker (radix_place.h).
//
// A store first inserts all its names into the map, new ones without a place, which finds duplicate and known
// names; then either every name gets its place in the tree, or the map is restored. Entries of the first
// 1,024 names are remembered, so that giving places needs no second lookup.
//
// RadixSteps: the changes of a store in the tree so far, node by node, for undo.
//
// Thread safety: thread-compatible; the map must not change otherwise during the store.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/radix/radix_node.h"
#include "index/radix/radix_place.h"
#include "index/radix/radix_tally.h"

namespace ashlar::index {

// Blocks of a store that lie in one node.
struct RadixStep {
  RadixNode* node;
  std::uint64_t held_before;  // by the worker, in the tier; a bit per offset
  std::uint64_t repeated;     // names already in the tier
  std::size_t first;          // block of the event
  std::uint32_t offset;       // of the first one in the node
  std::uint32_t count;
  std::uint32_t given;  // blocks whose names have been placed
};

class RadixSteps {
 public:
  RadixSteps() = default;
  RadixSteps(const RadixSteps&) = delete;
  RadixSteps& operator=(const RadixSteps&) = delete;

  // Reserves memory for one more step. Throws std::bad_alloc.
  void make_room() {
    if (size_ >= kInside && size_ - kInside == more_.size()) [[unlikely]]
      more_.emplace_back();
  }
  // Requires: make_room().
  RadixStep& add(const RadixStep& step) noexcept {
    RadixStep& place = at(size_++);
    place = step;
    return place;
  }
  bool empty() const noexcept { return size_ == 0; }
  RadixStep& back() noexcept { return at(size_ - 1); }
  void pop_back() noexcept { --size_; }

 private:
  static constexpr std::size_t kInside = 16;

  RadixStep& at(std::size_t i) noexcept { return i < kInside ? inside_[i] : more_[i - kInside]; }

  std::size_t size_ = 0;
  std::array<RadixStep, kInside> inside_;
  std::vector<RadixStep> more_;
};

class RadixEntries {
 public:
  // How many names ahead the map is prefetched.
  static constexpr std::size_t kAhead = 16;

  // Requires: the event has blocks.
  RadixEntries(RadixNames& names, std::span<const StoredBlock> blocks)
      : names_(names), blocks_(blocks), capacity_(names.map().capacity()) {}
  RadixEntries(const RadixEntries&) = delete;
  RadixEntries& operator=(const RadixEntries&) = delete;

  std::span<const StoredBlock> blocks() const noexcept { return blocks_; }
  // The place of a block's name; pending if insert() added it.
  RadixPlace& place(std::size_t i) noexcept {
    return i < kept_ ? entries_[i]->place : names_.map().find(blocks_[i].name)->place;
  }

  // Inserts all names into the map, new ones without a place. Stops at a duplicate name.
  bool insert() {
    EntryMap<RadixNames::Entry>& map = names_.map();
    // An event whose first name is new usually has only new names.
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
  // Removes the names that are in no tier. Restores the map, to the byte where memory allows.
  void undo() noexcept {
    kept_ = 0;
    for (const StoredBlock& block : blocks_.first(inserted_)) {
      RadixNames::Entry* entry = names_.map().find(block.name);
      if (!entry->place.in_any_tier()) names_.map().erase(entry);
    }
    names_.map().restore_capacity(capacity_);
  }

  // Gives the blocks of a step their places. Throws std::bad_alloc; step.given then says how many have
  // theirs.
  void give_places(StorageTier tier, RadixStep& step, RadixTally& tally) {
    std::uint32_t offset = step.offset;
    for (; step.given < step.count; ++step.given, ++offset) {
      RadixPlace& here = place(step.first + step.given);
      if (here.is_pending()) here = RadixPlace(step.node, offset);
      if (here.in_tier(tier)) {
        step.repeated |= std::uint64_t{1} << offset;
        ++tally.counters.repeated;
      } else {
        if ((step.held_before >> offset & 1) != 0) names_.add_name(here, tier);
        here.add_tier(tier);
      }
    }
  }
  // Undoes give_places().
  void take_places(StorageTier tier, RadixStep& step) noexcept {
    for (; step.given > 0; --step.given) {
      const std::uint32_t offset = step.offset + step.given - 1;
      if ((step.repeated >> offset & 1) != 0) continue;
      RadixPlace& here = place(step.first + step.given - 1);
      here.take_tier(tier);
      if ((step.held_before >> offset & 1) != 0) names_.take_name(here, tier);
    }
  }

 private:
  static constexpr std::size_t kKept = 1024;

  RadixNames& names_;
  const std::span<const StoredBlock> blocks_;
  const std::size_t capacity_;  // of the map, before the store
  std::size_t inserted_ = 0;
  bool any_known_ = false;
  std::size_t kept_ = 0;  // valid pointers below
  std::array<RadixNames::Entry*, kKept> entries_;
};

}  // namespace ashlar::index
