// PinTable: the pins of each slot and their deadlines. Fixed capacity, ordered by deadline.
//
// A record is identified by its index and a serial number that changes with every use, so an ended pin cannot
// be ended again, even by a guard that still refers to it.
//
// Thread safety: confined; the store calls it under its own lock.
// Complexity:    O(log pins) to add or remove, O(1) to see what ends next. Nothing allocates after
//                construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"

namespace ashlar::block::detail {

class PinTable {
 public:
  struct Key {
    std::uint32_t record;
    std::uint64_t serial;
  };

  explicit PinTable(std::size_t capacity) : records_(capacity) {
    heap_.reserve(capacity);
    free_.reserve(capacity);
    for (std::size_t i = capacity; i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
  }

  std::size_t size() const noexcept { return heap_.size(); }
  std::size_t capacity() const noexcept { return records_.size(); }
  std::optional<Clock::TimePoint> next_end() const noexcept {
    return heap_.empty() ? std::nullopt : std::optional(records_[heap_.front()].end);
  }

  // nullopt when the table is full.
  std::optional<Key> add(std::uint32_t slot, Clock::TimePoint end) {
    if (free_.empty()) return std::nullopt;
    const std::uint32_t record = free_.back();
    free_.pop_back();
    records_[record].slot = slot;
    records_[record].end = end;
    heap_.push_back(record);
    records_[record].place = heap_.size() - 1;
    sift_up(heap_.size() - 1);
    return Key{record, records_[record].serial};
  }

  // The slot, while the pin holds.
  std::optional<std::uint32_t> slot_of(const Key& key) const noexcept {
    if (key.record >= records_.size() || records_[key.record].serial != key.serial) return std::nullopt;
    return records_[key.record].slot;
  }
  // Ends a pin; returns its slot, or nullopt when it had already ended.
  std::optional<std::uint32_t> remove(const Key& key) {
    const std::optional<std::uint32_t> slot = slot_of(key);
    if (slot) take(key.record);
    return slot;
  }
  // Ends the next expired pin; returns its slot.
  std::optional<std::uint32_t> remove_ended(Clock::TimePoint now) {
    if (heap_.empty() || records_[heap_.front()].end > now) return std::nullopt;
    const std::uint32_t record = heap_.front();
    const std::uint32_t slot = records_[record].slot;
    take(record);
    return slot;
  }

 private:
  struct Record {
    Clock::TimePoint end;
    std::uint64_t serial = 1;
    std::size_t place = 0;  // index in heap_
    std::uint32_t slot = 0;
  };

  bool before(std::size_t a, std::size_t b) const noexcept {
    return records_[heap_[a]].end < records_[heap_[b]].end;
  }
  void swap(std::size_t a, std::size_t b) noexcept {
    std::swap(heap_[a], heap_[b]);
    records_[heap_[a]].place = a;
    records_[heap_[b]].place = b;
  }
  void sift_up(std::size_t i) noexcept {
    for (; i > 0 && before(i, (i - 1) / 2); i = (i - 1) / 2) swap(i, (i - 1) / 2);
  }
  void sift_down(std::size_t i) noexcept {
    for (;;) {
      std::size_t least = i;
      for (const std::size_t child : {2 * i + 1, 2 * i + 2}) {
        if (child < heap_.size() && before(child, least)) least = child;
      }
      if (least == i) return;
      swap(i, least);
      i = least;
    }
  }
  void take(std::uint32_t record) noexcept {
    const std::size_t place = records_[record].place;
    swap(place, heap_.size() - 1);
    heap_.pop_back();
    if (place < heap_.size()) {
      sift_up(place);
      sift_down(place);
    }
    ++records_[record].serial;
    free_.push_back(record);
  }

  std::vector<Record> records_;
  std::vector<std::uint32_t> heap_;
  std::vector<std::uint32_t> free_;
};

}  // namespace ashlar::block::detail
