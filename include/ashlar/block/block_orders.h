// Orders of block ids, from which eviction policies are built: IntrusiveLists (several lists by time),
// IntrusiveOrder (one such list), IndexedHeap<Key> (by key).
//
// All are flat arrays over the blocks of one pool: kBytesPerBlock each, allocated at construction.
//
// Thread safety: confined.
// Complexity:    lists O(1); heap O(log4 size), peek() at k ids O(k log k). Nothing allocates after
//                construction but IndexedHeap::peek().
// Invariant:     an id is in an order at most once.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/block/block_identity.h"

namespace ashlar::block {

// Lists are numbered from 0; an id is in at most one of them. Each list's end is a link stored after those of
// the blocks: 8 more bytes per list.
class IntrusiveLists {
 public:
  static constexpr std::size_t kBytesPerBlock = 2 * sizeof(std::uint32_t);

  // `list` below is always less than list_count.
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
  // Removes the id from its list. Requires: it is in one.
  void remove(BlockId id) noexcept {
    const Link link = links_[id.value()];
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
    --size_;
  }
  // Removes and returns the first id of the list; nullopt when the list is empty.
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

// One list: O(1) insertion at both ends and removal anywhere.
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
  // Requires: the id is in the list.
  void remove(BlockId id) noexcept { list_.remove(id); }
  // nullopt when the list is empty.
  std::optional<BlockId> pop_front() noexcept { return list_.pop_front(0); }
  // The first ids in order.
  std::size_t peek(std::span<BlockId> out) const noexcept { return list_.peek(0, out); }

 private:
  IntrusiveLists list_;
};

// Block ids ordered by a key each, least key first; any id can be changed or removed.
//
// A 4-ary heap. Keys and ids are stored in heap order in separate arrays, so that the keys of four children
// are adjacent in memory; a third array maps each id to its place. Ids with equal keys come in an unspecified
// order, the same for the same history: callers that need a total order put a tick into the key. Invariant:
// no key is less than its parent's; places_ is the inverse of ids_.
template <class Key>
  requires std::totally_ordered<Key> && std::default_initializable<Key>
class IndexedHeap {
 public:
  static constexpr std::size_t kBytesPerBlock = sizeof(Key) + 2 * sizeof(std::uint32_t);

  explicit IndexedHeap(std::uint32_t block_count)
      : keys_(block_count), ids_(block_count), places_(block_count, kNowhere) {}

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  bool contains(BlockId id) const noexcept { return places_[id.value()] != kNowhere; }
  // Requires: contains(id).
  const Key& key_of(BlockId id) const noexcept { return keys_[place_of(id)]; }
  // The id with the least key. nullopt when empty.
  std::optional<BlockId> top() const noexcept {
    return empty() ? std::nullopt : std::optional(BlockId(ids_[0]));
  }

  // Requires: !contains(id).
  void push(BlockId id, const Key& key) {
    ASHLAR_DCHECK(!contains(id), "block %u is in the heap already", id.value());
    rise(size_++, {key, id.value()});
  }
  // Requires: contains(id).
  void update(BlockId id, const Key& key) { settle(place_of(id), {key, id.value()}); }
  // Requires: contains(id).
  void remove(BlockId id) {
    const std::uint32_t hole = place_of(id);
    places_[id.value()] = kNowhere;
    --size_;
    if (hole != size_) settle(hole, {std::move(keys_[size_]), ids_[size_]});
  }
  // Removes and returns the id with the least key; nullopt when empty.
  std::optional<BlockId> pop() {
    const std::optional<BlockId> first = top();
    if (first) remove(*first);
    return first;
  }
  // The first ids in order. Returns their number.
  std::size_t peek(std::span<BlockId> out) const {
    const std::size_t wanted = std::min(out.size(), std::size_t{size_});
    if (wanted == 0) return 0;
    // A heap of places, each of which stands for its whole subtree.
    std::vector<std::uint32_t> frontier = {0};
    frontier.reserve(std::min<std::size_t>(size_, (kChildren - 1) * wanted + kChildren));
    const auto later = [&](std::uint32_t a, std::uint32_t b) { return keys_[b] < keys_[a]; };
    for (std::size_t count = 0; count < wanted; ++count) {
      std::ranges::pop_heap(frontier, later);
      const std::uint32_t place = frontier.back();
      frontier.pop_back();
      out[count] = BlockId(ids_[place]);
      for (std::uint64_t child = first_child(place); child < last_child(place); ++child) {
        frontier.push_back(static_cast<std::uint32_t>(child));
        std::ranges::push_heap(frontier, later);
      }
    }
    return wanted;
  }

 private:
  static constexpr std::uint32_t kChildren = 4;
  static constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();
  struct Node {
    Key key;
    std::uint32_t id;
  };

  // Places are indexes into the heap order; the root is 0.
  // Children are [first_child, last_child); the range is empty for a leaf.
  std::uint64_t first_child(std::uint32_t place) const noexcept {
    return std::uint64_t{place} * kChildren + 1;
  }
  std::uint64_t last_child(std::uint32_t place) const noexcept {
    return std::min<std::uint64_t>(first_child(place) + kChildren, size_);
  }
  std::uint32_t place_of(BlockId id) const noexcept {
    ASHLAR_DCHECK(contains(id), "block %u is not in the heap", id.value());
    return places_[id.value()];
  }
  void put(std::uint32_t place, Node&& node) {
    keys_[place] = std::move(node.key);
    ids_[place] = node.id;
    places_[node.id] = place;
  }
  void move_to(std::uint32_t place, std::uint32_t from) { put(place, {std::move(keys_[from]), ids_[from]}); }

  // Puts the node into the hole, then sifts it up or down.
  void settle(std::uint32_t hole, Node&& node) {
    if (hole > 0 && node.key < keys_[(hole - 1) / kChildren]) {
      rise(hole, std::move(node));
    } else {
      sink(hole, std::move(node));
    }
  }
  void rise(std::uint32_t hole, Node&& node) {
    while (hole > 0) {
      const std::uint32_t parent = (hole - 1) / kChildren;
      if (!(node.key < keys_[parent])) break;
      move_to(hole, parent);
      hole = parent;
    }
    put(hole, std::move(node));
  }
  void sink(std::uint32_t hole, Node&& node) {
    while (first_child(hole) < size_) {
      const auto first = static_cast<std::uint32_t>(first_child(hole));
      const auto last = static_cast<std::uint32_t>(last_child(hole));
      std::uint32_t least = first;
      for (std::uint32_t child = first + 1; child < last; ++child) {
        if (keys_[child] < keys_[least]) least = child;
      }
      if (!(keys_[least] < node.key)) break;
      move_to(hole, least);
      hole = least;
    }
    put(hole, std::move(node));
  }

  std::vector<Key> keys_;              // in heap order
  std::vector<std::uint32_t> ids_;     // in heap order
  std::vector<std::uint32_t> places_;  // by id
  std::uint32_t size_ = 0;
};

}  // namespace ashlar::block
