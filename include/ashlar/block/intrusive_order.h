// IntrusiveOrder: a list of block ids with O(1) insertion at both ends and removal anywhere; IntrusiveLists
// with one list.
//
// Memory: kBytesPerBlock per block of the pool.
//
// Thread safety: confined.
// Complexity:    O(1), O(ids written) for peek(); nothing allocates after construction.
// Invariant:     an id is in the list at most once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ashlar/block/block_id.h"
#include "ashlar/block/intrusive_lists.h"

namespace ashlar::block {

class IntrusiveOrder {
 public:
  static constexpr std::size_t kBytesPerBlock = IntrusiveLists::kBytesPerBlock;

  explicit IntrusiveOrder(std::uint32_t block_count) : list_(block_count, 1) {}

  std::size_t size() const noexcept { return list_.size(); }
  bool empty() const noexcept { return list_.size() == 0; }
  std::optional<BlockId> front() const noexcept { return list_.front(0); }

  // Requires of both: the id is not in the list.
  void push_back(BlockId id) noexcept { list_.push_back(0, id); }
  void push_front(BlockId id) noexcept { list_.push_front(0, id); }
  void remove(BlockId id) noexcept { list_.remove(id); }
  std::optional<BlockId> pop_front() noexcept { return list_.pop_front(0); }
  // The first ids in order.
  std::size_t peek(std::span<BlockId> out) const noexcept { return list_.peek(0, out); }

 private:
  IntrusiveLists list_;
};

}  // namespace ashlar::block
