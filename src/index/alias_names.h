// AliasNames: the names that do not fit the one-name-per-content rule of the name table.
//
// The name table of a FlashIndex has one entry per content, and one content per name: the canonical name. A worker that
// calls a content otherwise, or uses a name that means other content elsewhere, has that name here, as an alias under
// (slot, name). As soon as a slot has an alias for a block, the tiers in which it also holds the block by its canonical
// name are written down here too; without aliases they are the tiers of its masks.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) in the number of names, O(names of one block on one worker).
// Invariant:     a place exists iff it has an alias; an alias has at least one tier, outside the call that makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/chunked_pool.h"
#include "index/flash_node.h"
#include "index/name_table.h"

namespace ashlar::index::detail {

using TierBits = std::uint8_t;

class AliasNames {
 public:
  struct Alias {
    std::uint64_t name = 0;
    BlockRef block;
    std::uint32_t slot = 0;
    std::uint32_t place = 0;
    std::uint32_t next = 0;  // of the same place
    TierBits tiers = 0;
  };
  struct Place {
    BlockRef block;
    std::uint32_t slot = 0;
    std::uint32_t first = 0;
    TierBits canonical = 0;
  };

  explicit AliasNames(SlabPool& pool) noexcept : by_name_(pool), by_place_(pool) {}

  bool empty() const noexcept { return aliases_.live() == 0; }
  // Aliases of a slot; most slots have none, and skip every lookup.
  bool any(std::uint32_t slot) const noexcept { return slot < per_slot_.size() && per_slot_[slot] != 0; }

  // 0 when there is none.
  std::uint32_t find(std::uint32_t slot, std::uint64_t name) const;
  std::uint32_t find_place(std::uint32_t slot, BlockRef block) const;
  Alias& alias(std::uint32_t number) noexcept { return aliases_[number]; }
  const Alias& alias(std::uint32_t number) const noexcept { return aliases_[number]; }
  Place& place(std::uint32_t number) noexcept { return places_[number]; }
  const Place& place(std::uint32_t number) const noexcept { return places_[number]; }
  // The tiers in which the slot holds the block by some alias.
  TierBits tiers_of(const Place& place) const noexcept;

  // Requires: no such alias. A new place starts with `canonical`.
  std::uint32_t add(std::uint32_t slot, std::uint64_t name, BlockRef block, TierBits canonical);
  void remove(std::uint32_t alias);
  // The slot holds the block no more.
  void drop(std::uint32_t slot, BlockRef block);
  // The block has another reference now.
  void move(std::uint32_t slot, BlockRef from, BlockRef to);

  std::size_t bytes() const noexcept;

 private:
  NameTable by_name_;
  NameTable by_place_;
  ChunkedPool<Alias> aliases_;
  ChunkedPool<Place> places_;
  std::vector<std::uint32_t> per_slot_;
};

}  // namespace ashlar::index::detail
