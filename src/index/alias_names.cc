#include "index/alias_names.h"

namespace ashlar::index::detail {

std::uint32_t AliasNames::find(std::uint32_t slot, std::uint64_t name) const {
  return by_name_.find(NameTable::tag_of(name, slot),
                       [&](std::uint32_t i) { return aliases_[i].name == name && aliases_[i].slot == slot; });
}

std::uint32_t AliasNames::find_place(std::uint32_t slot, BlockRef block) const {
  return by_place_.find(NameTable::tag_of(block.word(), slot), [&](std::uint32_t i) {
    return places_[i].block == block && places_[i].slot == slot;
  });
}

TierBits AliasNames::tiers_of(const Place& place) const noexcept {
  TierBits tiers = 0;
  for (std::uint32_t i = place.first; i != 0; i = aliases_[i].next) tiers |= aliases_[i].tiers;
  return tiers;
}

std::uint32_t AliasNames::add(std::uint32_t slot, std::uint64_t name, BlockRef block, TierBits canonical) {
  const std::uint32_t number = aliases_.allocate();
  std::uint32_t place = find_place(slot, block);
  if (place == 0) {
    place = places_.allocate();
    places_[place] = {block, slot, 0, canonical};
    by_place_.insert(NameTable::tag_of(block.word(), slot), place, [](std::uint32_t) { return false; });
  }
  aliases_[number] = {name, block, slot, place, places_[place].first, 0};
  places_[place].first = number;
  by_name_.insert(NameTable::tag_of(name, slot), number, [](std::uint32_t) { return false; });
  if (slot >= per_slot_.size()) per_slot_.resize(slot + 1);
  ++per_slot_[slot];
  return number;
}

void AliasNames::remove(std::uint32_t number) {
  const Alias alias = aliases_[number];
  by_name_.erase(NameTable::tag_of(alias.name, alias.slot), number);
  Place& place = places_[alias.place];
  std::uint32_t* link = &place.first;
  while (*link != number) link = &aliases_[*link].next;
  *link = alias.next;
  if (place.first == 0) {
    by_place_.erase(NameTable::tag_of(alias.block.word(), alias.slot), alias.place);
    places_.free(alias.place);
  }
  --per_slot_[alias.slot];
  aliases_.free(number);
  if (!empty()) return;
  std::vector<std::uint32_t>().swap(per_slot_);
  by_name_.reset();
  by_place_.reset();
}

void AliasNames::drop(std::uint32_t slot, BlockRef block) {
  for (const std::uint32_t place = find_place(slot, block); place != 0;) {
    const bool last = aliases_[places_[place].first].next == 0;
    remove(places_[place].first);
    if (last) return;
  }
}

void AliasNames::move(std::uint32_t slot, BlockRef from, BlockRef to) {
  const std::uint32_t place = find_place(slot, from);
  if (place == 0) return;
  by_place_.erase(NameTable::tag_of(from.word(), slot), place);
  places_[place].block = to;
  by_place_.insert(NameTable::tag_of(to.word(), slot), place, [](std::uint32_t) { return false; });
  for (std::uint32_t i = places_[place].first; i != 0; i = aliases_[i].next) aliases_[i].block = to;
}

std::size_t AliasNames::bytes() const noexcept {
  return by_name_.bytes() + by_place_.bytes() + aliases_.bytes() + places_.bytes() +
         per_slot_.capacity() * sizeof(per_slot_[0]);
}

}  // namespace ashlar::index::detail
