// SlotMap: values in stable slots, found by a hash of their key. Open addressing over cells of eight bytes,
// part of the hash and a slot: a look-up costs one cache line of cells and one of the value, and values are
// added and removed without allocation.
//
// The home of a cell is the top bits of its tag, so cells can move, and the table can grow, without reading
// the values.
//
// Value: default-constructible, with `std::uint64_t hash() const`, evenly spread, that does not change while
// it is in the map.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected; growth doubles the table. Memory: 20 to 36 bytes per value beside it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "base/large_array.h"

namespace ashlar::events {

template <class Value>
class SlotMap {
 public:
  using Slot = std::uint32_t;
  static constexpr Slot kNone = UINT32_MAX;

  SlotMap() : cells_(std::size_t{1} << kMinBits) {}

  std::size_t size() const noexcept { return size_; }
  Value& at(Slot slot) noexcept { return chunks_[slot / kChunk][slot % kChunk]; }
  const Value& at(Slot slot) const noexcept { return chunks_[slot / kChunk][slot % kChunk]; }

  // The slot of the value with this hash for which is(value) holds; kNone when there is none.
  template <class Is>
  Slot find(std::uint64_t hash, const Is& is) const noexcept {
    const std::uint32_t tag = tag_of(hash);
    for (std::size_t i = home_of(tag);; i = (i + 1) & mask()) {
      const Cell cell = cells_[i];
      if (cell.slot == kNone) return kNone;
      if (cell.tag == tag && is(at(cell.slot))) return cell.slot;
    }
  }
  // A new slot with this value. Requires: its key is not in the map.
  Slot insert(const Value& value) {
    const Slot slot = take_slot();
    at(slot) = value;
    link(slot);
    return slot;
  }
  // A slot with stale content; set its value, then call link().
  Slot take_slot() {
    if (free_.empty()) add_chunk();
    const Slot slot = free_.back();
    free_.pop_back();
    // A slot that will be taken soon: prefetches its lines for the stores.
    if (free_.size() > kAhead) prefetch_value(free_[free_.size() - kAhead]);
    return slot;
  }
  void link(Slot slot) {
    if (2 * (size_ + 1) > cells_.size()) grow();
    put({tag_of(at(slot).hash()), slot});
    ++size_;
  }
  // Requires: the slot has a value.
  void erase(Slot slot) noexcept {
    std::size_t hole = home_of(tag_of(at(slot).hash()));
    while (cells_[hole].slot != slot) hole = (hole + 1) & mask();
    // Cells behind the hole move up, unless that would put them before their home.
    for (std::size_t i = (hole + 1) & mask(); cells_[i].slot != kNone; i = (i + 1) & mask()) {
      if (((i - home_of(cells_[i].tag)) & mask()) < ((i - hole) & mask())) continue;
      cells_[hole] = cells_[i];
      hole = i;
    }
    cells_[hole] = {};
    ASHLAR_DCHECK(free_.size() < free_.capacity(), "slot %u is given back twice", slot);
    free_.push_back(slot);  // has room: see add_chunk()
    --size_;
  }
  // Prefetches the cells where a search for this hash begins.
  void prefetch(std::uint64_t hash) const noexcept { __builtin_prefetch(&cells_[home_of(tag_of(hash))], 1); }

  // Where searches of a map begin, for prefetches without its lock. Follows the map after each growth; a
  // stale hint is useless but harmless. Thread safety: thread-safe; follow() under the lock of the map.
  class Hint {
   public:
    void follow(const SlotMap& map) noexcept {
      // relaxed, all: only prefetches use them.
      cells_.store(reinterpret_cast<std::uintptr_t>(&map.cells_[0]), std::memory_order_relaxed);
      shift_.store(map.shift_, std::memory_order_relaxed);
    }
    bool follows(const SlotMap& map) const noexcept {
      return shift_.load(std::memory_order_relaxed) == map.shift_;
    }
    void prefetch(std::uint64_t hash) const noexcept {
      const std::uintptr_t home = tag_of(hash) >> shift_.load(std::memory_order_relaxed);
      const std::uintptr_t cell = cells_.load(std::memory_order_relaxed) + home * sizeof(Cell);
      __builtin_prefetch(reinterpret_cast<const void*>(cell), 1);  // NOLINT(performance-no-int-to-ptr)
    }

