// IntrusiveLists: several lists of block ids over one flat array of links; an id is in at most one of them.
//
// The building block of eviction backends that keep order by time. Lists are numbered from 0; the end of each
// is a link behind those of the blocks. Memory: kBytesPerBlock per block of the pool and 8 bytes per list.
//
// Thread safety: confined.
// Complexity:    O(1) for every operation, O(ids written) for peek(); nothing allocates after construction.
// Invariant:     an id is in one list at most once, whichever lists there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/block/block_id.h"

namespace ashlar::block {

class IntrusiveLists {
 public:
  static constexpr std::size_t kBytesPerBlock = 2 * sizeof(std::uint32_t);

  IntrusiveLists(std::uint32_t block_count, std::uint32_t list_count)
      : links_(std::size_t{block_count} + list_count), block_count_(block_count) {
    for (std::uint32_t list = 0; list < list_count; ++list)
      links_[end_of(list)] = {end_of(list), end_of(list)};
  }

  // Ids in all lists together.
  std::size_t size() const noexcept { return size_; }
  bool empty(std::uint32_t list) const noexcept { return links_[end_of(list)].next == end_of(list); }
  std::optional<BlockId> front(std::uint32_t list) const noexcept {
    return empty(list) ? std::nullopt : std::optional(BlockId(links_[end_of(list)].next));
  }

  // Requires of both: the id is in no list.
  void push_back(std::uint32_t list, BlockId id) noexcept {
    link(id, links_[end_of(list)].prev, end_of(list));
  }
  void push_front(std::uint32_t list, BlockId id) noexcept {
    link(id, end_of(list), links_[end_of(list)].next);
  }
  // Takes the id out of the list it is in.
  void remove(BlockId id) noexcept {
    const Link link = links_[id.value()];
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
    --size_;
  }
  std::optional<BlockId> pop_front(std::uint32_t list) noexcept {
    const std::optional<BlockId> first = front(list);
    if (first) remove(*first);
    return first;
  }
  // The first ids of the list, in order.
  std::size_t peek(std::uint32_t list, std::span<BlockId> out) const noexcept {
    std::size_t count = 0;
    const std::uint32_t end = end_of(list);
    for (std::uint32_t at = links_[end].next; at != end && count < out.size(); at = links_[at].next) {
      out[count++] = BlockId(at);
    }
    return count;
  }

 private:
  struct Link {
    std::uint32_t prev = 0;
    std::uint32_t next = 0;
  };
  std::uint32_t end_of(std::uint32_t list) const noexcept { return block_count_ + list; }
  void link(BlockId id, std::uint32_t prev, std::uint32_t next) noexcept {
    ASHLAR_DCHECK(id.value() < block_count_, "block %u is not of this pool", id.value());
    links_[id.value()] = {prev, next};
    links_[prev].next = id.value();
    links_[next].prev = id.value();
    ++size_;
  }

  std::vector<Link> links_;  // of the blocks, then the ends of the lists
  std::uint32_t block_count_;
  std::size_t size_ = 0;
};

}  // namespace ashlar::block
