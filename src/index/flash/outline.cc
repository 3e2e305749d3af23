// outline(): the runs of the tree and who holds how much of each, without hashes and names.
//
// The walk goes a part at a time, and writers run in between. What waits to be visited is remembered as a
// node and its parent, by their ids. A node that was replaced keeps its id; one that was cut in two has a new
// node between itself and its parent, which is visited in its place; one that is gone is left out. So is what
// comes below a node after its visit.
#include <bit>
#include <utility>
#include <vector>

#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

Node* FlashTree::find_below(std::uint32_t id, std::uint32_t parent) noexcept {
  // As often as it was cut meanwhile.
  while (id != kNoNode && id < nodes_.end() && nodes_[id] != nullptr && &node_at(id) != root_) {
    if (node_at(id).parent == parent) return &node_at(id);
    id = node_at(id).parent;
  }
  return nullptr;
}

void FlashTree::outline_node(Node& node, std::uint32_t parent_run, OutlineWalk& walk, IndexOutline& out) {
  collect_entries(node, walk.entries);
  const auto run = static_cast<std::uint32_t>(out.runs.size());
  Mask all = 0;
  for (const Entry& entry : walk.entries) {
    if (entry.slot >= walk.numbers.size()) walk.numbers.resize(entry.slot + 1, IndexOutline::kNoRun);
    std::uint32_t& number = walk.numbers[entry.slot];
    // Another worker may have got the slot meanwhile.
    if (number == IndexOutline::kNoRun || out.workers[number] != slots_.worker(entry.slot)) {
      number = static_cast<std::uint32_t>(out.workers.size());
      out.workers.push_back(slots_.worker(entry.slot));
    }
    Mask any = 0;
    for (const Mask mask : entry.masks) any |= mask;
    out.holders.push_back({.worker = number, .blocks = static_cast<std::uint32_t>(std::popcount(any))});
    all |= any;
  }
  out.runs.push_back({.parent = parent_run,
                      .position = node.position,
                      .blocks = static_cast<std::uint32_t>(std::popcount(all)),
                      .first = LocalHash(node.hashes()[0]),
                      .holders = static_cast<std::uint32_t>(walk.entries.size())});
  for (std::uint32_t child = node.first_child; child != kNoNode; child = node_at(child).next)
    walk.todo.push_back({.node = child, .parent = node.id, .parent_run = run});
}

bool FlashTree::outline_some(OutlineWalk& walk, IndexOutline& out) {
  if (!std::exchange(walk.has_begun, true))
    for (std::uint32_t id = root_->first_child; id != kNoNode; id = node_at(id).next)
      walk.todo.push_back({.node = id, .parent = root_->id, .parent_run = IndexOutline::kNoRun});
  std::uint32_t left = kOutlineNodes;
  while (!walk.todo.empty() && left > 0) {
    const OutlineWalk::Open open = walk.todo.back();
    walk.todo.pop_back();
    --left;
    if (Node* const node = find_below(open.node, open.parent))
      outline_node(*node, open.parent_run, walk, out);
  }
  call_began_ = steps();
  return !walk.todo.empty();
}

}  // namespace ashlar::index::detail
