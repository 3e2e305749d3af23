// Which slots hold which blocks of a node.
#include <algorithm>
#include <bit>
#include <new>

#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

namespace {

// From this capacity on a set has a `full` bit per slot.
constexpr std::uint32_t kFullFrom = 16;

}  // namespace

FlashTree::Owner FlashTree::owner(Node& node, std::uint32_t slot) const noexcept {
  OwnerSet* const set = node.set();
  if (set == nullptr) return node.first_slot == slot ? Owner{nullptr, 0, &node.first_mask} : Owner{};
  const std::uint32_t count = set->count.load(std::memory_order_relaxed);
  // Workers come to the nodes of a sequence in one order: the slot may be where another was found last.
  if (likely_owner_ < count && set->slots()[likely_owner_] == slot) return {set, likely_owner_, nullptr};
  const std::uint32_t i = set->index_of(slot, count);
  count_holders(i);
  if (i == count) return {};
  likely_owner_ = i;
  return {set, i, nullptr};
}

FlashTree::Owner FlashTree::make_owner(Node& node, std::uint32_t slot, std::size_t tier) {
  const Owner found = owner(node, slot);
  if (found && found.word(tier) != nullptr) return found;
  OwnerSet* const set = node.set();
  const std::uint32_t count = set == nullptr ? 0 : set->count.load(std::memory_order_relaxed);
  const bool fits = set != nullptr && !found && count < set->capacity && (tier == 0 || set->lower) &&
                    (set->words == 0 || slot < set->words * 64);
  if (!fits) {
    replace_set(node, tier != 0 || (set != nullptr && set->lower));
    return make_owner(node, slot, tier);
  }
  set->slots()[count] = slot;
  for (std::size_t t = 0; t < set->arrays(); ++t) set->masks(t)[count].store(0, std::memory_order_relaxed);
  // release: pairs with the acquire of readers: the entry is complete before it counts.
  set->count.store(count + 1, std::memory_order_release);
  return {set, count, nullptr};
}

void FlashTree::list(OwnerSet& set, std::uint32_t slot, bool holds) noexcept {
  if (set.words == 0) return;
  std::atomic<std::uint64_t>& listed = set.listed()[slot / 64];
  const std::uint64_t bits = listed.load(std::memory_order_relaxed);
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  // release: pairs with the acquire of readers: masks before the bit.
  if (((bits & bit) != 0) != holds) listed.store(bits ^ bit, std::memory_order_release);
}

void FlashTree::write_mask(Node& node, const Owner& owner, std::uint32_t slot, std::size_t tier,
                           Mask mask) noexcept {
  if (owner.set == nullptr) return write_tier(node, owner, slot, tier, mask);
  if (!owner.set->lower) {
    write_tier(node, owner, slot, tier, mask);
    return list(*owner.set, slot, mask != 0);
  }
  Mask after = mask;
  for (std::size_t other = 0; other < kStorageTiers; ++other)
    if (other != tier) after |= owner.mask(other);
  // As with full bits: a block is in the union only while it is in a tier. release: pairs with the acquire of
  // readers.
  std::atomic<Mask>& any = owner.set->masks(OwnerSet::kAnyTier)[owner.index];
  any.store(any.load(std::memory_order_relaxed) & after, std::memory_order_release);
  write_tier(node, owner, slot, tier, mask);
  any.store(after, std::memory_order_release);
  list(*owner.set, slot, after != 0);
}

void FlashTree::write_tier(Node& node, const Owner& owner, std::uint32_t slot, std::size_t tier,
                           Mask mask) noexcept {
  std::atomic<Mask>* const word = owner.word(tier);
  if (tier != 0 || owner.set == nullptr || owner.set->words == 0 || !node.closed()) {
    // release: pairs with the acquire of readers.
    word->store(mask, std::memory_order_release);
    return;
  }
  std::atomic<std::uint64_t>& full = owner.set->full()[slot / 64];
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  const std::uint64_t bits = full.load(std::memory_order_relaxed);
  const Mask all = low_bits(node.size());
  // The bit is set after the mask and cleared before it. release: pairs with the acquire of readers.
  if ((mask & all) != all && (bits & bit) != 0) full.store(bits & ~bit, std::memory_order_release);
  word->store(mask, std::memory_order_release);
  if ((mask & all) == all && (bits & bit) == 0) full.store(bits | bit, std::memory_order_release);
}

