#include "index/positional/positional_map.h"

#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "base/large_array.h"

namespace ashlar::index::detail {
namespace {

// Tables that fill huge pages request them; smaller ones would waste most of one.
constexpr std::size_t kLarge = std::size_t{2} << 20;

// Throws std::bad_alloc.
void* allocate_table(std::size_t bytes) {
  if (bytes >= kLarge) return ashlar::detail::allocate_large(bytes);
  void* memory = ::operator new(bytes, std::align_val_t(64));
  std::memset(memory, 0, bytes);
  return memory;
}

void free_table(void* memory, std::size_t bytes) noexcept {
  if (memory == nullptr) return;
  if (bytes >= kLarge)
    ashlar::detail::free_large(memory, bytes);
  else
    ::operator delete(memory, std::align_val_t(64));
}

// Both kinds of table grow above 3/4 and shrink below 3/16.
constexpr bool too_full(std::size_t size, std::size_t capacity) noexcept {
  return size * 4 > capacity * 3;
}
constexpr bool too_empty(std::size_t size, std::size_t capacity) noexcept {
  return size * 16 < capacity * 3;
}

}  // namespace

// The contents of an entry with several: an open-addressing table by chain, also with backward-shift
// deletion.
struct PositionalMap::Multi {
  struct Item {
    Chain chain;
    WorkerSet workers;  // empty: no item
  };

  std::uint32_t count;
  std::uint32_t capacity;
  std::uint64_t seed;

  Item* items() noexcept { return reinterpret_cast<Item*>(this + 1); }
  std::uint32_t home(const Chain& chain) const noexcept {
    return static_cast<std::uint32_t>(seeded_hash(chain.a, chain.b, seed) >> 32) & (capacity - 1);
  }
  // The item of the chain, or the free place where it belongs.
  Item& place_of(const Chain& chain) noexcept {
    std::uint32_t at = home(chain);
    while (!items()[at].workers.empty() && items()[at].chain != chain) at = (at + 1) & (capacity - 1);
    return items()[at];
  }
  void erase(Item& item) noexcept {
    auto hole = static_cast<std::uint32_t>(&item - items());
    for (std::uint32_t at = (hole + 1) & (capacity - 1); !items()[at].workers.empty();
         at = (at + 1) & (capacity - 1)) {
      if (((at - home(items()[at].chain)) & (capacity - 1)) < ((at - hole) & (capacity - 1))) continue;
      items()[hole] = items()[at];
      hole = at;
    }
    items()[hole].workers = {};
    --count;
  }

