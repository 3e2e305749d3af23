// Building, replacing, splitting and freeing nodes; children.
#include <algorithm>
#include <bit>
#include <new>
#include <vector>

#include "ashlar/base/check.h"
#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

FlashTree::FlashTree(const FlashOptions& options)
    : options_(options),
      edges_(domain_, TableSeed::of(options.seed)),
      names_(slabs_, TableSeed::of(options.seed)),
      aliases_(slabs_, TableSeed::of(options.seed)),
      slots_(domain_, std::min(options.max_workers, kMaxSlots)) {
  // Nodes of 64 blocks fill slabs; what splits and short sequences need besides comes as ever.
  const std::size_t expected = std::min(options.expected_blocks, std::size_t{kMaxNodes} * kNodeBlocks);
  const std::size_t nodes = (expected + kNodeBlocks - 1) / kNodeBlocks;
  const std::uint32_t per_slab = kSlabShapes[6].nodes;
  slabs_.keep((nodes + per_slab - 1) / per_slab * kSlabBytes);
  nodes_.keep(nodes);
  names_.keep_room(expected);
  root_ = new_node(1);
  ASHLAR_CHECK(root_->id == kRootId, "the root has id %u", root_->id);
  root_->shape |= Node::kClosed;
  root_->child.store(Node::kManyChildren, std::memory_order_relaxed);
}

FlashTree::~FlashTree() {
  while (domain_.waiting_count() != 0) domain_.flush();
  for (std::uint32_t id = 1; id < nodes_.end(); ++id) {
    Node* const node = nodes_[id];
    if (node == nullptr) continue;
    if (OwnerSet* const set = node->set()) free_set(set);
    arena_.free(node);
  }
}

Node* FlashTree::new_node(std::uint32_t blocks, std::uint32_t id) {
  Node* const node = arena_.allocate(blocks);
  if (id == kNoNode) {
    try {
      id = nodes_.allocate();
    } catch (const std::bad_alloc&) {
      arena_.free(node);
      throw;
    }
    nodes_[id] = node;
    ++live_nodes_;
  }
  node->id = id;
  node->birth = static_cast<std::uint32_t>(domain_.birth(node->bytes()));
  return node;
}

void FlashTree::free_node(Node* node) noexcept {
  if (OwnerSet* const set = node->set()) {
    set_bytes_ -= set->bytes;
    free_set(set);
  }
  arena_.free(node);
}

void FlashTree::discard(Node* node) noexcept {
  nodes_.free(node->id);
  --live_nodes_;
  free_node(node);
}

void FlashTree::retire(Node* node, bool with_id) {
  // The node keeps the low bits of its birth era.
  const std::uint64_t now = domain_.era();
  const std::uint64_t birth = now - static_cast<std::uint32_t>(static_cast<std::uint32_t>(now) - node->birth);
  const OwnerSet* const set = node->set();
  const EraDomain::Free only_memory = [](void* object, void* self) {
    static_cast<FlashTree*>(self)->free_node(static_cast<Node*>(object));
  };
  const EraDomain::Free id_too = [](void* object, void* self) {
    auto& tree = *static_cast<FlashTree*>(self);
    tree.nodes_.free(static_cast<Node*>(object)->id);
    tree.free_node(static_cast<Node*>(object));
    if (tree.nodes_.live() == 1) {
      tree.nodes_.shrink_to_first();
      tree.gives_back_ = true;
    }
  };
  domain_.retire(node, node->bytes() + (set == nullptr ? 0 : set->bytes), birth,
                 with_id ? id_too : only_memory, this);
}

Node* FlashTree::find_child(const Node& node, std::uint64_t local) const noexcept {
  const std::uint64_t link = node.child.load(std::memory_order_relaxed);
  if (link == Node::kNoChild) return nullptr;
  if (link == Node::kManyChildren) return edges_.find(node.id, local);
  Node* const child = reinterpret_cast<Node*>(link);
  return child->hashes()[0] == local ? child : nullptr;
}

std::uint32_t FlashTree::edges_for(const Node& parent) noexcept {
  const std::uint64_t link = parent.child.load(std::memory_order_relaxed);
  return link == Node::kNoChild ? 0 : link == Node::kManyChildren ? 1 : 2;
}

void FlashTree::link(Node& parent, Node* child) noexcept {
  close(parent);
  child->parent = parent.id;
  child->previous = kNoNode;
  child->next = parent.first_child;
  if (child->next != kNoNode) node_at(child->next).previous = child->id;
  parent.first_child = child->id;
  const std::uint64_t link = parent.child.load(std::memory_order_relaxed);
  if (link == Node::kManyChildren) return edges_.insert(child);
  if (link == Node::kNoChild) {
    // release: pairs with the acquire of readers: the child is complete.
    parent.child.store(reinterpret_cast<std::uintptr_t>(child), std::memory_order_release);
    return;
  }
  edges_.insert(reinterpret_cast<Node*>(link));
  edges_.insert(child);
  // release: pairs with the acquire of readers: both children are in the table.
  parent.child.store(Node::kManyChildren, std::memory_order_release);
}

