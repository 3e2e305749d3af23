// remove(), the orphan policy, and names.
#include <algorithm>
#include <bit>
#include <new>

#include "ashlar/base/check.h"
#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

// --- Names. ---

std::uint32_t FlashTree::find_name(std::uint64_t name) const {
  return names_.find(names_.tag_of(name), [&](std::uint32_t value) { return is_named(value, name); });
}

void FlashTree::erase_name(Node& node, std::uint32_t offset) {
  if ((node.named >> offset & 1) == 0) return;
  names_.erase(names_.tag_of(node.names()[offset]), BlockRef(node.id, offset).word());
  node.named &= ~bit_at(offset);
}

TierBits FlashTree::canonical_tiers(Node& node, std::uint32_t slot, std::uint32_t offset) const {
  if (node.aliased())
    if (const std::uint32_t place = aliases_.find_place(slot, BlockRef(node.id, offset)); place != 0)
      return aliases_.place(place).canonical;
  return tiers_at(node, slot, offset);
}

std::optional<BlockRef> FlashTree::resolve(std::uint32_t slot, std::uint64_t name) const {
  if (aliases_.any(slot))
    if (const std::uint32_t alias = aliases_.find(slot, name); alias != 0) return aliases_.block_of(alias);
  const std::uint32_t found = find_name(name);
  if (found == TagTable::kNone) return std::nullopt;
  const BlockRef block(found);
  if (canonical_tiers(*const_cast<FlashTree*>(this)->nodes_[block.node()], slot, block.offset()) == 0)
    return std::nullopt;
  return block;
}

// --- remove. ---

std::size_t FlashTree::remove(const Worker& worker, StorageTier tier,
                              std::span<const BlockName> names) noexcept {
  begin_call();
  tidy();
  steps_ += names.size();
  const std::optional<std::uint32_t> slot = slots_.find(worker);
  if (!slot || !is_known(tier)) {
    counters_.unknown_removals += names.size();
    return 0;
  }
  Removal removal;
  removal.slot = *slot;
  removal.tier = static_cast<std::size_t>(tier);
  removal.plain = !aliases_.any(*slot) && options_.mid_chain == MidChainRemoval::kRetain;
  std::size_t removed = 0;
  const auto probe_from = [&](std::size_t first) {
    names_.probe_records_first(probes_, first, std::min(names.size(), first + kAhead),
                               [&](std::size_t i) { return names[i].value(); });
  };
  FlashSlots::Trail& trail = slots_.trail(*slot);
  prefetch_names(trail);
  probe_from(0);
  removal.step = trail.step;
  if (!names.empty()) expect(removal, trail.removed_next, names[0].value());
  for (std::size_t start = 0; start < names.size(); start += kAhead) {
    probe_from(start + kAhead);
    const std::size_t end = std::min(names.size(), start + kAhead);
    for (std::size_t i = start; i < end;) {
      std::size_t run = remove_run(removal, names.subspan(i, end - i), i);
      if (run == 0 && expect(removal, next_of(removal), names[i].value()))
        run = remove_run(removal, names.subspan(i, end - i), i);
      if (run == 0 && remove_name(removal, names[i].value(), probes_[i % probes_.size()])) ++removed;
      removed += run;
      i += std::max<std::size_t>(run, 1);
    }
  }
  ASHLAR_DCHECK(removed <= names.size(), "%zu of %zu names are removed", removed, names.size());
  trail.removed_next = next_of(removal);
  trail.step = removal.step;
  finish(removal);
  if (is_empty()) forget_all();
  counters_.removed += removed;
  counters_.unknown_removals += names.size() - removed;
  return removed;
}

// Prefetches the names that the removal is expected to begin with.
void FlashTree::prefetch_names(const FlashSlots::Trail& trail) noexcept {
  const BlockRef next = trail.removed_next;
  if (next.node() == kNoNode || next.node() >= nodes_.end()) return;
  Node* const node = nodes_[next.node()];
  if (node == nullptr) return;
  __builtin_prefetch(node->names() + next.offset());
  const std::uint32_t further = next.offset() + trail.step * kBlocksPerLine;
  if (further < kNodeBlocks) __builtin_prefetch(node->names() + further);
}