  static std::size_t size_of(std::uint32_t capacity) noexcept {
    return sizeof(Multi) + capacity * sizeof(Item);
  }
  static Multi* create(std::uint32_t capacity, std::uint64_t seed, std::size_t& bytes) {
    return made_of(::operator new(size_of(capacity)), capacity, seed, bytes);
  }
  static Multi* made_of(void* memory, std::uint32_t capacity, std::uint64_t seed,
                        std::size_t& bytes) noexcept {
    bytes += size_of(capacity);
    std::memset(memory, 0, size_of(capacity));
    return new (memory) Multi{0, capacity, seed};
  }
  static void destroy(Multi* multi, std::size_t& bytes) noexcept {
    bytes -= size_of(multi->capacity);
    ::operator delete(multi);
  }
  // Replaces the table by one of another capacity with the same items.
  static Multi* grown(Multi* old, std::size_t& bytes) {
    return moved(old, create(2 * old->capacity, old->seed, bytes), bytes);
  }
  // Returns the old one without memory.
  static Multi* shrunk(Multi* old, std::size_t& bytes) noexcept {
    const std::uint32_t capacity = old->capacity / 2;
    void* memory = ::operator new(size_of(capacity), std::nothrow);
    return memory == nullptr ? old : moved(old, made_of(memory, capacity, old->seed, bytes), bytes);
  }
  static Multi* moved(Multi* old, Multi* fresh, std::size_t& bytes) noexcept {
    for (std::uint32_t at = 0; at < old->capacity; ++at)
      if (!old->items()[at].workers.empty()) fresh->place_of(old->items()[at].chain) = old->items()[at];
    fresh->count = old->count;
    destroy(old, bytes);
    return fresh;
  }
};

PositionalMap::~PositionalMap() {
  if (entries_ == nullptr) return;
  for (std::size_t at = 0; at <= mask_; ++at) {
    const std::uint64_t word = entries_[at].word;
    if (!is_multi(word)) {
      WorkerSet::from_word(word).reset(bytes_);
      continue;
    }
    Multi* multi = multi_of(word);
    for (std::uint32_t i = 0; i < multi->capacity; ++i) multi->items()[i].workers.reset(bytes_);
    Multi::destroy(multi, bytes_);
  }
  free_table(entries_, (mask_ + 1) * sizeof(Entry));
}

WorkerSet PositionalMap::find_in_multi(std::uint64_t word, const Chain& chain) noexcept {
  return multi_of(word)->place_of(chain).workers;
}

TierMask PositionalMap::add(std::uint64_t key, const Chain& chain, std::uint32_t slot, TierMask tiers,
                            std::size_t slots) {
  if (entries_ == nullptr) resize(kMinCapacity);
  Entry* entry = &place_of(key);
  if (entry->word == 0) {
    if (too_full(size_ + 1, mask_ + 1)) {
      resize(2 * (mask_ + 1));
      entry = &place_of(key);
    }
    WorkerSet workers;
    workers.add(slot, tiers, slots, bytes_);
    *entry = {key, chain, workers.word()};
    ++size_;
    ++contents_;
    return 0;
  }
  if (is_multi(entry->word) || entry->chain != chain) return add_to_multi(*entry, chain, slot, tiers, slots);
  WorkerSet workers = WorkerSet::from_word(entry->word);
  const TierMask before = workers.add(slot, tiers, slots, bytes_);
  entry->word = workers.word();
  return before;
}

// Turns a Single with another chain into a Multi.
TierMask PositionalMap::add_to_multi(Entry& entry, const Chain& chain, std::uint32_t slot, TierMask tiers,
                                     std::size_t slots) {
  if (!is_multi(entry.word)) {
    Multi* multi = Multi::create(4, draw_seed(), bytes_);
    multi->place_of(entry.chain) = {entry.chain, WorkerSet::from_word(entry.word)};
    multi->count = 1;
    entry.word = word_of(multi);
  }
  Multi* multi = multi_of(entry.word);
  Multi::Item* item = &multi->place_of(chain);
  if (item->workers.empty()) {
    if (too_full(multi->count + 1, multi->capacity)) {
      multi = Multi::grown(multi, bytes_);
      entry.word = word_of(multi);
      item = &multi->place_of(chain);
    }
    item->chain = chain;
    ++multi->count;
    ++contents_;
  }
  return item->workers.add(slot, tiers, slots, bytes_);
}

TierMask PositionalMap::remove(std::uint64_t key, const Chain& chain, std::uint32_t slot,
                               TierMask tiers) noexcept {
  if (entries_ == nullptr) return 0;
  Entry& entry = place_of(key);
  if (entry.word == 0) return 0;
  if (is_multi(entry.word)) return remove_from_multi(entry, chain, slot, tiers);
  if (entry.chain != chain) return 0;
  WorkerSet workers = WorkerSet::from_word(entry.word);
  const TierMask before = workers.remove(slot, tiers, bytes_);
  entry.word = workers.word();
  if (workers.empty()) {
    --contents_;
    erase(entry);
  }
  return before;
}

TierMask PositionalMap::remove_from_multi(Entry& entry, const Chain& chain, std::uint32_t slot,
                                          TierMask tiers) noexcept {
  Multi* multi = multi_of(entry.word);
  Multi::Item& item = multi->place_of(chain);
  const TierMask before = item.workers.remove(slot, tiers, bytes_);
  if (before == 0 || !item.workers.empty()) return before;
  --contents_;
  multi->erase(item);
  if (multi->count == 1) {
    Multi::Item* last = multi->items();
    while (last->workers.empty()) ++last;
    entry.chain = last->chain;
    entry.word = last->workers.word();
    Multi::destroy(multi, bytes_);
  } else if (multi->capacity > 4 && too_empty(multi->count, multi->capacity)) {
    entry.word = word_of(Multi::shrunk(multi, bytes_));
  }
  return before;
}

// Requires: the entry's word is 0 already, and the entry is still counted.
void PositionalMap::erase(Entry& entry) noexcept {
  auto hole = static_cast<std::size_t>(&entry - entries_);
  for (std::size_t at = (hole + 1) & mask_; entries_[at].word != 0; at = (at + 1) & mask_) {
    // An entry may move back into the hole unless its home lies behind the hole.
    if (((at - home(entries_[at].key)) & mask_) < ((at - hole) & mask_)) continue;
    entries_[hole] = entries_[at];
    entries_[at].word = 0;
    hole = at;
  }
  --size_;
  if (size_ == 0)
    move_to(nullptr, 0);
  else if (mask_ + 1 > kMinCapacity && too_empty(size_, mask_ + 1))
    shrink((mask_ + 1) / 2);
}

void PositionalMap::resize(std::size_t capacity) {
  move_to(static_cast<Entry*>(allocate_table(capacity * sizeof(Entry))), capacity);
}

void PositionalMap::shrink(std::size_t capacity) noexcept {
  try {
    resize(capacity);
  } catch (const std::bad_alloc&) {  // it stays as large as it is
  }
}

void PositionalMap::move_to(Entry* entries, std::size_t capacity) noexcept {
  const std::size_t old_capacity = entries_ == nullptr ? 0 : mask_ + 1;
  Entry* old = std::exchange(entries_, entries);
  if (capacity != 0) {
    mask_ = capacity - 1;
    shift_ = 64 - static_cast<unsigned>(std::countr_zero(capacity));
  }
  bytes_ += capacity * sizeof(Entry);
  for (std::size_t at = 0; at < old_capacity; ++at)
    if (old[at].word != 0) place_of(old[at].key) = old[at];
  free_table(old, old_capacity * sizeof(Entry));
  bytes_ -= old_capacity * sizeof(Entry);
  // relaxed, both: read by hint_of(), which only prefetches.
  hint_.store(reinterpret_cast<std::uintptr_t>(entries_), std::memory_order_relaxed);
  hint_shift_.store(shift_, std::memory_order_relaxed);
}

}  // namespace ashlar::index::detail
