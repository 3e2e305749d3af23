// FlatMap<Key, Value, Hash>: a hash map in one array, for small plain keys and values.
//
// Open addressing with linear probing. erase() moves later entries of the run up, so there are no tombstones
// and the load is what size() says. The array doubles at three quarters, halves at one eighth, and an empty
// map owns nothing.
//
// What makes a map larger throws std::bad_alloc where there is no memory, with the map as it was. What makes
// it smaller needs none: without memory for a smaller array it keeps the one that it has.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected; an insertion that doubles the array copies it.
// Invariant:     pointers to values are valid until the next try_emplace() or erase().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/common/table_seed.h"
#include "index/common/walked_steps.h"

namespace ashlar::index::detail {

// Hash{}(key, seed) gives 64 bits whose upper ones are well spread. Each map has a seed of its own
// (table_seed.h).
template <class Key, class Value, class Hash>
  requires std::is_trivially_copyable_v<Key> && std::is_trivially_copyable_v<Value>
class FlatMap {
 public:
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t bytes() const noexcept { return slots_.size() * (sizeof(Slot) + 1); }

  Value* find(const Key& key) noexcept {
    const std::size_t at = place_of(key);
    return at == kNone ? nullptr : &slots_[at].value;
  }
  const Value* find(const Key& key) const noexcept {
    const std::size_t at = place_of(key);
    return at == kNone ? nullptr : &slots_[at].value;
  }

  // The key's value, and whether it is new; a new one is Value{}.
  std::pair<Value*, bool> try_emplace(const Key& key) {
    if (Value* const there = find(key)) return {there, false};
    reserve(size_ + 1);
    ++size_;
    return {&put({key, Value{}}), true};
  }

  // Makes room for `size` entries, so that no try_emplace() up to there needs memory.
  void reserve(std::size_t size) {
    if (size * 4 <= slots_.size() * 3) return;
    std::size_t slots = std::max(kSmallest, slots_.size());
    while (size * 4 > slots * 3) slots *= 2;
    resize(slots);
  }

  bool erase(const Key& key) noexcept {
    std::size_t hole = place_of(key);
    if (hole == kNone) return false;
    // An entry behind the hole moves into it unless its home lies between the two.
    for (std::size_t at = next(hole); used_[at] != 0; at = next(at)) {
      const std::size_t mask = slots_.size() - 1;
      if (((at - home_of(slots_[at].key)) & mask) >= ((at - hole) & mask)) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    used_[hole] = 0;
    --size_;
    if (size_ == 0) {
      clear();
    } else if (slots_.size() > kSmallest && size_ * 8 < slots_.size()) {
      try {
        resize(slots_.size() / 2);
      } catch (const std::bad_alloc&) {  // it stays as large as it is
      }
    }
    return true;
  }

  void clear() noexcept {
    std::vector<Slot>().swap(slots_);
    std::vector<std::uint8_t>().swap(used_);
    size_ = 0;
  }

  // Calls fn(key, value) for every entry, in no order. fn must not change the map.
  template <class F>
  void for_each(F&& fn) const {
    count_steps(slots_.size());
    for (std::size_t at = 0; at < slots_.size(); ++at)
      if (used_[at] != 0) fn(slots_[at].key, slots_[at].value);
  }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;
  static constexpr std::size_t kSmallest = 8;

  struct Slot {
    Key key;
    Value value;
  };

  std::size_t home_of(const Key& key) const noexcept {
    return Hash{}(key, seed_) >> (64 - std::countr_zero(slots_.size()));
  }
  std::size_t next(std::size_t at) const noexcept { return (at + 1) & (slots_.size() - 1); }

  std::size_t place_of(const Key& key) const noexcept {
    if (size_ == 0) return kNone;
    for (std::size_t at = home_of(key); used_[at] != 0; at = next(at))
      if (slots_[at].key == key) return at;
    return kNone;
  }

  Value& put(const Slot& slot) noexcept {
    std::size_t at = home_of(slot.key);
    while (used_[at] != 0) at = next(at);
    slots_[at] = slot;
    used_[at] = 1;
    return slots_[at].value;
  }

  void resize(std::size_t slots) {
    if (size_ == 0) seed_ = draw_seed();
    count_steps(slots_.size());
    std::vector<Slot> old_slots(slots);
    std::vector<std::uint8_t> old_used(slots);
    old_slots.swap(slots_);
    old_used.swap(used_);
    for (std::size_t at = 0; at < old_slots.size(); ++at)
      if (old_used[at] != 0) put(old_slots[at]);
  }

  std::size_t size_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::uint8_t> used_;
};

}  // namespace ashlar::index::detail
