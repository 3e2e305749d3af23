#include "index/flash/alias_names.h"

#include <new>

namespace ashlar::index::detail {

std::uint32_t AliasNames::find(std::uint32_t slot, std::uint64_t name) const noexcept {
  return by_name_.find(by_name_.tag_of(name, slot), [&](std::uint32_t i) {
    const Alias& alias = record(i);
    return alias.name == name && alias.slot == slot;
  });
}

std::uint32_t AliasNames::find_place(std::uint32_t slot, BlockRef block) const noexcept {
  return by_place_.find(by_place_.tag_of(block.word(), slot), [&](std::uint32_t i) {
    return places_[i].block == block && places_[i].slot == slot;
  });
}

TierBits AliasNames::tiers_of(const Place& place) noexcept {
  TierBits tiers = 0;
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier)
    tiers |= static_cast<TierBits>((place.names[tier] != 0 ? 1u : 0u) << tier);
  return tiers;
}

std::uint32_t AliasNames::add(std::uint32_t slot, std::uint64_t name, BlockRef block, TierBits canonical) {
  std::uint32_t number = 0;
  std::uint32_t place = find_place(slot, block);
  const bool new_place = place == 0;
  // Allocate everything first.
  try {
    if (slot >= per_slot_.size()) per_slot_.resize(slot + 1);
    by_name_.reserve(by_name_.tag_of(name, slot));
    if (new_place) by_place_.reserve(by_place_.tag_of(block.word(), slot));
    number = aliases_.allocate();
    if (new_place) place = places_.allocate();
  } catch (const std::bad_alloc&) {
    if (number != 0) aliases_.free(number);
    if (empty()) forget_all();
    throw;
  }
  if (new_place) {
    places_[place] = {block, 0, {}, static_cast<std::uint16_t>(slot), canonical};
    by_place_.insert(by_place_.tag_of(block.word(), slot), place, [](std::uint32_t) { return false; });
  }
  const std::uint32_t next = places_[place].first;
  record(number) = {name, place, next, 0, static_cast<std::uint16_t>(slot), 0};
  if (next != 0) record(next).previous = number;
  places_[place].first = number;
  by_name_.insert(by_name_.tag_of(name, slot), number, [](std::uint32_t) { return false; });
  ++per_slot_[slot];
  return number;
}

bool AliasNames::add_tier(std::uint32_t number, std::size_t tier) noexcept {
  Alias& alias = record(number);
  const auto bit = static_cast<TierBits>(1u << tier);
  if ((alias.tiers & bit) != 0) return false;
  alias.tiers |= bit;
  ++places_[alias.place].names[tier];
  return true;
}

bool AliasNames::remove_tier(std::uint32_t number, std::size_t tier) noexcept {
  Alias& alias = record(number);
  const auto bit = static_cast<TierBits>(1u << tier);
  if ((alias.tiers & bit) == 0) return false;
  alias.tiers &= static_cast<TierBits>(~bit);
  --places_[alias.place].names[tier];
  return true;
}

void AliasNames::remove(std::uint32_t number) noexcept {
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) remove_tier(number, tier);
  const Alias alias = record(number);
  by_name_.erase(by_name_.tag_of(alias.name, alias.slot), number);
  Place& place = places_[alias.place];
  if (alias.previous != 0)
    record(alias.previous).next = alias.next;
  else
    place.first = alias.next;
  if (alias.next != 0) record(alias.next).previous = alias.previous;
  if (place.first == 0) {
    by_place_.erase(by_place_.tag_of(place.block.word(), alias.slot), alias.place);
    places_.free(alias.place);
  }
  --per_slot_[alias.slot];
  aliases_.free(number);
  if (empty()) forget_all();
}

void AliasNames::forget_all() noexcept {
  std::vector<std::uint32_t>().swap(per_slot_);
  by_name_.forget();
  by_place_.forget();
  emptied_ = true;
}

void AliasNames::drop(std::uint32_t slot, BlockRef block) noexcept {
  for (const std::uint32_t place = find_place(slot, block); place != 0;) {
    const bool last = record(places_[place].first).next == 0;
    remove(places_[place].first);
    if (last) return;
  }
}

void AliasNames::move(std::uint32_t slot, BlockRef from, BlockRef to) {
  const std::uint32_t place = find_place(slot, from);
  if (place == 0) return;
  by_place_.retag(by_place_.tag_of(from.word(), slot), place, by_place_.tag_of(to.word(), slot));
  places_[place].block = to;
}

bool AliasNames::trim(std::size_t most) {
  emptied_ = false;
  if (!by_name_.free_some(most) || !by_place_.free_some(most)) return false;
  if (empty()) {
    // The tables may have filled and emptied again before the previous trim finished.
    by_name_.forget();
    by_place_.forget();
    if (!by_name_.free_some(most) || !by_place_.free_some(most)) return false;
  }
  return aliases_.trim(most) && places_.trim(most);
}

std::size_t AliasNames::bytes() const noexcept {
  return by_name_.bytes() + by_place_.bytes() + aliases_.bytes() + places_.bytes() +
         per_slot_.capacity() * sizeof(per_slot_[0]);
}

}  // namespace ashlar::index::detail