void FlashTree::hold(Node& node, const Owner& owner, std::uint32_t slot, std::size_t tier,
                     Mask blocks) noexcept {
  const Mask old = owner.mask(tier);
  if ((blocks & ~old) == 0) return;
  write_mask(node, owner, slot, tier, old | blocks);
  slots_.add_blocks(slot, static_cast<std::size_t>(std::popcount(blocks & ~old)));
}

TierBits FlashTree::tiers_at(Node& node, std::uint32_t slot, std::uint32_t offset) const noexcept {
  const Owner found = owner(node, slot);
  TierBits tiers = 0;
  if (!found) return tiers;
  for (std::size_t tier = 0; tier < kStorageTiers; ++tier)
    tiers |= static_cast<TierBits>((found.mask(tier) >> offset & 1) << tier);
  return tiers;
}

Mask FlashTree::held(const Node& node, std::uint32_t but) const noexcept {
  const OwnerSet* const set = node.set();
  const bool dying = any_dead();
  if (set == nullptr) {
    if (node.first_slot == but || (dying && slots_.dead(node.first_slot))) return 0;
    return node.first_mask.load(std::memory_order_relaxed);
  }
  const Mask all = low_bits(node.size());
  if (node.closed())
    for (std::uint32_t w = 0; w < set->words; ++w) {
      std::uint64_t bits = set->full()[w].load(std::memory_order_relaxed);
      if (but / 64 == w) bits &= ~(std::uint64_t{1} << (but % 64));
      if (dying) bits &= ~slots_.dead_bits(w);
      if (bits != 0) return all;
    }
  const std::atomic<Mask>* const masks = set->masks(set->lower ? OwnerSet::kAnyTier : 0);
  const std::uint32_t* const slots = set->slots();
  const std::uint32_t count = set->count.load(std::memory_order_relaxed);
  Mask some = 0;
  std::uint32_t i = 0;
  for (; i < count && some != all; ++i)
    if (slots[i] != but && !(dying && slots_.dead(slots[i])))
      some |= masks[i].load(std::memory_order_relaxed);
  count_holders(i);
  return some;
}

void FlashTree::close(Node& node) noexcept {
  if (node.closed()) return;
  node.shape |= Node::kClosed;
  if (OwnerSet* const set = node.set(); set != nullptr && set->words != 0) set_full_bits(node, *set);
}

void FlashTree::set_full_bits(const Node& node, OwnerSet& set) noexcept {
  const Mask all = low_bits(node.size());
  const std::uint32_t count = set.count.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    if ((set.masks(0)[i].load(std::memory_order_relaxed) & all) != all) continue;
    std::atomic<std::uint64_t>& full = set.full()[set.slots()[i] / 64];
    // release: pairs with the acquire of readers, as in write_mask().
    full.store(full.load(std::memory_order_relaxed) | std::uint64_t{1} << (set.slots()[i] % 64),
               std::memory_order_release);
  }
}

void FlashTree::collect_entries(Node& node, std::vector<Entry>& entries) const {
  entries.clear();
  const OwnerSet* const set = node.set();
  if (set != nullptr) count_holders(set->count.load(std::memory_order_relaxed));
  const bool dying = any_dead();
  if (set == nullptr) {
    const Mask mask = node.first_mask.load(std::memory_order_relaxed);
    if (mask != 0 && !(dying && slots_.dead(node.first_slot))) entries.push_back({node.first_slot, {mask}});
    return;
  }
  const std::uint32_t count = set->count.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    Entry entry{set->slots()[i], {}};
    Mask any = 0;
    for (std::size_t tier = 0; tier < set->tiers(); ++tier)
      any |= entry.masks[tier] = set->masks(tier)[i].load(std::memory_order_relaxed);
    if (any != 0 && !(dying && slots_.dead(entry.slot))) entries.push_back(entry);
  }
}

