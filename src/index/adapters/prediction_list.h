// PredictionList: predicted blocks in order of expiry.
//
// A doubly linked list in an array. All predictions have the same time to live and time never decreases, so a
// new or renewed one always goes to the end.
//
// Thread safety: thread-compatible. Complexity: O(1), except for additions that double the array.
// Invariant:     an empty list owns no memory; expiry times never decrease from front to back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/index/indexer.h"
#include "index/adapters/content_trie.h"

namespace ashlar::index::detail {

// Owner is the state shared by one worker's predictions.
template <class Owner>
class PredictionList {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = UINT32_MAX;
  static constexpr std::size_t kMost = UINT32_MAX;

  struct Prediction {
    Owner* owner = nullptr;
    BlockName name;
    std::int64_t due = 0;  // in buckets of time
    ContentTrie::Id content = ContentTrie::kRoot;
    Id before = kNone;
    Id after = kNone;  // of a free place: the next free one
  };

  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return places_.capacity() * sizeof(Prediction); }
  // kNone when the list is empty.
  Id front() const noexcept { return front_; }
  const Prediction& operator[](Id id) const noexcept { return places_[id]; }

  // Makes room for `more` predictions, so that add() needs no memory for them.
  void reserve_more(std::size_t more) {
    const std::size_t size = size_ + more;
    if (size > places_.capacity()) places_.reserve(std::max(size, 2 * places_.capacity()));
  }
  // Frees the memory of reserve_more() if nothing was added.
  void shrink_if_empty() noexcept {
    if (size_ == 0) std::vector<Prediction>().swap(places_);
  }
  // Requires: size() < kMost.
  Id add(Owner* owner, ContentTrie::Id content, BlockName name, std::int64_t due) {
    Id id = free_;
    if (id != kNone) {
      free_ = places_[id].after;
    } else {
      id = static_cast<Id>(places_.size());
      places_.emplace_back();
    }
    places_[id] = {owner, name, due, content, kNone, kNone};
    append(id);
    ++size_;
    return id;
  }
  void renew(Id id, std::int64_t due) noexcept {
    unlink(id);
    places_[id].due = due;
    append(id);
  }
  void remove(Id id) noexcept {
    unlink(id);
    places_[id].after = free_;
    free_ = id;
    if (--size_ == 0) {
      std::vector<Prediction>().swap(places_);
      free_ = kNone;
    }
  }

 private:
  void append(Id id) noexcept {
    Prediction& last = places_[id];
    last.before = back_;
    last.after = kNone;
    if (back_ != kNone) {
      ASHLAR_DCHECK(places_[back_].due <= last.due, "time went backwards");
      places_[back_].after = id;
    } else {
      front_ = id;
    }
    back_ = id;
  }
  void unlink(Id id) noexcept {
    const Prediction& gone = places_[id];
    (gone.before != kNone ? places_[gone.before].after : front_) = gone.after;
    (gone.after != kNone ? places_[gone.after].before : back_) = gone.before;
  }

  std::size_t size_ = 0;
  Id front_ = kNone;
  Id back_ = kNone;
  Id free_ = kNone;
  std::vector<Prediction> places_;
};

}  // namespace ashlar::index::detail