   private:
    std::atomic<std::uintptr_t> cells_{0};
    std::atomic<unsigned> shift_{31};
  };

  template <class F>
  void for_each(F&& visit) const {
    for (std::size_t i = 0; i < cells_.size(); ++i)
      if (cells_[i].slot != kNone) visit(at(cells_[i].slot));
  }
  template <class Is>
  std::size_t erase_if(const Is& is) {
    std::vector<Slot> gone;
    for (std::size_t i = 0; i < cells_.size(); ++i)
      if (cells_[i].slot != kNone && is(at(cells_[i].slot))) gone.push_back(cells_[i].slot);
    for (const Slot slot : gone) erase(slot);
    return gone.size();
  }
  // Aborts on an inconsistent table. O(size).
  void check_invariants() const {
    std::size_t linked = 0;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (cells_[i].slot == kNone) continue;
      ++linked;
      const Value& value = at(cells_[i].slot);
      ASHLAR_CHECK(cells_[i].tag == tag_of(value.hash()), "slot %u stands under another hash",
                   cells_[i].slot);
      const Slot found = find(value.hash(), [&](const Value& one) { return &one == &value; });
      ASHLAR_CHECK(found == cells_[i].slot, "a hole hides slot %u from searches", cells_[i].slot);
    }
    ASHLAR_CHECK(linked == size_, "%zu values are linked, %zu counted", linked, size_);
    ASHLAR_CHECK(2 * size_ <= cells_.size(), "%zu values in %zu cells: searches need free ones", size_,
                 cells_.size());
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::size_t kAhead = 4;
  static constexpr unsigned kMinBits = 4;
  struct Cell {
    std::uint32_t tag = 0;
    Slot slot = kNone;
  };
  static std::uint32_t tag_of(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash >> 32); }
  std::size_t home_of(std::uint32_t tag) const noexcept { return tag >> shift_; }
  std::size_t mask() const noexcept { return cells_.size() - 1; }
  void prefetch_value(Slot slot) const noexcept {
    const auto* value = reinterpret_cast<const std::byte*>(&at(slot));
    for (std::size_t i = 0; i < sizeof(Value); i += 64) __builtin_prefetch(value + i, 1);
  }
  void put(Cell cell) noexcept {
    std::size_t i = home_of(cell.tag);
    while (cells_[i].slot != kNone) i = (i + 1) & mask();
    cells_[i] = cell;
  }
  void grow() {
    LargeArray<Cell> before(2 * cells_.size());
    std::swap(before, cells_);
    --shift_;
    for (std::size_t i = 0; i < before.size(); ++i)
      if (before[i].slot != kNone) put(before[i]);
    ASHLAR_DCHECK(cells_.size() == std::size_t{1} << (32 - shift_), "a tag leads beyond the %zu cells",
                  cells_.size());
  }
  void add_chunk() {
    ASHLAR_CHECK(chunks_.size() < kNone / kChunk, "slots are numbered by 32 bits; all %zu are in use", size_);
    const auto first = static_cast<Slot>(chunks_.size() * kChunk);
    free_.reserve(first + kChunk);
    chunks_.push_back(std::make_unique<Value[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) free_.push_back(first + static_cast<Slot>(i));
  }

  std::vector<std::unique_ptr<Value[]>> chunks_;
  std::vector<Slot> free_;
  LargeArray<Cell> cells_;
  unsigned shift_ = 32 - kMinBits;  // of a tag to its home
  std::size_t size_ = 0;
};

}  // namespace ashlar::events
