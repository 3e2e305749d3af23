// PositionalMap: maps the key of an entry to its contents, and each content to its workers. One shard of a
// PositionalIndexer.
//
// An open-addressing table of 32-byte entries with linear probing and backward-shift deletion. An entry is
// Single (the chain of its only content and the set of its workers) or Multi (a pointer to a table from chain
// to set). Entries, contents and sets are freed with their last worker, and a Multi with one content left
// becomes Single again.
//
// add() throws std::bad_alloc with the map unchanged. remove() needs no memory: without any for a smaller
// table it keeps the current one.
//
// Thread safety: thread-compatible, except for the prefetches, which may run at any time.
// Complexity:    O(1) expected; growing or shrinking the table is O(entries). An empty map has no
//                heap memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "index/positional/positional_chain.h"
#include "index/positional/positional_set.h"

namespace ashlar::index::detail {

class PositionalMap {
 public:
  PositionalMap() = default;
  PositionalMap(const PositionalMap&) = delete;
  PositionalMap& operator=(const PositionalMap&) = delete;
  ~PositionalMap();

  std::size_t entries() const noexcept { return size_; }
  std::size_t contents() const noexcept { return contents_; }
  std::size_t bytes() const noexcept { return bytes_; }

  // Prefetches what a call with this key will read: the entry itself; the one behind it; or usually all up to
  // a free place. always_inline: a compiler may treat a call of a function that only prefetches as having no
  // effect.
  [[gnu::always_inline]] void prefetch_to_find(std::uint64_t key) const noexcept {
    __builtin_prefetch(reinterpret_cast<const void*>(hint_of(key)));
  }
  [[gnu::always_inline]] void prefetch_to_add(std::uint64_t key) const noexcept {
    __builtin_prefetch(reinterpret_cast<const void*>(hint_of(key)), 1);
    __builtin_prefetch(reinterpret_cast<const void*>(hint_of(key) + sizeof(Entry)), 1);
  }
  [[gnu::always_inline]] void prefetch_to_remove(std::uint64_t key) const noexcept {
    __builtin_prefetch(reinterpret_cast<const void*>(hint_of(key)), 1);
    __builtin_prefetch(reinterpret_cast<const void*>(hint_of(key) + 2 * sizeof(Entry)), 1);
  }

  // Whether the entry has any content.
  bool has_entry(std::uint64_t key) const noexcept { return entries_ != nullptr && place_of(key).word != 0; }
  // The workers of a content; empty without holders. Valid until the next change.
  WorkerSet find(std::uint64_t key, const Chain& chain) const noexcept {
    if (entries_ == nullptr) return {};
    const Entry& entry = place_of(key);
    if (is_multi(entry.word)) return find_in_multi(entry.word, chain);
    return entry.word != 0 && entry.chain == chain ? WorkerSet::from_word(entry.word) : WorkerSet{};
  }

  // Both return the tiers in which the worker held the content before. `slots` is the number of slots.
  // Requires: slot < slots, tiers != 0.
  TierMask add(std::uint64_t key, const Chain& chain, std::uint32_t slot, TierMask tiers, std::size_t slots);
  TierMask remove(std::uint64_t key, const Chain& chain, std::uint32_t slot, TierMask tiers) noexcept;

 private:
  struct alignas(32) Entry {
    std::uint64_t key;
    Chain chain;         // of a Single
    std::uint64_t word;  // 0: no entry. The word of a WorkerSet, or a pointer to a Multi with kMultiForm.
  };
  static_assert(sizeof(Entry) == 32);
  struct Multi;

  static constexpr std::uint64_t kMultiForm = 4;
  static constexpr std::size_t kMinCapacity = 8;

  static bool is_multi(std::uint64_t word) noexcept { return (word & 7) == kMultiForm; }
  static Multi* multi_of(std::uint64_t word) noexcept { return reinterpret_cast<Multi*>(word & ~kMultiForm); }
  static std::uint64_t word_of(Multi* multi) noexcept {
    return reinterpret_cast<std::uint64_t>(multi) | kMultiForm;
  }
  static WorkerSet find_in_multi(std::uint64_t word, const Chain& chain) noexcept;

  std::uintptr_t hint_of(std::uint64_t key) const noexcept {
    // relaxed, both: a stale place only wastes a prefetch.
    return hint_.load(std::memory_order_relaxed) +
           (key >> hint_shift_.load(std::memory_order_relaxed)) * sizeof(Entry);
  }
  std::size_t home(std::uint64_t key) const noexcept { return static_cast<std::size_t>(key >> shift_); }
  // The entry of the key, or the free place where it belongs. Requires: a table with a free place.
  Entry& place_of(std::uint64_t key) const noexcept {
    std::size_t at = home(key);
    while (entries_[at].word != 0 && entries_[at].key != key) at = (at + 1) & mask_;
    return entries_[at];
  }
  TierMask add_to_multi(Entry& entry, const Chain& chain, std::uint32_t slot, TierMask tiers,
                        std::size_t slots);
  TierMask remove_from_multi(Entry& entry, const Chain& chain, std::uint32_t slot, TierMask tiers) noexcept;
  void erase(Entry& entry) noexcept;
  void resize(std::size_t capacity);
  void shrink(std::size_t capacity) noexcept;
  // `entries` is zeroed memory for `capacity` entries, or null for none.
  void move_to(Entry* entries, std::size_t capacity) noexcept;

  Entry* entries_ = nullptr;
  std::size_t mask_ = 0;  // capacity - 1
  unsigned shift_ = 63;   // 64 - log2(capacity)
  std::size_t size_ = 0;
  std::size_t contents_ = 0;
  std::size_t bytes_ = 0;
  // The place of the table for the prefetches, which do not take the owner's lock.
  std::atomic<std::uintptr_t> hint_{0};
  std::atomic<unsigned> hint_shift_{63};
};

}  // namespace ashlar::index::detail