void FlashTree::unlink(Node* node) {
  Node& parent = node_at(node->parent);
  if (node->previous != kNoNode)
    node_at(node->previous).next = node->next;
  else
    parent.first_child = node->next;
  if (node->next != kNoNode) node_at(node->next).previous = node->previous;
  // A node that had many children keeps them in the table until the last one is removed: a reader that finds
  // nothing there can rely on it.
  if (parent.child.load(std::memory_order_relaxed) == Node::kManyChildren) {
    edges_.erase(node);
    gives_back_ |= edges_.size() == 0;
  }
  if (parent.first_child == kNoNode && &parent != root_)
    parent.child.store(Node::kNoChild, std::memory_order_release);
}

// Replaces `old` by `fresh` in the tree; both have the same first hash and parent.
void FlashTree::take_place(Node* old, Node* fresh) noexcept {
  Node& parent = node_at(old->parent);
  fresh->parent = old->parent;
  fresh->next = old->next;
  fresh->previous = old->previous;
  if (fresh->next != kNoNode) node_at(fresh->next).previous = fresh->id;
  if (fresh->previous != kNoNode)
    node_at(fresh->previous).next = fresh->id;
  else
    parent.first_child = fresh->id;
  if (parent.child.load(std::memory_order_relaxed) == Node::kManyChildren)
    edges_.replace(old, fresh);
  else
    // release: pairs with the acquire of readers: the node is complete.
    parent.child.store(reinterpret_cast<std::uintptr_t>(fresh), std::memory_order_release);
}

Node* FlashTree::rebuild(Node* old, std::uint32_t blocks, std::uint32_t room) {
  leave_out_dead(*old);
  Node* const fresh = new_node(room, old->id);
  std::copy_n(old->hashes(), blocks, fresh->hashes());
  std::copy_n(old->names(), blocks, fresh->names());
  fresh->named = old->named & low_bits(blocks);
  fresh->position = old->position;
  fresh->shape |= old->shape & Node::kAliased;
  fresh->length.store(static_cast<std::uint8_t>(blocks), std::memory_order_relaxed);
  fresh->child.store(old->child.load(std::memory_order_relaxed), std::memory_order_relaxed);
  fresh->first_child = old->first_child;
  if (blocks == kNodeBlocks || fresh->first_child != kNoNode) fresh->shape |= Node::kClosed;
  try {
    collect_entries(*old, entries_);
    for (Entry& entry : entries_)
      for (Mask& mask : entry.masks) mask &= low_bits(blocks);
    set_owners(*fresh, entries_);
    domain_.reserve(1);
  } catch (const std::bad_alloc&) {
    free_node(fresh);
    throw;
  }
  nodes_[old->id] = fresh;
  take_place(old, fresh);
  retire(old, false);
  return fresh;
}

void FlashTree::move_name(Node& from, std::uint32_t offset, BlockRef to) noexcept {
  if ((from.named >> offset & 1) == 0) return;
  const std::uint32_t tag = names_.tag_of(from.names()[offset]);
  const std::uint32_t word = BlockRef(from.id, offset).word();
  names_.replace(tag, word, to.word());
}

// Moves the aliases of a split node, slot by slot; if memory fails it moves them back.
class FlashTree::AliasMoves {
 public:
  AliasMoves(AliasNames& aliases, const Node& old, std::uint32_t at, std::uint32_t front) noexcept
      : aliases_(aliases), id_(old.id), blocks_(old.size()), at_(at), front_(front) {}

  BlockRef from(std::uint32_t block) const noexcept { return {id_, block}; }
  BlockRef to(std::uint32_t block) const noexcept {
    return block < at_ ? BlockRef(front_, block) : BlockRef(id_, block - at_);
  }
  void move(std::uint32_t slot) {
    std::uint32_t block = 0;
    try {
      for (; block < blocks_; ++block) aliases_.move(slot, from(block), to(block));
    } catch (const std::bad_alloc&) {
      move_back(slot, block);
      throw;
    }
  }
  void move_back(std::uint32_t slot) noexcept { move_back(slot, blocks_); }

 private:
  void move_back(std::uint32_t slot, std::uint32_t block) noexcept {
    while (block-- > 0) aliases_.move(slot, to(block), from(block));
  }

