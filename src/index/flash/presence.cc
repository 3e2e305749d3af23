// presence() and list(): what a worker holds by name. places(): who holds the blocks of a sequence.
#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

void FlashTree::presence(const Worker& worker, std::span<const BlockName> names,
                         std::span<BlockPresence> out) noexcept {
  begin_call();
  steps_ += names.size();
  const std::optional<std::uint32_t> slot = slots_.find(worker);
  for (std::size_t i = 0; i < names.size(); ++i) out[i] = {.name = names[i]};
  if (!slot) return;
  const auto answer = [&](std::size_t i, BlockRef block, TierBits tiers) {
    Node& node = node_at(block.node());
    out[i].tiers = tiers;
    if (tiers == 0) return;
    out[i].local = LocalHash(node.hashes()[block.offset()]);
    out[i].position = node.position + block.offset();
  };
  const auto probe_from = [&](std::size_t first) {
    if (first < names.size())
      names_.probe(probes_, first, std::min(names.size(), first + kAhead),
                   [&](std::size_t i) { return names[i].value(); });
  };
  probe_from(0);
  for (std::size_t start = 0; start < names.size(); start += kAhead) {
    probe_from(start + kAhead);
    for (std::size_t i = start; i < std::min(names.size(), start + kAhead); ++i) {
      const std::uint64_t name = names[i].value();
      if (aliases_.any(*slot))
        if (const std::uint32_t alias = aliases_.find(*slot, name); alias != 0) {
          answer(i, aliases_.block_of(alias), aliases_.alias(alias).tiers);
          continue;
        }
      const std::uint32_t found = names_.find(probes_[i % probes_.size()],
                                              [&](std::uint32_t value) { return is_named(value, name); });
      if (found == TagTable::kNone) continue;
      const BlockRef block(found);
      answer(i, block, canonical_tiers(node_at(block.node()), *slot, block.offset()));
    }
  }
}

void FlashTree::places(std::span<const LocalHash> locals, std::size_t first, const Worker& worker,
                       std::span<BlockPlace> out) noexcept {
  begin_call();
  std::ranges::fill(out, BlockPlace::kNowhere);
  const std::uint32_t slot = slots_.find(worker).value_or(kNoSlot);
  Node* node = root_;
  for (std::size_t at = 0; at < locals.size();) {
    node = find_child(*node, locals[at].value());
    if (node == nullptr) return;
    const std::size_t most = std::min<std::size_t>(node->size(), locals.size() - at);
    std::size_t same = 1;
    while (same < most && node->hashes()[same] == locals[at + same].value()) ++same;
    ++steps_;
    if (at + same > first) {
      const Mask here = slot == kNoSlot ? 0 : owner(*node, slot).any();
      const Mask elsewhere = held(*node, slot);
      for (std::size_t i = first > at ? first - at : 0; i < same; ++i)
        out[at + i - first] = (here >> i & 1) != 0        ? BlockPlace::kHere
                              : (elsewhere >> i & 1) != 0 ? BlockPlace::kElsewhere
                                                          : BlockPlace::kNowhere;
    }
    at += same;
    if (same < node->size()) return;
  }
}

void FlashTree::list(const Worker& worker, std::vector<BlockPresence>& out) {
  const std::optional<std::uint32_t> slot = slots_.find(worker);
  if (!slot) return;
  std::vector<std::uint32_t> todo;
  const auto push_children = [&](const Node& node) {
    for (std::uint32_t id = node.first_child; id != kNoNode; id = node_at(id).next) todo.push_back(id);
  };
  push_children(*root_);
  while (!todo.empty()) {
    Node& node = node_at(todo.back());
    todo.pop_back();
    push_children(node);
    const Owner owned = owner(node, *slot);
    if (!owned) continue;
    for (Mask left = owned.any(); left != 0; left &= left - 1) {
      const auto offset = static_cast<std::uint32_t>(std::countr_zero(left));
      BlockPresence held{.local = LocalHash(node.hashes()[offset]), .position = node.position + offset};
      if ((node.named >> offset & 1) != 0) {
        held.name = BlockName(node.names()[offset]);
        held.tiers = canonical_tiers(node, *slot, offset);
        if (held.is_held()) out.push_back(held);
      }
      if (!node.aliased()) continue;
      const std::uint32_t place = aliases_.find_place(*slot, BlockRef(node.id, offset));
      if (place == 0) continue;
      for (std::uint32_t a = aliases_.place(place).first; a != 0; a = aliases_.alias(a).next) {
        held.name = BlockName(aliases_.alias(a).name);
        held.tiers = aliases_.alias(a).tiers;
        out.push_back(held);
      }
    }
  }
}

}  // namespace ashlar::index::detail
