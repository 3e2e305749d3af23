// EntryMap: a hash map in one array, with power-of-two capacity, linear probing and backward-shift deletion.
// The entries themselves supply their key and whether they are empty, so a map of 16-byte entries has no
// other state:
//   struct Entry {
//     using Key = ...;                            // equality comparable
//     Key key() const;
//     bool empty() const;                         // true for Entry{}, false for everything that is inserted
//     static std::uint64_t hash(const Key& key, std::uint64_t seed);  // its high bits choose the place
//   };
// Each map has its own seed (table_seed.h), so that an attacker cannot choose colliding keys.
//
// Growing throws std::bad_alloc without memory and leaves the map unchanged. Shrinking never fails: without
// memory for a smaller array the map keeps its array.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected; a step that grows or shrinks the array is O(size). Between 3/16 and 3/4 of
//                the array is in use, unless reserve() asked for more or memory was short; an empty map has
//                no heap memory, unless reserve() asked for it. Large arrays ask for huge pages.
// Pointers to entries hold until the next insert() or erase().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "ashlar/base/check.h"
#include "base/huge_new.h"
#include "base/table_seed.h"
#include "base/walked_steps.h"

namespace ashlar {

template <class Entry>
class EntryMap {
 public:
  using Key = typename Entry::Key;
  static_assert(std::is_trivially_copyable_v<Entry> && alignof(Entry) <= alignof(std::max_align_t));

  EntryMap() = default;
  EntryMap(const EntryMap&) = delete;
  EntryMap& operator=(const EntryMap&) = delete;
  ~EntryMap() { drop(entries_, capacity()); }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  // Entries that the array has room for, used or free.
  std::size_t capacity() const noexcept { return entries_ == nullptr ? 0 : mask_ + 1; }
  std::size_t bytes() const noexcept { return capacity() * sizeof(Entry); }

  // always_inline, as every function between here and one that does more: g++ treats a call of a function
  // that only prefetches as having no effect, and drops it.
  [[gnu::always_inline]] void prefetch(const Key& key) const noexcept {
    if (entries_ != nullptr) __builtin_prefetch(&entries_[home(key)], 1);
  }

  Entry* find(const Key& key) noexcept {
    if (entries_ == nullptr) return nullptr;
    for (std::size_t at = home(key);; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.empty()) return nullptr;
      if (entry.key() == key) return &entry;
    }
  }
  const Entry* find(const Key& key) const noexcept { return const_cast<EntryMap*>(this)->find(key); }
  // An entry for which is_it(entry) holds, among those whose keys may have this hash. Null when there is
  // none.
  template <class F>
  const Entry* find_hashed(std::uint64_t hash, F&& is_it) const noexcept {
    if (entries_ == nullptr) return nullptr;
    for (auto at = static_cast<std::size_t>(hash >> shift_); !entries_[at].empty(); at = (at + 1) & mask_)
      if (is_it(entries_[at])) return &entries_[at];
    return nullptr;
  }
  // How many entries find() compares the key with.
  std::size_t compared(const Key& key) const noexcept {
    std::size_t count = 0;
    find_hashed(entries_ == nullptr ? 0 : Entry::hash(key, seed_), [&](const Entry& entry) {
      ++count;
      return entry.key() == key;
    });
    return count;
  }

  // The entry with the key of `entry`: the existing one (false), or a copy of `entry` (true).
  std::pair<Entry*, bool> insert(const Entry& entry) {
    ASHLAR_DCHECK(!entry.empty(), "an empty entry cannot be inserted; map of %zu", size_);
    if (entries_ == nullptr) [[unlikely]]
      rebuild(kMinCapacity);
    for (std::size_t at = home(entry.key());; at = (at + 1) & mask_) {
      Entry& place = entries_[at];
      if (place.empty()) {
        if ((size_ + 1) * 4 > (mask_ + 1) * 3) [[unlikely]] {
          rebuild((mask_ + 1) * 2);
          return {put(entry), true};
        }
        ++size_;
        place = entry;
        return {&place, true};
      }
      if (place.key() == entry.key()) return {&place, false};
    }
  }