  AliasNames& aliases_;
  const std::uint32_t id_;
  const std::uint32_t blocks_;
  const std::uint32_t at_;
  const std::uint32_t front_;
};

Node* FlashTree::split(Node* old, std::uint32_t at, std::uint32_t newcomer, std::size_t tier, bool joins) {
  leave_out_dead(*old);
  const std::uint32_t blocks = old->size();
  Node* const front = new_node(at);
  Node* back = nullptr;
  std::vector<Entry> behind;
  // The slots whose aliases have moved.
  std::vector<std::uint32_t> moved;
  AliasMoves moves(aliases_, *old, at, front->id);
  try {
    back = new_node(blocks - at, old->id);
    std::copy_n(old->hashes(), at, front->hashes());
    std::copy_n(old->names(), at, front->names());
    std::copy_n(old->hashes() + at, blocks - at, back->hashes());
    std::copy_n(old->names() + at, blocks - at, back->names());
    front->named = old->named & low_bits(at);
    back->named = old->named >> at;
    front->position = old->position;
    back->position = old->position + at;
    front->length.store(static_cast<std::uint8_t>(at), std::memory_order_relaxed);
    back->length.store(static_cast<std::uint8_t>(blocks - at), std::memory_order_relaxed);
    front->shape |= Node::kClosed | (old->shape & Node::kAliased);
    back->shape |= old->shape & (Node::kAliased | Node::kClosed);

    collect_entries(*old, entries_);
    if (old->aliased()) {
      for (const Entry& entry : entries_)
        if (aliases_.any(entry.slot)) moved.push_back(entry.slot);
      if (aliases_.any(newcomer) && std::ranges::find(moved, newcomer) == moved.end())
        moved.push_back(newcomer);
    }
    behind = entries_;
    for (Entry& entry : entries_)
      for (Mask& mask : entry.masks) mask &= low_bits(at);
    for (Entry& entry : behind)
      for (Mask& mask : entry.masks) mask >>= at;
    const auto holds_nothing = [](const Entry& entry) {
      return std::all_of(entry.masks.begin(), entry.masks.end(), [](Mask mask) { return mask == 0; });
    };
    std::erase_if(entries_, holds_nothing);
    std::erase_if(behind, holds_nothing);
    set_owners(*front, entries_);
    set_owners(*back, behind);
    if (joins) make_owner(*front, newcomer, tier);
    domain_.reserve(1);
    std::size_t done = 0;
    try {
      for (; done < moved.size(); ++done) moves.move(moved[done]);
    } catch (const std::bad_alloc&) {
      while (done-- > 0) moves.move_back(moved[done]);
      throw;
    }
  } catch (const std::bad_alloc&) {
    if (back != nullptr) free_node(back);
    discard(front);
    throw;
  }
  steps_ += blocks * (1 + moved.size());
  // The back keeps the id, and with it the children. The front's names move first, then the back's from the
  // lowest on, so no reference is used twice.
  for (std::uint32_t i = 0; i < blocks; ++i) move_name(*old, i, moves.to(i));
  back->first_child = old->first_child;
  back->child.store(old->child.load(std::memory_order_relaxed), std::memory_order_relaxed);

  // If only dead slots held the back, it is barren.
  if (behind.empty() && back->first_child == kNoNode) leave_barren(back->id);

  back->parent = front->id;
  front->first_child = back->id;
  nodes_[back->id] = back;
  // relaxed: the front is published with a release by take_place().
  front->child.store(reinterpret_cast<std::uintptr_t>(back), std::memory_order_relaxed);
  take_place(old, front);
  retire(old, false);
  return front;
}

void FlashTree::leave_barren(std::uint32_t id) noexcept {
  try {
    barren_.push_back(id);
  } catch (const std::bad_alloc&) {
    unpruned_ = true;
  }
}

// A chain of ancestors may be as long as a sequence: nodes that a call does not free wait in barren_.
void FlashTree::prune(Node* node) noexcept {
  for (bool first = true; is_barren(*node); first = false) {
    if (!first && prunes_left_ == 0) return leave_barren(node->id);
    if (!first) --prunes_left_;
    Node* const parent = &node_at(node->parent);
    if (!prune_one(node)) return;
    node = parent;
  }
}

// Requires: is_barren(). False without memory to retire it.
bool FlashTree::prune_one(Node* node) noexcept {
  // The node, and an overflow bucket of the edge table.
  if (!domain_.try_reserve(2)) {
    unpruned_ = true;
    return false;
  }
  steps_ += 2;
  drop_dead_names(*node);
  ASHLAR_DCHECK(node->named == 0, "a pruned node has names");
  unlink(node);
  nodes_[node->id] = nullptr;
  --live_nodes_;
  retire(node, true);
  return true;
}

}  // namespace ashlar::index::detail
