// dump() and sizes().
//
// Nodes come parents first. Within a node, a slot's blocks come in runs that lie in the same tiers, each run
// once per tier, so the block before a run is known when the run names it as parent. Where the slot does not
// hold that block (it was removed and its descendants retained), the missing blocks up to the next held one
// are stored under names that the worker does not use, and removed at the end.
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

class FlashDump {
 public:
  FlashDump(FlashTree& tree, CallBatch& calls) : tree_(tree), calls_(calls) {}

  void run() {
    std::vector<std::uint32_t> todo;
    for (std::uint32_t id = tree_.root_->first_child; id != kNoNode; id = tree_.node_at(id).next)
      todo.push_back(id);
    std::vector<FlashTree::Entry> entries;
    while (!todo.empty()) {
      Node& node = tree_.node_at(todo.back());
      todo.pop_back();
      tree_.collect_entries(node, entries);
      for (const FlashTree::Entry& entry : entries) dump_entry(node, entry);
      for (std::uint32_t id = node.first_child; id != kNoNode; id = tree_.node_at(id).next)
        todo.push_back(id);
    }
    for (const auto& [where, name] : placeholders_) {
      const BlockName names[] = {BlockName(name)};
      CallHead head;
      head.kind = CallHead::Kind::kRemove;
      head.worker = tree_.slots_.worker(where.first);
      head.count = 1;
      calls_.append(head, {}, names);
    }
  }

 private:
  static TierBits tiers_of(const FlashTree::Entry& entry, std::uint32_t offset) noexcept {
    TierBits tiers = 0;
    for (std::size_t tier = 0; tier < kStorageTiers; ++tier)
      tiers |= static_cast<TierBits>((entry.masks[tier] >> offset & 1) << tier);
    return tiers;
  }

  void dump_entry(Node& node, const FlashTree::Entry& entry) {
    const std::uint32_t size = node.size();
    for (std::uint32_t first = 0; first < size;) {
      const TierBits tiers = tiers_of(entry, first);
      std::uint32_t end = first + 1;
      while (end < size && tiers_of(entry, end) == tiers) ++end;
      if (tiers != 0) dump_run(node, entry.slot, first, end, tiers);
      first = end;
    }
  }

  void dump_run(Node& node, std::uint32_t slot, std::uint32_t first, std::uint32_t end, TierBits tiers) {
    const std::optional<BlockName> parent = name_before(node, slot, first);
    for (std::size_t tier = 0; tier < kStorageTiers; ++tier) {
      if ((tiers >> tier & 1) == 0) continue;
      blocks_.clear();
      for (std::uint32_t i = first; i < end; ++i)
        blocks_.push_back({LocalHash(node.hashes()[i]), BlockName(name_in(node, slot, i, tier))});
      send(slot, tier, parent, node.position + first);
    }
    if (!node.aliased()) return;
    // Names other than those just used.
    for (std::uint32_t i = first; i < end; ++i) {
      const std::uint32_t place = tree_.aliases_.find_place(slot, BlockRef(node.id, i));
      if (place == 0) continue;
      const std::optional<BlockName> before = name_before(node, slot, i);
      for (std::uint32_t a = tree_.aliases_.place(place).first; a != 0; a = tree_.aliases_.alias(a).next)
        for (std::size_t tier = 0; tier < kStorageTiers; ++tier) {
          const AliasNames::Alias& alias = tree_.aliases_.alias(a);
          if ((alias.tiers >> tier & 1) == 0 || alias.name == name_in(node, slot, i, tier)) continue;
          blocks_ = {{LocalHash(node.hashes()[i]), BlockName(alias.name)}};
          send(slot, tier, before, node.position + i);
        }
    }
  }

  // A name by which the slot holds the block in the tier. Requires: it does.
  std::uint64_t name_in(Node& node, std::uint32_t slot, std::uint32_t offset, std::size_t tier) {
    if (node.aliased())
      if (const std::uint32_t place = tree_.aliases_.find_place(slot, BlockRef(node.id, offset)); place != 0)
        if ((tree_.aliases_.place(place).canonical >> tier & 1) == 0)
          for (std::uint32_t a = tree_.aliases_.place(place).first; a != 0; a = tree_.aliases_.alias(a).next)
            if ((tree_.aliases_.alias(a).tiers >> tier & 1) != 0) return tree_.aliases_.alias(a).name;
    return node.names()[offset];
  }

