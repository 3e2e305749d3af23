// WorkerSlots: small dense numbers for the workers of an index, so that sets of workers are bitsets and
// scores are arrays.
//
// A worker has a slot from assign() to release(). The lowest free slot is used first, and trailing free slots
// are dropped, which keeps the arrays short. A slot may be retired before it is released: it has no worker,
// but is not reused yet. Every change takes a new assignment number (indexer.h).
//
// assign() throws std::bad_alloc with nothing changed. retire() and release() need no memory.
//
// Thread safety: thread-compatible.
// Complexity:    find() and retire() are O(1); assign() is O(slots / 4096), release() O(1) plus the slots it
//                drops, and the steps that double or halve the arrays; for_each_slot_of() is O(slots) of the
//                worker. No heap memory when no slot is used.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/index/indexer.h"
#include "base/entry_map.h"

namespace ashlar::index {

class WorkerSlots {
 public:
  std::optional<std::uint32_t> find(const events::Worker& worker) const noexcept {
    const Entry* entry = slots_.find(worker);
    return entry == nullptr ? std::nullopt : std::optional(entry->slot_and_one - 1);
  }

  // The worker's slot; a new one if it has none.
  std::uint32_t assign(const events::Worker& worker) {
    if (const std::optional<std::uint32_t> known = find(worker)) return *known;
    const std::uint32_t slot = lowest_free();
    make_room(slot);
    if (slot == workers_.size()) {
      workers_.emplace_back();
      links_.emplace_back();
    }
    if (slot / 64 == used_.size()) {
      used_.push_back(0);
      retired_.push_back(0);
    }
    workers_[slot] = worker;
    set_used(slot);
    slots_.insert({worker, slot + 1});
    link(slot);
    ASHLAR_DCHECK(used() <= workers_.size(), "%zu slots are taken of %zu", used(), workers_.size());
    assignment_ = MatchScores::next_assignment();
    return slot;
  }

  // Takes the slot from its worker; it stays taken. Requires: in_use(slot).
  void retire(std::uint32_t slot) noexcept {
    ASHLAR_DCHECK(in_use(slot), "slot %u of %zu is free", slot, workers_.size());
    unlink(slot);
    slots_.erase(slots_.find(workers_[slot]));
    workers_[slot] = {};
    retired_[slot / 64] |= bit(slot);
    ++retired_slots_;
    assignment_ = MatchScores::next_assignment();
  }
  // Requires: in_use(slot), or retired.
  void release(std::uint32_t slot) noexcept {
    if (in_use(slot)) retire(slot);
    ASHLAR_DCHECK(is_retired(slot), "slot %u of %zu is free", slot, workers_.size());
    retired_[slot / 64] &= ~bit(slot);
    --retired_slots_;
    used_[slot / 64] &= ~bit(slot);
    full_[slot / 4096] &= ~bit(slot / 64);
    while (!used_.empty() && used_.back() == 0) used_.pop_back();
    const std::size_t end =
        used_.empty() ? 0 : used_.size() * 64 - static_cast<std::size_t>(std::countl_zero(used_.back()));
    workers_.resize(end);
    links_.resize(end);
    retired_.resize(used_.size());
    full_.resize((used_.size() + 63) / 64);
    give_back_room();
    assignment_ = MatchScores::next_assignment();
  }

  // A worker has the slot.
  bool in_use(std::uint32_t slot) const noexcept {
    return slot / 64 < used_.size() && (used_[slot / 64] & bit(slot)) != 0 && !is_retired(slot);
  }
  // Calls fn(slot) for the slots of a worker's ranks, unordered; fn may retire the slot. At most `most` of
  // them; returns how many.
  template <class F>
  std::size_t for_each_slot_of(events::WorkerId id, std::size_t most, F&& fn) const {
    const Ranks* ranks = ranks_.find(id.value());
    if (ranks == nullptr) return 0;
    std::size_t count = 0;
    for (std::uint32_t slot = ranks->first; slot != kNone && count < most; ++count) {
      const std::uint32_t next = links_[slot].after;
      fn(slot);
      slot = next;
    }
    return count;
  }