// Names mostly come in block order, forward or backward: expected ones need no lookup. Returns how many were
// expected and removed; their probes start at `probe`.
std::size_t FlashTree::remove_run(Removal& removal, std::span<const BlockName> names, std::size_t probe) {
  if (!removal.plain || removal.node == nullptr) return 0;
  const std::uint32_t first = removal.last + removal.step;
  if (first >= kNodeBlocks) return 0;
  // All blocks of such a worker are named.
  const bool up = removal.step == 1;
  const auto here = static_cast<std::size_t>(up ? std::countr_one(removal.mine >> first)
                                                : std::countl_one(removal.mine << (kNodeBlocks - 1 - first)));
  const std::size_t most = std::min(names.size(), here);
  std::uint32_t run = 0;
  while (run < most && removal.names[first + run * removal.step] == names[run].value()) ++run;
  if (run == 0) return 0;
  const std::uint32_t last = first + (run - 1) * removal.step;
  ASHLAR_DCHECK(last < kNodeBlocks, "a run of %u from block %u on leaves its node", run, first);
  const Mask blocks = low_bits(run) << std::min(first, last);
  const Mask unheld = blocks & ~(removal.others | removal.elsewhere);
  const std::uint32_t id_part = BlockRef(removal.node->id, 0).word();
  for (std::uint32_t i = 0; unheld != 0 && i < run;) {
    const std::size_t at = (probe + i) % probes_.size();
    std::uint32_t block = first + i * removal.step;
    if (unheld == blocks) {
      const std::size_t some = std::min<std::size_t>(run - i, probes_.size() - at);
      i += names_.erase_known(std::span(probes_).subspan(at, some), id_part | block, removal.step);
      if (i == run) break;
      block = first + i * removal.step;
    }
    if ((unheld >> block & 1) != 0) names_.erase(probes_[(probe + i) % probes_.size()], id_part | block);
    ++i;
  }
  removal.node->named &= ~unheld;
  removal.mine &= ~blocks;
  removal.last = last;
  return run;
}

// The block after the last one, in the direction of the removal.
BlockRef FlashTree::next_of(const Removal& removal) const noexcept {
  const Node* const node = removal.node;
  if (node == nullptr) return {};
  const std::uint32_t offset = removal.last + removal.step;
  if (offset < node->size()) return {node->id, offset};
  if (removal.step != 1 && removal.last == 0 && node->parent != kRootId)
    return {node->parent, node_at(node->parent).size() - 1};
  if (removal.step == 1 && node->first_child != kNoNode) return {node->first_child, 0};
  return {};
}

// Moves to the block if it still has this name.
bool FlashTree::expect(Removal& removal, BlockRef block, std::uint64_t name) {
  if (!removal.plain || block.node() == kNoNode || block.node() >= nodes_.end()) return false;
  Node* const node = nodes_[block.node()];
  if (node == nullptr || (node->named >> block.offset() & 1) == 0 || node->names()[block.offset()] != name)
    return false;
  if (!turn_to(removal, *node)) return false;
  removal.last = block.offset() - removal.step;
  return true;
}

bool FlashTree::remove_name(Removal& removal, std::uint64_t name, const TagTable::Probe& probe) {
  if (aliases_.any(removal.slot))
    if (const std::uint32_t alias = aliases_.find(removal.slot, name); alias != 0)
      return remove_alias(removal, alias);

  const std::uint32_t found = names_.find(probe, [&](std::uint32_t value) { return is_named(value, name); });
  if (found == TagTable::kNone) return false;
  const BlockRef block(found);
  Node& node = node_at(block.node());
  const Mask bit = bit_at(block.offset());
  if (!turn_to(removal, node) || (removal.mine & bit) == 0) return false;
  if (block.offset() == removal.last + 1) removal.step = 1;
  if (block.offset() + 1 == removal.last) removal.step = ~0u;
  removal.last = block.offset();
  if (node.aliased())
    if (const std::uint32_t place = aliases_.find_place(removal.slot, block); place != 0) {
      const auto tier_bit = static_cast<TierBits>(1u << removal.tier);
      AliasNames::Place& held = aliases_.place(place);
      if ((held.canonical & tier_bit) == 0) return false;
      held.canonical &= static_cast<TierBits>(~tier_bit);
      if ((AliasNames::tiers_of(held) & tier_bit) != 0) return true;  // held by another name
    }
  removal.mine &= ~bit;
  if (((removal.others | removal.elsewhere) & bit) == 0) {
    names_.erase(probe, block.word());
    node.named &= ~bit;
  }
  if (options_.mid_chain == MidChainRemoval::kOrphan) forget_below(removal, block.offset());
  return true;
}

bool FlashTree::remove_alias(Removal& removal, std::uint32_t number) {
  const auto tier_bit = static_cast<TierBits>(1u << removal.tier);
  if (!aliases_.remove_tier(number, removal.tier)) return false;
  const BlockRef block = aliases_.block_of(number);
  Node& node = node_at(block.node());
  const bool stays = turn_to(removal, node);
  ASHLAR_DCHECK(stays, "a node whose block has a name of a live worker was freed");
  const AliasNames::Place& place = aliases_.place(aliases_.alias(number).place);
  const bool still_held = ((place.canonical | AliasNames::tiers_of(place)) & tier_bit) != 0;
  if (aliases_.alias(number).tiers == 0) aliases_.remove(number);
  if (still_held) return true;
  removal.mine &= ~bit_at(block.offset());
  if (((removal.others | removal.elsewhere) >> block.offset() & 1) == 0) erase_name(node, block.offset());
  if (options_.mid_chain == MidChainRemoval::kOrphan) forget_below(removal, block.offset());
  return true;
}

