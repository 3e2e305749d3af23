// AliasNames: names that do not fit the one-name-per-content rule of the name table.
//
// The name table of a FlashIndex has one entry per content and one content per name: the canonical name. A
// worker that uses another name for a content, or a name that means other content elsewhere, has that name
// here, as an alias under (slot, name). Once a slot has an alias for a block, the tiers in which it also
// holds the block by its canonical name are recorded here too, in the place of (slot, block); without aliases
// they are the tiers of its masks.
//
// Thread safety: thread-compatible.
// Complexity:    O(1), except drop(): O(names of the block on that worker). Both tables are hashed with a
//                secret. trim() returns the memory left by the last alias.
// Invariant:     a place exists iff it has an alias; an alias has at least one tier, except during the call
//                that creates it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tag_table.h"
#include "index/flash/chunked_pool.h"
#include "index/flash/flash_node.h"

namespace ashlar::index::detail {

using TierBits = std::uint8_t;

class AliasNames {
 public:
  struct Alias {
    std::uint64_t name = 0;
    std::uint32_t place = 0;
    std::uint32_t next = 0;  // of the same place
    std::uint32_t previous = 0;
    std::uint16_t slot = 0;
    TierBits tiers = 0;
  };
  struct Place {
    BlockRef block;
    std::uint32_t first = 0;
    std::array<std::uint32_t, events::kStorageTiers> names{};  // aliases per tier
    std::uint16_t slot = 0;
    TierBits canonical = 0;
  };

  AliasNames(SlabPool& pool, const TableSeed& seed) noexcept : by_name_(pool, seed), by_place_(pool, seed) {}

  bool empty() const noexcept { return aliases_.live() == 0; }
  // Aliases of a slot; most slots have none, and skip every lookup.
  bool any(std::uint32_t slot) const noexcept { return slot < per_slot_.size() && per_slot_[slot] != 0; }

  // 0 when there is none.
  std::uint32_t find(std::uint32_t slot, std::uint64_t name) const noexcept;
  std::uint32_t find_place(std::uint32_t slot, BlockRef block) const noexcept;
  const Alias& alias(std::uint32_t number) const noexcept { return record(number); }
  BlockRef block_of(std::uint32_t alias) const noexcept { return places_[record(alias).place].block; }
  Place& place(std::uint32_t number) noexcept { return places_[number]; }
  const Place& place(std::uint32_t number) const noexcept { return places_[number]; }
  // The tiers in which the slot holds the block by some alias.
  static TierBits tiers_of(const Place& place) noexcept;

  // Requires: no such alias. A new place starts with `canonical`. The alias has no tier yet. Throws
  // std::bad_alloc with nothing changed.
  std::uint32_t add(std::uint32_t slot, std::uint64_t name, BlockRef block, TierBits canonical);
  // Marks the alias as used in the tier; false when it was already.
  bool add_tier(std::uint32_t alias, std::size_t tier) noexcept;
  // Unmarks it; false when it was not marked. The caller removes an alias without tiers.
  bool remove_tier(std::uint32_t alias, std::size_t tier) noexcept;
  void remove(std::uint32_t alias) noexcept;
  // Drops every alias of the slot for the block.
  void drop(std::uint32_t slot, BlockRef block) noexcept;
  // Renames the block's reference. Throws std::bad_alloc with nothing changed; moving blocks back in reverse
  // order needs no memory.
  void move(std::uint32_t slot, BlockRef from, BlockRef to);

  // Aliases have numbers from 1 to end() - 1; unused numbers belong to no slot.
  std::uint32_t end() const noexcept { return aliases_.end(); }
  bool in_use(std::uint32_t alias) const noexcept { return record(alias).place != 0; }
  // Aliases examined so far.
  std::uint64_t steps() const noexcept { return steps_; }

  // True after the last alias is removed: trim() then returns memory, a few pieces per call, and is true when
  // done.
  bool emptied() const noexcept { return emptied_; }
  bool trim(std::size_t most);
  std::size_t bytes() const noexcept;

 private:
  Alias& record(std::uint32_t number) noexcept {
    ++steps_;
    return aliases_[number];
  }
  const Alias& record(std::uint32_t number) const noexcept {
    ++steps_;
    return aliases_[number];
  }

  // Called when the last alias is removed.
  void forget_all() noexcept;

  TagTable by_name_;
  TagTable by_place_;
  ChunkedPool<Alias> aliases_;
  ChunkedPool<Place> places_;
  std::vector<std::uint32_t> per_slot_;
  bool emptied_ = false;
  mutable std::uint64_t steps_ = 0;
};

}  // namespace ashlar::index::detail