  // By slot; a slot without a worker shows the worker {0, 0}. The last slot is taken.
  std::span<const events::Worker> workers() const noexcept { return workers_; }
  // Bits of retired slots, from slot 0 on; none while no slot is retired.
  std::span<const std::uint64_t> retired() const noexcept {
    return retired_slots_ == 0 ? std::span<const std::uint64_t>() : retired_;
  }
  // One more than the last taken slot.
  std::size_t capacity() const noexcept { return workers_.size(); }
  // Workers with a slot.
  std::size_t size() const noexcept { return slots_.size(); }
  // Taken slots: in use or retired.
  std::size_t used() const noexcept { return slots_.size() + retired_slots_; }
  std::uint64_t assignment() const noexcept { return assignment_; }
  std::size_t bytes() const noexcept {
    return slots_.bytes() + ranks_.bytes() + workers_.capacity() * sizeof(events::Worker) +
           links_.capacity() * sizeof(Links) +
           (used_.capacity() + full_.capacity() + retired_.capacity()) * sizeof(std::uint64_t);
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Entry {
    using Key = events::Worker;
    events::Worker worker;
    std::uint32_t slot_and_one = 0;  // 0: empty

    const Key& key() const noexcept { return worker; }
    bool empty() const noexcept { return slot_and_one == 0; }
    static std::uint64_t hash(const Key& key, std::uint64_t seed) noexcept {
      return seeded_hash(key.id.value(), key.rank, seed);
    }
  };
  // The ranks of a worker, as a list of slots.
  struct Ranks {
    using Key = std::uint64_t;
    std::uint64_t id = 0;
    std::uint32_t first = kNone;  // kNone: empty

    Key key() const noexcept { return id; }
    bool empty() const noexcept { return first == kNone; }
    static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
  };
  struct Links {
    std::uint32_t before = kNone;
    std::uint32_t after = kNone;
  };

  static std::uint64_t bit(std::uint32_t number) noexcept { return std::uint64_t{1} << (number % 64); }
  template <class T>
  static void make_room(std::vector<T>& array) {
    if (array.size() == array.capacity()) array.reserve(std::max<std::size_t>(1, 2 * array.size()));
  }
  template <class T>
  static void shrink(std::vector<T>& array) noexcept {
    if (array.size() * 4 > array.capacity()) return;
    try {
      array.shrink_to_fit();
    } catch (const std::bad_alloc&) {  // it stays as large as it is
    }
  }
  // All the memory that giving this slot out may need.
  void make_room(std::uint32_t slot) {
    try {
      if (slot == workers_.size()) {
        make_room(workers_);
        make_room(links_);
      }
      if (slot / 64 == used_.size()) {
        make_room(used_);
        make_room(retired_);
      }
      if (slot / 4096 == full_.size()) make_room(full_);
      slots_.reserve(slots_.size() + 1);
      ranks_.reserve(ranks_.size() + 1);
    } catch (...) {
      give_back_room();
      throw;
    }
  }
  void give_back_room() noexcept {
    shrink(workers_);
    shrink(links_);
    shrink(used_);
    shrink(retired_);
    shrink(full_);
    if (slots_.empty()) slots_.clear();
    if (ranks_.empty()) ranks_.clear();
  }

  bool is_retired(std::uint32_t slot) const noexcept { return (retired_[slot / 64] & bit(slot)) != 0; }
  void set_used(std::uint32_t slot) noexcept {
    used_[slot / 64] |= bit(slot);
    if (full_.size() <= slot / 4096) full_.push_back(0);
    if (~used_[slot / 64] == 0) full_[slot / 4096] |= bit(slot / 64);
  }
  std::uint32_t lowest_free() const noexcept {
    const auto group = std::ranges::find_if(full_, [](std::uint64_t bits) { return ~bits != 0; });
    const auto open = group == full_.end() ? 0 : static_cast<std::uint32_t>(std::countr_one(*group));
    const std::size_t word = static_cast<std::size_t>(group - full_.begin()) * 64 + open;
    const auto base = static_cast<std::uint32_t>(word * 64);
    return word >= used_.size() ? base : base + static_cast<std::uint32_t>(std::countr_one(used_[word]));
  }

  void link(std::uint32_t slot) {
    const auto [ranks, is_first] = ranks_.insert({workers_[slot].id.value(), slot});
    links_[slot] = {kNone, is_first ? kNone : ranks->first};
    if (is_first) return;
    links_[ranks->first].before = slot;
    ranks->first = slot;
  }
  void unlink(std::uint32_t slot) noexcept {
    const Links gone = links_[slot];
    if (gone.after != kNone) links_[gone.after].before = gone.before;
    if (gone.before != kNone) {
      links_[gone.before].after = gone.after;
      return;
    }
    Ranks* ranks = ranks_.find(workers_[slot].id.value());
    if (gone.after != kNone)
      ranks->first = gone.after;
    else
      ranks_.erase(ranks);
  }

  EntryMap<Entry> slots_;
  EntryMap<Ranks> ranks_;  // by worker id
  std::vector<events::Worker> workers_;
  std::vector<Links> links_;            // by slot, between the ranks of a worker
  std::vector<std::uint64_t> used_;     // one bit per slot
  std::vector<std::uint64_t> full_;     // one bit per word of used_: no slot is free there
  std::vector<std::uint64_t> retired_;  // one bit per slot
  std::size_t retired_slots_ = 0;
  std::uint64_t assignment_ = MatchScores::next_assignment();
};

}  // namespace ashlar::index
