// IntrusiveOrder: a list of block ids with O(1) insertion at the end and removal anywhere, in one flat array.
//
// The building block of eviction backends: 8 bytes per block of the pool, no allocation after construction.
//
// Thread safety: confined. Invariant: an id is in the list at most once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/block/block_id.h"

namespace ashlar::block {

class IntrusiveOrder {
 public:
  explicit IntrusiveOrder(std::uint32_t block_count)
      : links_(std::size_t{block_count} + 1), end_(block_count) {
    links_[end_] = {end_, end_};
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::optional<BlockId> front() const noexcept {
    return empty() ? std::nullopt : std::optional(BlockId(links_[end_].next));
  }

  void push_back(BlockId id) noexcept {
    ASHLAR_DCHECK(id.value() < end_, "block %u is not of this pool", id.value());
    const std::uint32_t last = links_[end_].prev;
    links_[id.value()] = {last, end_};
    links_[last].next = id.value();
    links_[end_].prev = id.value();
    ++size_;
  }
  void remove(BlockId id) noexcept {
    const Link link = links_[id.value()];
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
    --size_;
  }
  std::optional<BlockId> pop_front() noexcept {
    if (empty()) return std::nullopt;
    const BlockId id(links_[end_].next);
    remove(id);
    return id;
  }
  // The first ids in order.
  std::size_t peek(std::span<BlockId> out) const noexcept {
    std::size_t count = 0;
    for (std::uint32_t at = links_[end_].next; at != end_ && count < out.size(); at = links_[at].next) {
      out[count++] = BlockId(at);
    }
    return count;
  }

 private:
  struct Link {
    std::uint32_t prev = 0;
    std::uint32_t next = 0;
  };
  std::vector<Link> links_;  // the last one is the list's end
  std::uint32_t end_;
  std::size_t size_ = 0;
};

}  // namespace ashlar::block