  // The name of the block before `offset`; empty at the start of a sequence.
  std::optional<BlockName> name_before(Node& node, std::uint32_t slot, std::uint32_t offset) {
    Node* at = &node;
    if (offset == 0) {
      at = &tree_.node_at(node.parent);
      if (at == tree_.root_) return std::nullopt;
      offset = at->size();
    }
    return name_of(*at, slot, offset - 1);
  }

  BlockName name_of(Node& node, std::uint32_t slot, std::uint32_t offset) {
    if (const TierBits tiers = tree_.tiers_at(node, slot, offset); tiers != 0)
      return BlockName(name_in(node, slot, offset, static_cast<std::size_t>(std::countr_zero(tiers))));
    // Missing: from here up to the first block that is held or already has a placeholder.
    std::vector<std::pair<Node*, std::uint32_t>> missing;
    std::optional<BlockName> parent;
    Node* at = &node;
    for (;;) {
      if (const auto known = placeholders_.find({slot, BlockRef(at->id, offset).word()});
          known != placeholders_.end()) {
        parent = BlockName(known->second);
        break;
      }
      if (tree_.tiers_at(*at, slot, offset) != 0) {
        parent = name_of(*at, slot, offset);
        break;
      }
      missing.emplace_back(at, offset);
      if (offset > 0) {
        --offset;
        continue;
      }
      at = &tree_.node_at(at->parent);
      if (at == tree_.root_) break;
      offset = at->size() - 1;
    }
    if (missing.empty()) return *parent;
    blocks_.clear();
    const std::uint32_t position = missing.back().first->position + missing.back().second;
    for (std::size_t i = missing.size(); i-- > 0;) {
      const auto [where, block] = missing[i];
      const std::uint64_t name = unused_name(slot);
      placeholders_.emplace(std::pair(slot, BlockRef(where->id, block).word()), name);
      blocks_.push_back({LocalHash(where->hashes()[block]), BlockName(name)});
    }
    const BlockName last = blocks_.back().name;
    send(slot, 0, parent, position);
    return last;
  }

  std::uint64_t unused_name(std::uint32_t slot) {
    for (;;) {
      next_name_ = next_name_ * 6364136223846793005u + 1442695040888963407u;
      if (!tree_.resolve(slot, next_name_)) return next_name_;
    }
  }

  void send(std::uint32_t slot, std::size_t tier, const std::optional<BlockName>& parent,
            std::uint32_t position) {
    CallHead head;
    head.kind = CallHead::Kind::kStore;
    head.worker = tree_.slots_.worker(slot);
    head.tier = static_cast<StorageTier>(tier);
    head.has_parent = parent.has_value();
    head.parent = parent.value_or(BlockName());
    head.has_position = true;
    head.start_position = position;
    head.count = blocks_.size();
    calls_.append(head, blocks_, {});
  }

  FlashTree& tree_;
  CallBatch& calls_;
  std::vector<StoredBlock> blocks_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> placeholders_;  // (slot, block) -> name
  std::uint64_t next_name_ = 0x5EEDF0A57B10C4E5u;
};

void FlashTree::dump(CallBatch& calls) {
  settle();
  FlashDump(*this, calls).run();
  call_began_ = steps();
}

IndexSizes FlashTree::sizes() {
  settle();
  IndexSizes sizes;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_.live(slot)) continue;
    ++sizes.workers;
    sizes.blocks += slots_.blocks(slot);
  }
  for (std::uint32_t id = kRootId + 1; id < nodes_.end(); ++id)
    if (const Node* const node = nodes_[id])
      sizes.contents += static_cast<std::size_t>(std::popcount(held(*node, kNoSlot)));
  sizes.nodes = live_nodes_ - 1;
  sizes.waiting_bytes = domain_.waiting_bytes();
  sizes.bytes = slabs_.bytes() + nodes_.bytes() + edges_.bytes() + names_.bytes() + aliases_.bytes() +
                slots_.bytes() + set_bytes_ + domain_.heap_bytes();
  call_began_ = steps();
  return sizes;
}

}  // namespace ashlar::index::detail
