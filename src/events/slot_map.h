// SlotMap: values in slots that stay where they are, found by a hash of their key. Open addressing over slot numbers: a look costs
// one line of the table and one of the value, and nothing is allocated while values come and go.
//
// Value: default-constructible, with `std::uint64_t hash() const`, evenly spread, that does not change while it is in the map.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected; growth doubles the table. Memory: 32 to 64 bytes per value beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ashlar::events {

template <class Value>
class SlotMap {
 public:
  using Slot = std::uint32_t;
  static constexpr Slot kNone = UINT32_MAX;

  SlotMap() : cells_(16) {}

  std::size_t size() const noexcept { return size_; }
  Value& at(Slot slot) noexcept { return chunks_[slot / kChunk][slot % kChunk]; }
  const Value& at(Slot slot) const noexcept { return chunks_[slot / kChunk][slot % kChunk]; }

  // The slot of the value with this hash for which is(value) holds; kNone when there is none.
  template <class Is>
  Slot find(std::uint64_t hash, const Is& is) const noexcept {
    for (std::size_t i = hash & mask();; i = (i + 1) & mask()) {
      const Cell& cell = cells_[i];
      if (cell.slot == kNone) return kNone;
      if (cell.hash == hash && is(at(cell.slot))) return cell.slot;
    }
  }
  // A new slot with this value. Requires: its key is not in the map.
  Slot insert(Value value) {
    if (2 * (size_ + 1) > cells_.size()) grow();
    if (free_.empty()) add_chunk();
    const Slot slot = free_.back();
    free_.pop_back();
    at(slot) = std::move(value);
    put(at(slot).hash(), slot);
    ++size_;
    return slot;
  }
  // Requires: a value is there.
  void erase(Slot slot) noexcept {
    std::size_t hole = at(slot).hash() & mask();
    while (cells_[hole].slot != slot) hole = (hole + 1) & mask();
    // Those behind the hole move up, unless they would stand before their place.
    for (std::size_t i = (hole + 1) & mask(); cells_[i].slot != kNone; i = (i + 1) & mask()) {
      const std::size_t home = cells_[i].hash & mask();
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      cells_[hole] = cells_[i];
      hole = i;
    }
    cells_[hole] = {};
    free_.push_back(slot);  // has room: see add_chunk()
    --size_;
  }
  template <class F>
  void for_each(F&& visit) const {
    for (const Cell& cell : cells_)
      if (cell.slot != kNone) visit(at(cell.slot));
  }
  template <class Is>
  std::size_t erase_if(const Is& is) {
    std::vector<Slot> gone;
    for (const Cell& cell : cells_)
      if (cell.slot != kNone && is(at(cell.slot))) gone.push_back(cell.slot);
    for (const Slot slot : gone) erase(slot);
    return gone.size();
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  struct Cell {
    std::uint64_t hash = 0;
    Slot slot = kNone;
  };
  std::size_t mask() const noexcept { return cells_.size() - 1; }
  void put(std::uint64_t hash, Slot slot) noexcept {
    std::size_t i = hash & mask();
    while (cells_[i].slot != kNone) i = (i + 1) & mask();
    cells_[i] = {hash, slot};
  }
  void grow() {
    std::vector<Cell> before(2 * cells_.size());
    before.swap(cells_);
    for (const Cell& cell : before)
      if (cell.slot != kNone) put(cell.hash, cell.slot);
  }
  void add_chunk() {
    const auto first = static_cast<Slot>(chunks_.size() * kChunk);
    free_.reserve(first + kChunk);
    chunks_.push_back(std::make_unique<Value[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) free_.push_back(first + static_cast<Slot>(i));
  }

  std::vector<std::unique_ptr<Value[]>> chunks_;
  std::vector<Slot> free_;
  std::vector<Cell> cells_;
  std::size_t size_ = 0;
};

}  // namespace ashlar::events