OwnerSet* FlashTree::new_set(std::span<const Entry> entries, std::uint32_t room, bool lower) {
  const auto wanted = static_cast<std::uint32_t>(entries.size()) + room;
  const std::uint32_t capacity = std::max(2u, std::bit_ceil(wanted));
  const std::uint32_t words = capacity >= kFullFrom ? (slots_.size() + 63) / 64 : 0;
  const std::size_t bytes = OwnerSet::bytes_for(capacity, words, lower);
  auto* const set = new (::operator new(bytes, std::align_val_t{OwnerSet::kAlignment})) OwnerSet;
  set->capacity = capacity;
  set->words = words;
  set->lower = lower;
  set->bytes = static_cast<std::uint32_t>(bytes);
  set->birth = domain_.birth(bytes);
  set_bytes_ += bytes;
  for (std::uint32_t w = 0; w < 2 * words; ++w) new (&set->full()[w]) std::atomic<std::uint64_t>(0);
  for (std::size_t tier = 0; tier < set->arrays(); ++tier)
    for (std::uint32_t i = 0; i < capacity; ++i) {
      Mask mask = 0;
      if (i < entries.size() && tier < kStorageTiers) mask = entries[i].masks[tier];
      if (i < entries.size() && tier == OwnerSet::kAnyTier)
        for (const Mask held : entries[i].masks) mask |= held;
      new (&set->masks(tier)[i]) std::atomic<Mask>(mask);
    }
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    set->slots()[i] = entries[i].slot;
    list(*set, entries[i].slot, true);
  }
  set->count.store(static_cast<std::uint32_t>(entries.size()), std::memory_order_relaxed);
  return set;
}

void FlashTree::set_owners(Node& node, std::span<const Entry> entries) {
  bool lower = false;
  for (const Entry& entry : entries)
    lower |= std::any_of(entry.masks.begin() + 1, entry.masks.end(), [](Mask mask) { return mask != 0; });
  if (entries.empty()) return;
  if (entries.size() == 1 && !lower) {
    node.first_slot = static_cast<std::uint16_t>(entries[0].slot);
    node.first_mask.store(entries[0].masks[0], std::memory_order_relaxed);
    return;
  }
  OwnerSet* const set = new_set(entries, 0, lower);
  if (node.closed() && set->words != 0) set_full_bits(node, *set);
  // relaxed: the node is published with a release after this.
  node.owners.store(set, std::memory_order_relaxed);
}

// The same owners with room for one more.
void FlashTree::replace_set(Node& node, bool lower) {
  domain_.reserve(1);
  leave_out_dead(node);
  collect_entries(node, entries_);
  OwnerSet* const old = node.set();
  OwnerSet* const fresh = new_set(entries_, 1, lower);
  if (node.closed() && fresh->words != 0) set_full_bits(node, *fresh);
  // release: pairs with the acquire of readers.
  node.owners.store(fresh, std::memory_order_release);
  if (old != nullptr) retire_set(old);
}

void FlashTree::free_set(OwnerSet* set) noexcept {
  set->~OwnerSet();
  ::operator delete(set, std::align_val_t{OwnerSet::kAlignment});
}

void FlashTree::retire_set(OwnerSet* set) {
  domain_.retire(
      set, set->bytes, set->birth,
      [](void* object, void* self) {
        static_cast<FlashTree*>(self)->set_bytes_ -= static_cast<OwnerSet*>(object)->bytes;
        free_set(static_cast<OwnerSet*>(object));
      },
      this);
}

}  // namespace ashlar::index::detail