  // Requires: `entry` points to an entry of this map.
  void erase(Entry* entry) noexcept {
    auto hole = static_cast<std::size_t>(entry - entries_);
    for (std::size_t at = (hole + 1) & mask_; !entries_[at].empty(); at = (at + 1) & mask_) {
      // An entry may move back into the hole unless its home lies behind the hole.
      if (((at - home(entries_[at].key())) & mask_) < ((at - hole) & mask_)) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = Entry{};
    --size_;
    if (size_ * 16 < (mask_ + 1) * 3) [[unlikely]]
      shrink();
  }

  // Erases the entry with the key. False when there is none.
  bool erase(const Key& key) noexcept {
    Entry* const entry = find(key);
    if (entry != nullptr) erase(entry);
    return entry != nullptr;
  }

  // Makes room for `size` entries, so that no insert() up to that size moves any. Removals shrink it again.
  // Throws std::bad_alloc.
  void reserve(std::size_t size) {
    if (size == 0) return;
    if (size > SIZE_MAX / 8 / sizeof(Entry)) throw std::bad_alloc();
    std::size_t capacity = std::max(this->capacity(), kMinCapacity);
    while (size * 4 > capacity * 3) capacity *= 2;
    if (capacity != this->capacity()) rebuild(capacity);
  }
  // Undoes growing: a map that is back at an earlier size gets back its capacity at that size. Requires:
  // capacity() was `capacity` when there were size() entries.
  void restore_capacity(std::size_t capacity) noexcept {
    if (capacity == 0)
      clear();
    else if (capacity != this->capacity())
      rebuild_if_possible(capacity);
  }

  void clear() noexcept {
    drop(entries_, capacity());
    entries_ = nullptr;
    size_ = 0;
    mask_ = 0;
  }

  // All entries, unordered, in the map's own memory; the caller may change and reorder them. Afterwards only
  // bytes() and clear() may be called.
  std::span<Entry> take_apart() noexcept {
    count_steps(capacity());
    std::size_t end = 0;
    for (std::size_t at = 0; at < capacity(); ++at)
      if (!entries_[at].empty()) entries_[end++] = entries_[at];
    return {entries_, end};
  }

  template <class F>
  void for_each(F&& fn) const {
    count_steps(capacity());
    for (std::size_t at = 0; at < capacity(); ++at)
      if (!entries_[at].empty()) fn(entries_[at]);
  }

 private:
  static constexpr std::size_t kMinCapacity = 8;

  std::size_t home(const Key& key) const noexcept {
    return static_cast<std::size_t>(Entry::hash(key, seed_) >> shift_);
  }

  void shrink() noexcept {
    if (size_ == 0)
      clear();
    else if (mask_ + 1 > kMinCapacity)
      rebuild_if_possible((mask_ + 1) / 2);
  }

  static Entry* make(void* memory, std::size_t capacity) noexcept {
    auto* const entries = static_cast<Entry*>(memory);
    std::uninitialized_value_construct_n(entries, capacity);
    return entries;
  }
  static void drop(Entry* entries, std::size_t capacity) noexcept {
    if (entries != nullptr) huge_delete(entries, capacity * sizeof(Entry));
  }
  void rebuild(std::size_t capacity) {
    move_to(make(huge_new(capacity * sizeof(Entry)), capacity), capacity);
  }
  void rebuild_if_possible(std::size_t capacity) noexcept {
    if (void* const memory = huge_new(capacity * sizeof(Entry), std::nothrow); memory != nullptr)
      move_to(make(memory, capacity), capacity);
  }
  void move_to(Entry* entries, std::size_t capacity) noexcept {
    Entry* const old = std::exchange(entries_, entries);
    const std::size_t old_capacity = old == nullptr ? 0 : mask_ + 1;
    const std::size_t moved = size_;
    ASHLAR_DCHECK(std::has_single_bit(capacity) && moved * 4 <= capacity * 3,
                  "%zu entries do not fit a table of %zu, a power of two at most 3/4 full", moved, capacity);
    if (old == nullptr) seed_ = draw_seed();
    count_steps(old_capacity);
    mask_ = capacity - 1;
    shift_ = 64 - std::countr_zero(capacity);
    size_ = 0;
    for (std::size_t at = 0; at < old_capacity; ++at)
      if (!old[at].empty()) put(old[at]);
    ASHLAR_DCHECK(size_ == moved, "%zu of %zu entries arrived in the new table", size_, moved);
    drop(old, old_capacity);
  }
  // Requires: the key is absent, and there is room.
  Entry* put(const Entry& entry) noexcept {
    std::size_t at = home(entry.key());
    while (!entries_[at].empty()) at = (at + 1) & mask_;
    entries_[at] = entry;
    ++size_;
    return &entries_[at];
  }

  Entry* entries_ = nullptr;
  std::size_t mask_ = 0;  // capacity - 1
  int shift_ = 64;        // 64 - log2(capacity)
  std::size_t size_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace ashlar
