#include "index/radix/radix_dump.h"

#include <algorithm>
#include <tuple>

namespace ashlar::index {

// If a node has a part, every node above it has one.
RadixDump::Part& RadixDump::part_of(const RadixNode& node, std::uint32_t length) {
  const auto [at, is_new] = parts_.try_emplace(&node);
  Part& part = at->second;
  part.node = &node;
  part.length = std::max(part.length, length);
  const RadixNode* below = &node;
  for (bool go_on = is_new; go_on && below->parent()->parent() != nullptr; below = below->parent()) {
    const auto [above, above_is_new] = parts_.try_emplace(below->parent());
    above->second.node = below->parent();
    above->second.length = std::max(above->second.length, below->attached());
    go_on = above_is_new;
  }
  return part;
}

void RadixDump::add(const RadixNames& names, ReadEdge read) {
  names.map().for_each([&](const RadixNames::Entry& entry) {
    const std::uint32_t offset = entry.place.offset();
    Part& part = part_of(*entry.place.node(), offset + 1);
    if (part.names.size() <= offset) part.names.resize(offset + 1);
    bool first = !part.names[offset].has_value();
    if (first) part.names[offset] = entry.name;
    for (const StorageTier tier : kAllStorageTiers) {
      if (!entry.place.in_tier(tier)) continue;
      (first ? part.first : part.further).push_back({tier, offset, entry.name});
      first = false;
    }
  });

  std::vector<Part*> order;
  order.reserve(parts_.size());
  for (auto& [node, part] : parts_) order.push_back(&part);
  std::ranges::sort(order, {}, [](const Part* part) { return part->node->start(); });
  std::uint64_t unused = 0;
  for (Part* part : order) {
    part->locals.resize(part->length);
    read(*part->node, part->locals);
    part->names.resize(part->length);
    for (std::uint32_t offset = 0; offset < part->length; ++offset) {
      if (part->names[offset]) continue;
      while (names.map().find(BlockName(unused)) != nullptr) ++unused;
      part->names[offset] = placeholders_.emplace_back(unused++);
      part->first.push_back({StorageTier::kDevice, offset, *part->names[offset]});
    }
    std::ranges::sort(part->first, {}, &Named::offset);
    std::ranges::sort(part->further, {},
                      [](const Named& named) { return std::tuple(named.tier, named.offset, named.name); });
    add_calls(*part, part->first);
    add_calls(*part, part->further);
  }
  parts_.clear();
}

// Adjacent blocks in one tier go into one call.
void RadixDump::add_calls(const Part& part, std::span<const Named> named) {
  for (std::size_t from = 0, to = 0; from < named.size(); from = to) {
    const std::uint32_t offset = named[from].offset;
    Call call{named[from].tier, std::nullopt, part.node->start() + offset, {}};
    if (offset > 0)
      call.parent = part.names[offset - 1];
    else if (part.node->parent()->parent() != nullptr)
      call.parent = parts_.at(part.node->parent()).names[part.node->attached() - 1];
    for (; to < named.size() && named[to].tier == call.tier && named[to].offset == offset + (to - from); ++to)
      call.blocks.push_back({part.locals[named[to].offset], named[to].name});
    calls_.push_back(std::move(call));
  }
}

void RadixDump::send(IndexSink& sink) const {
  for (const Call& call : calls_)
    sink.store({worker_, call.tier, call.parent, call.start_position, call.blocks});
  if (!placeholders_.empty()) sink.remove(worker_, StorageTier::kDevice, placeholders_);
}

}  // namespace ashlar::index
