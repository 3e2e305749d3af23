// CallBatch: copied calls of IndexSink, in reused storage.
//
// Thread safety: thread-compatible.
// Complexity:    an append is three copies to the end of an array; clear() keeps the storage.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index::detail {

// One call without its blocks and names.
struct CallHead {
  enum class Kind : std::uint8_t { kStore, kRemove, kClear };

  Worker worker{};
  BlockName parent{};
  std::size_t count = 0;  // blocks of a store, names of a removal
  std::uint32_t start_position = 0;
  Kind kind = Kind::kClear;
  StorageTier tier = StorageTier::kDevice;
  bool has_parent = false;
  bool has_position = false;
};

class CallBatch {
 public:
  std::size_t events() const noexcept { return heads_.size(); }
  bool empty() const noexcept { return heads_.empty(); }

  // Requires: head.count is blocks.size() + names.size(). Throws std::bad_alloc with the batch unchanged.
  void append(const CallHead& head, std::span<const StoredBlock> blocks, std::span<const BlockName> names) {
    ASHLAR_DCHECK(head.count == blocks.size() + names.size(),
                  "apply() takes %zu blocks or names for this call", head.count);
    make_room(heads_, 1);
    make_room(blocks_, blocks.size());
    make_room(names_, names.size());
    heads_.push_back(head);
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    names_.insert(names_.end(), names.begin(), names.end());
  }

  // Makes the calls, in order.
  void apply(IndexSink& target) const;

  // Keeps room for at most `room` blocks, names and events each.
  void clear(std::size_t room) noexcept;

 private:
  template <class T>
  static void make_room(std::vector<T>& array, std::size_t more) {
    const std::size_t size = array.size() + more;
    if (size > array.capacity()) array.reserve(std::max(size, 2 * array.capacity()));
  }

  std::vector<CallHead> heads_;
  std::vector<StoredBlock> blocks_;
  std::vector<BlockName> names_;
};

}  // namespace ashlar::index::detail
