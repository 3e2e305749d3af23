// EntryMap: a hash map in one array, with power-of-two capacity, linear probing and backward-shift deletion, whose
// entries say themselves what their key is and whether they are empty. So a map of 16-byte entries has no other state:
//   struct Entry {
//     using Key = ...;                            // equality comparable
//     Key key() const;
//     bool empty() const;                         // true for Entry{}, false for everything that is inserted
//     static std::uint64_t hash(const Key& key);  // its high bits choose the place
//   };
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected; a step that grows or shrinks the array is O(size). Between 3/16 and 3/4 of the array is
//                in use, unless reserve() asked for more; an empty map has no heap memory.
// Pointers to entries hold until the next insert() or erase().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::index {

// Spreads a value whose bits may be regular over the high bits of the result.
constexpr std::uint64_t spread(std::uint64_t value) noexcept {
  return value * 0x9E37'79B9'7F4A'7C15u;
}

template <class Entry>
class EntryMap {
 public:
  using Key = typename Entry::Key;
  static_assert(std::is_trivially_copyable_v<Entry>);

  EntryMap() = default;
  EntryMap(const EntryMap&) = delete;
  EntryMap& operator=(const EntryMap&) = delete;

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  // Entries that the array has room for, in use or not.
  std::size_t capacity() const noexcept { return entries_ == nullptr ? 0 : mask_ + 1; }
  std::size_t bytes() const noexcept { return capacity() * sizeof(Entry); }

  void prefetch(const Key& key) const noexcept {
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

  // The entry with the key of `entry`: the one that was there (false), or a copy of `entry` (true).
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
  void erase(Entry* entry) {
    auto hole = static_cast<std::size_t>(entry - entries_.get());
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

  // Makes room for `size` entries, so that no insert() up to there moves any.
  void reserve(std::size_t size) {
    std::size_t capacity = std::max(this->capacity(), kMinCapacity);
    while (size * 4 > capacity * 3) capacity *= 2;
    if (capacity != this->capacity()) rebuild(capacity);
  }
  // Undoes growing: a map that is back at an earlier size gets its capacity of then.
  // Requires: capacity() was `capacity` when there were size() entries.
  void restore_capacity(std::size_t capacity) {
    if (capacity == 0)
      clear();
    else if (capacity != this->capacity())
      rebuild(capacity);
  }

  void clear() noexcept {
    entries_.reset();
    size_ = 0;
    mask_ = 0;
  }

  template <class F>
  void for_each(F&& fn) const {
    for (std::size_t at = 0; at < capacity(); ++at)
      if (!entries_[at].empty()) fn(entries_[at]);
  }

 private:
  static constexpr std::size_t kMinCapacity = 8;

  std::size_t home(const Key& key) const noexcept {
    return static_cast<std::size_t>(Entry::hash(key) >> shift_);
  }

  void shrink() {
    if (size_ == 0)
      clear();
    else if (mask_ + 1 > kMinCapacity)
      rebuild((mask_ + 1) / 2);
  }

  void rebuild(std::size_t capacity) {
    const std::unique_ptr<Entry[]> old = std::exchange(entries_, std::make_unique<Entry[]>(capacity));
    const std::size_t old_capacity = old == nullptr ? 0 : mask_ + 1;
    mask_ = capacity - 1;
    shift_ = 64 - std::countr_zero(capacity);
    size_ = 0;
    for (std::size_t at = 0; at < old_capacity; ++at)
      if (!old[at].empty()) put(old[at]);
  }
  // Requires: the key is not here, and there is room.
  Entry* put(const Entry& entry) noexcept {
    std::size_t at = home(entry.key());
    while (!entries_[at].empty()) at = (at + 1) & mask_;
    entries_[at] = entry;
    ++size_;
    return &entries_[at];
  }

  std::unique_ptr<Entry[]> entries_;
  std::size_t mask_ = 0;  // capacity - 1
  int shift_ = 64;        // 64 - log2(capacity)
  std::size_t size_ = 0;
};

}  // namespace ashlar::index