// False: the node is gone. It was an ancestor of the last one, and a worker that was cleared had its blocks:
// their names may have been known yet.
bool FlashTree::turn_to(Removal& removal, Node& node) {
  if (removal.node == &node) return true;
  const std::uint32_t id = node.id;
  finish(removal);
  if (nodes_[id] == nullptr) return false;
  removal.node = &node;
  removal.last = kNodeBlocks + 1;
  removal.names = node.names();
  // Where a removal from the end of a sequence goes on.
  if (node.parent != kRootId && node.parent != kNoNode) {
    const Node* const before = nodes_[node.parent];
    __builtin_prefetch(before);
    for (std::uint32_t at = 0; at < node.size(); at += kBlocksPerLine) __builtin_prefetch(removal.names + at);
  }
  removal.owner = owner(node, removal.slot);
  removal.mine = removal.before = removal.owner ? removal.owner.mask(removal.tier) : 0;
  removal.elsewhere = 0;
  for (std::size_t tier = 0; tier < kStorageTiers; ++tier)
    if (tier != removal.tier && removal.owner) removal.elsewhere |= removal.owner.mask(tier);
  removal.others = held(node, removal.slot);
  return true;
}

// Writes the masks of the current node, and frees or shrinks it if due.
void FlashTree::finish(Removal& removal) {
  Node* const node = removal.node;
  removal.node = nullptr;
  if (node == nullptr || removal.mine == removal.before) return;
  slots_.take_blocks(removal.slot, static_cast<std::size_t>(std::popcount(removal.before & ~removal.mine)));
  write_mask(*node, removal.owner, removal.slot, removal.tier, removal.mine);
  const Mask left = removal.mine | removal.elsewhere | removal.others;
  if (node->first_child != kNoNode) return;
  if (left == 0) return prune(node);
  const auto blocks = static_cast<std::uint32_t>(std::bit_width(left));
  if (blocks * 4 > node->capacity() || node->capacity() <= 8) return;
  drop_dead_names(*node);
  shrink(node, blocks);
}

// Without memory the node keeps its size.
void FlashTree::shrink(Node* node, std::uint32_t blocks) noexcept {
  try {
    rebuild(node, blocks, blocks);
  } catch (const std::bad_alloc&) {
    return;
  }
}

// kOrphan: a block that the slot no longer holds in any tier takes its descendants with it.
void FlashTree::forget_below(Removal& removal, std::uint32_t offset) {
  if (((removal.mine | removal.elsewhere) >> offset & 1) != 0) return;
  Node* const node = removal.node;
  const Mask below = (removal.mine | removal.elsewhere) & ~low_bits(offset + 1);
  // The last block, if removed before, took the children along.
  const bool had_last = ((removal.mine | removal.elsewhere | bit_at(offset)) >> (node->size() - 1) & 1) != 0;
  const bool into_children = had_last && node->first_child != kNoNode;
  if (below == 0 && !into_children) return;

  // Writes the removals so far, then removes the rest, children first. The tree itself holds the way back: no
  // list is needed.
  if (removal.mine != removal.before) {
    slots_.take_blocks(removal.slot, static_cast<std::size_t>(std::popcount(removal.before & ~removal.mine)));
    write_mask(*node, removal.owner, removal.slot, removal.tier, removal.mine);
  }
  removal.node = nullptr;
  const auto holds = [&](std::uint32_t id) {
    const Owner held = owner(node_at(id), removal.slot);
    return held && held.any() != 0;
  };
  Node* at = node;
  std::uint32_t next = into_children ? node->first_child : kNoNode;
  for (;;) {
    while (next != kNoNode && !holds(next)) next = node_at(next).next;
    if (next != kNoNode) {
      at = &node_at(next);
      next = at->first_child;
      continue;
    }
    if (at == node) break;
    // Nothing is left below: continue with the siblings.
    Node* const done = at;
    next = done->next;
    at = &node_at(done->parent);
    drop(*done, removal.slot, ~Mask{0});
    if (is_barren(*done)) prune_one(done);
  }
  if (below != 0) drop(*node, removal.slot, below);
  prune(node);
}

void FlashTree::drop(Node& node, std::uint32_t slot, Mask blocks) {
  const Owner found = owner(node, slot);
  if (!found) return;
  const Mask mine = found.any() & blocks;
  if (mine == 0) return;
  for (std::size_t tier = 0; tier < kStorageTiers; ++tier) {
    const Mask mask = found.mask(tier);
    if ((mask & mine) == 0) continue;
    slots_.take_blocks(slot, static_cast<std::size_t>(std::popcount(mask & mine)));
    write_mask(node, found, slot, tier, mask & ~mine);
  }
  if (node.aliased())
    for (Mask left = mine; left != 0; left &= left - 1)
      aliases_.drop(slot, BlockRef(node.id, static_cast<std::uint32_t>(std::countr_zero(left))));
  for (Mask left = mine & ~held(node, slot); left != 0; left &= left - 1)
    erase_name(node, static_cast<std::uint32_t>(std::countr_zero(left)));
}

}  // namespace ashlar::index::detail
