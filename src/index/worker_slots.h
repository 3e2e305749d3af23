// WorkerSlots: small dense numbers for the workers that an index knows, so that sets of workers are bitsets and scores
// are arrays.
//
// A worker has a slot from assign() to release(). The lowest free slot is used first, and free slots at the end vanish,
// so that the arrays stay as short as the workers allow. Every change takes a new assignment number (match_scores.h).
//
// Thread safety: thread-compatible.
// Complexity:    find() is O(1); assign() and release() are O(slots / 64); slots_of() is O(slots). No heap memory when
//                no worker has a slot.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/worker.h"
#include "ashlar/index/match_scores.h"
#include "index/entry_map.h"

namespace ashlar::index {

class WorkerSlots {
 public:
  std::optional<std::uint32_t> find(const events::Worker& worker) const noexcept {
    const Entry* entry = slots_.find(worker);
    return entry == nullptr ? std::nullopt : std::optional(entry->slot_and_one - 1);
  }

  // The worker's slot; a new one when it has none.
  std::uint32_t assign(const events::Worker& worker) {
    if (const std::optional<std::uint32_t> known = find(worker)) return *known;
    const std::uint32_t slot = lowest_free();
    if (slot == workers_.size()) workers_.emplace_back();
    if (slot / 64 == used_.size()) used_.push_back(0);
    workers_[slot] = worker;
    used_[slot / 64] |= bit(slot);
    slots_.insert({worker, slot + 1});
    assignment_ = MatchScores::next_assignment();
    return slot;
  }

  // Requires: the slot is in use.
  void release(std::uint32_t slot) {
    ASHLAR_DCHECK(in_use(slot), "slot %u of %zu is free", slot, workers_.size());
    slots_.erase(slots_.find(workers_[slot]));
    used_[slot / 64] &= ~bit(slot);
    workers_[slot] = {};
    while (!used_.empty() && used_.back() == 0) used_.pop_back();
    const std::size_t end =
        used_.empty() ? 0 : used_.size() * 64 - static_cast<std::size_t>(std::countl_zero(used_.back()));
    workers_.resize(end);
    if (workers_.size() * 4 <= workers_.capacity()) workers_.shrink_to_fit();
    if (used_.size() * 4 <= used_.capacity()) used_.shrink_to_fit();
    assignment_ = MatchScores::next_assignment();
  }

  bool in_use(std::uint32_t slot) const noexcept {
    return slot / 64 < used_.size() && (used_[slot / 64] & bit(slot)) != 0;
  }
  // The slots of all ranks of a worker, rising.
  std::vector<std::uint32_t> slots_of(events::WorkerId id) const {
    std::vector<std::uint32_t> slots;
    for (std::uint32_t slot = 0; slot < workers_.size(); ++slot)
      if (workers_[slot].id == id && in_use(slot)) slots.push_back(slot);
    return slots;
  }

  // By slot; a free one has the worker {0, 0}. The last one is in use.
  std::span<const events::Worker> workers() const noexcept { return workers_; }
  // Slots up to the last one in use.
  std::size_t capacity() const noexcept { return workers_.size(); }
  // Workers with a slot.
  std::size_t size() const noexcept { return slots_.size(); }
  std::uint64_t assignment() const noexcept { return assignment_; }
  std::size_t bytes() const noexcept {
    return slots_.bytes() + workers_.capacity() * sizeof(events::Worker) +
           used_.capacity() * sizeof(std::uint64_t);
  }

 private:
  struct Entry {
    using Key = events::Worker;
    events::Worker worker;
    std::uint32_t slot_and_one = 0;  // 0: empty

    const Key& key() const noexcept { return worker; }
    bool empty() const noexcept { return slot_and_one == 0; }
    static std::uint64_t hash(const Key& key) noexcept { return std::hash<events::Worker>{}(key); }
  };

  static std::uint64_t bit(std::uint32_t slot) noexcept { return std::uint64_t{1} << (slot % 64); }

  std::uint32_t lowest_free() const noexcept {
    const auto word = std::ranges::find_if(used_, [](std::uint64_t bits) { return ~bits != 0; });
    const auto base = static_cast<std::uint32_t>(word - used_.begin()) * 64;
    return word == used_.end() ? base : base + static_cast<std::uint32_t>(std::countr_one(*word));
  }

  EntryMap<Entry> slots_;
  std::vector<events::Worker> workers_;
  std::vector<std::uint64_t> used_;  // one bit per slot
  std::uint64_t assignment_ = MatchScores::next_assignment();
};

}  // namespace ashlar::index
