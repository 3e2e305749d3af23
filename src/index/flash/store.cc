// store(): all blocks of an event, or none.
//
// 1. plan       walk down from the parent along the known content: pieces of nodes, and the point where the
//               rest begins.
// 2. space      unpublished nodes for the rest. Blocks that continue a leaf go into the leaf itself, beyond
//               its length, where no reader looks.
// 3. names      every block gets its name: the canonical one if possible, else an alias. A name that this
//               worker uses for other content ends the store, and this step is undone.
// 4. prepare    owner entries with empty masks; room in the edge table; the split of a node, if needed.
// 5. publish    masks first, from the front; then the leaf's length, then the link to the new nodes.
// A worker that continues its last event in a leaf of its own, as most events do, skips the steps whose
// outcome is known (append()).
// Until the last step, which needs no memory, std::bad_alloc ends the store and its changes are undone; those
// that stay show in no answer: room for more, empty masks, a slot without blocks.
#include <algorithm>
#include <bit>
#include <new>

#include "ashlar/base/check.h"
#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

StoreVerdict FlashTree::refuse(StoreVerdict verdict) noexcept {
  switch (verdict) {
    case StoreVerdict::kApplied:
      break;
    case StoreVerdict::kEmpty:
      ++counters_.empty_stores;
      break;
    case StoreVerdict::kUnknownTier:
      ++counters_.unknown_tiers;
      break;
    case StoreVerdict::kUnknownParent:
      ++counters_.unknown_parents;
      break;
    case StoreVerdict::kWrongPosition:
      ++counters_.wrong_positions;
      break;
    case StoreVerdict::kNameInUse:
      ++counters_.names_in_use;
      break;
    case StoreVerdict::kFull:
      ++counters_.full;
      break;
  }
  return verdict;
}

std::optional<StoreVerdict> FlashTree::store(const BlocksStored& event) noexcept {
  begin_call();
  tidy();
  steps_ += event.blocks.size();
  if (event.blocks.empty()) return refuse(StoreVerdict::kEmpty);
  if (!is_known(event.tier)) return refuse(StoreVerdict::kUnknownTier);
  Store work{.event = &event, .tier = static_cast<std::size_t>(event.tier)};
  pieces_.clear();
  fresh_.clear();
  kinds_.clear();
  try {
    return store(work);
  } catch (const std::bad_alloc&) {
    undo(work);
    return refuse(StoreVerdict::kFull);
  }
}

std::optional<StoreVerdict> FlashTree::store(Store& store) {
  const BlocksStored& event = *store.event;
  std::optional<std::uint32_t> slot = slots_.find(event.worker);
  // After new content more usually follows: prefetch its names before examining the rest.
  const bool probed = event.parent && slot && slots_.trail(*slot).fresh;
  if (probed) {
    prefetch_leaf(slots_.trail(*slot).stored, event.blocks.size());
    probe_from(store, 0);
    if (continues_leaf(store, *slot)) return append(store);
  }
  store.at = root_;
  std::uint32_t position = 0;
  if (event.parent) {
    const std::optional<BlockRef> parent = slot ? find_parent(*slot, event.parent->value()) : std::nullopt;
    if (!parent) return refuse(StoreVerdict::kUnknownParent);
    store.at = &node_at(parent->node());
    store.offset = parent->offset() + 1;
    position = store.at->position + store.offset;
  }
  store.position = position;
  if (event.start_position && *event.start_position != position) return refuse(StoreVerdict::kWrongPosition);
  if (event.blocks.size() > kMaxDepth - position) return refuse(StoreVerdict::kFull);
  if (nodes_.live() + event.blocks.size() / kNodeBlocks + 4 > kMaxNodes) return refuse(StoreVerdict::kFull);
  if (!slot) slot = slots_.assign(event.worker);
  if (!slot) {
    const bool last = release_slots();
    slot = slots_.assign(event.worker);
    if (!slot && !last) return std::nullopt;
  }
  if (!slot) return refuse(StoreVerdict::kFull);
  store.slot = *slot;

  plan(store);
  // Names that only dead slots held are dropped before names are resolved.
  for (const Piece& piece : pieces_) drop_dead_names(*piece.node);
  drop_dead_names(*store.at);
  if (!probed || store.known != 0) probe_from(store, store.known);
  make_space(store);
  if (!settle_names(store)) {
    undo(store);
    return refuse(StoreVerdict::kNameInUse);
  }
  prepare(store);
  publish(store);
  counters_.stored += event.blocks.size();
  return StoreVerdict::kApplied;
}

// Prefetches the lines that an event of so many blocks fills behind the worker's last block.
void FlashTree::prefetch_leaf(BlockRef last, std::size_t blocks) noexcept {
  if (last.node() == kNoNode || last.node() >= nodes_.end()) return;
  Node* const node = nodes_[last.node()];
  if (node == nullptr) return;
  const std::size_t first = last.offset() + 1;
  const std::size_t end = std::min<std::size_t>(kNodeBlocks, first + blocks);
  for (std::size_t at = first - first % kBlocksPerLine; at < end; at += kBlocksPerLine) {
    __builtin_prefetch(node->hashes() + at, 1);
    __builtin_prefetch(node->names() + at, 1);
  }
}

// Whether the event goes behind the worker's last one, in a leaf with room for it that nobody else holds;
// then `store` says where.
bool FlashTree::continues_leaf(Store& store, std::uint32_t slot) noexcept {
  const BlocksStored& event = *store.event;
  const BlockRef last = slots_.trail(slot).stored;
  if (store.tier != 0 || last.node() == kNoNode || last.node() >= nodes_.end() || aliases_.any(slot))
    return false;
  Node* const node = nodes_[last.node()];
  if (node == nullptr || node->set() != nullptr || node->first_slot != slot || node->closed() ||
      node->aliased() || last.offset() + 1 != node->size() ||
      event.blocks.size() > node->capacity() - node->size())
    return false;
  const Mask mine = node->named & node->first_mask.load(std::memory_order_relaxed);
  if ((mine >> last.offset() & 1) == 0 || node->names()[last.offset()] != event.parent->value()) return false;
  const std::uint32_t position = node->position + node->size();
  if (event.start_position.value_or(position) != position || event.blocks.size() > kMaxDepth - position)
    return false;
  store.slot = slot;
  store.at = node;
  store.offset = node->size();
  store.position = position;
  store.appended = static_cast<std::uint32_t>(event.blocks.size());
  return true;
}

StoreVerdict FlashTree::append(Store& store) {
  Node& node = *store.at;
  ASHLAR_DCHECK(store.offset + store.appended <= node.capacity(), "%u blocks behind %u, in a node for %u",
                store.appended, store.offset, node.capacity());
  write_blocks(node, store.offset, store.event->blocks);
  if (!settle_in_a_row(store)) {
    undo(store);
    return refuse(StoreVerdict::kNameInUse);
  }
  if (!kinds_.empty()) [[unlikely]] {  // some of its names are aliases
    prepare(store);
    publish(store);
  } else {
    // release: pairs with the acquire of readers.
    node.first_mask.store(node.first_mask.load(std::memory_order_relaxed) | low_bits(store.appended)
                                                                                << store.offset,
                          std::memory_order_release);
    slots_.add_blocks(store.slot, store.appended);
    lengthen(node, store.offset + store.appended);
    slots_.trail(store.slot).stored = BlockRef(node.id, store.offset + store.appended - 1);
  }
  counters_.stored += store.appended;
  return StoreVerdict::kApplied;
}

void FlashTree::lengthen(Node& node, std::uint32_t length) noexcept {
  // release: pairs with the acquire of readers: hashes before length.
  node.length.store(static_cast<std::uint8_t>(length), std::memory_order_release);
  if (length == kNodeBlocks) close(node);
}

// Most events continue their worker's last one: its last block is the parent, and needs no lookup.
std::optional<BlockRef> FlashTree::find_parent(std::uint32_t slot, std::uint64_t name) {
  const BlockRef last = slots_.trail(slot).stored;
  if (last.node() != kNoNode && last.node() < nodes_.end() && !aliases_.any(slot))
    if (Node* const node = nodes_[last.node()])
      if (last.offset() < node->size() && (node->named >> last.offset() & 1) != 0 && !node->aliased() &&
          node->names()[last.offset()] == name && tiers_at(*node, slot, last.offset()) != 0)
        return last;
  return resolve(slot, name);
}

void FlashTree::plan(Store& store) {
  const std::span<const StoredBlock> blocks = store.event->blocks;
  const auto count = static_cast<std::uint32_t>(blocks.size());
  for (;;) {
    Node& node = *store.at;
    const std::uint32_t most = std::min(node.size() - store.offset, count - store.known);
    const std::uint64_t* const hashes = node.hashes() + store.offset;
    std::uint32_t same = 0;
    while (same < most && hashes[same] == blocks[store.known + same].local.value()) ++same;
    if (same > 0) pieces_.push_back({&node, store.offset, same, store.known});
    store.known += same;
    store.offset += same;
    if (store.known == count || store.offset < node.size()) return;
    Node* const child = find_child(node, blocks[store.known].local.value());
    if (child == nullptr) return;
    store.at = child;
    store.offset = 0;
  }
}

// The blocks' hashes and names, where no reader looks yet.
void FlashTree::write_blocks(Node& node, std::uint32_t offset, std::span<const StoredBlock> blocks) noexcept {
  std::uint64_t* __restrict const hashes = node.hashes() + offset;
  std::uint64_t* __restrict const names = node.names() + offset;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    hashes[i] = blocks[i].local.value();
    names[i] = blocks[i].name.value();
  }
}

// Allocates nodes for the new blocks; the tree is unchanged, except for the room of a leaf.
void FlashTree::make_space(Store& store) {
  const std::span<const StoredBlock> blocks = store.event->blocks;
  const auto count = static_cast<std::uint32_t>(blocks.size());
  std::uint32_t next = store.known;
  store.appended = 0;
  if (next == count) return;
  Node* node = store.at;
  if (node != root_ && store.offset < node->size() && node->first_child == kNoNode) {
    // A tail without holders is no reason to split.
    if ((held(*node, kNoSlot) >> store.offset) == 0) {
      Node* const cut = rebuild(node, store.offset, std::min(kNodeBlocks, store.offset + count - next));
      for (Piece& piece : pieces_)
        if (piece.node == node) piece.node = cut;
      store.at = node = cut;
    }
  }
  if (node != root_ && store.offset == node->size() && !node->closed()) {
    const std::uint32_t wanted = std::min(kNodeBlocks, store.offset + count - next);
    if (wanted > node->capacity()) {
      Node* const larger =
          rebuild(node, store.offset, std::max(wanted, std::min(kNodeBlocks, 4 * node->capacity())));
      for (Piece& piece : pieces_)
        if (piece.node == node) piece.node = larger;
      store.at = node = larger;
    }
    store.appended = wanted - store.offset;
    write_blocks(*node, store.offset, blocks.subspan(next, store.appended));
    next += store.appended;
  }
  std::uint32_t position = store.at->position + store.offset + store.appended;
  fresh_.reserve((count - next + kNodeBlocks - 1) / kNodeBlocks);
  while (next < count) {
    const std::uint32_t size = std::min(kNodeBlocks, count - next);
    // A sequence below a full node is growing: expect more.
    const bool grows = count < kNodeBlocks && node->size() == kNodeBlocks;
    Node* const fresh = new_node(grows ? kNodeBlocks : size);
    write_blocks(*fresh, 0, blocks.subspan(next, size));
    next += size;
    fresh->position = position;
    position += size;
    fresh_.push_back(fresh);
  }
}

bool FlashTree::settle_names(Store& store) {
  for (const Piece& piece : pieces_)
    if (!settle_known(store, piece)) return false;
  return aliases_.any(store.slot) ? settle_one_by_one(store) : settle_in_a_row(store);
}

// The new blocks and their names lie in their nodes: each takes its name, unless another block has it.
bool FlashTree::settle_in_a_row(Store& store) {
  const std::span<const StoredBlock> blocks = store.event->blocks;
  const auto count = static_cast<std::uint32_t>(blocks.size());
  std::uint32_t probed = store.checked + kAhead;
  while (store.checked < count) {
    const Place place = place_of(store, store.checked);
    const std::uint32_t end = std::min({count, store.checked + place.room, probed});
    if (end == probed) {
      probe_from(store, probed);
      probed += kAhead;
    }
    const std::uint32_t first = BlockRef(place.node->id, place.offset).word() - store.checked;
    std::uint32_t block = store.checked;
    std::uint32_t found = TagTable::kNone;
    const auto note = [&] {
      place.node->named |= low_bits(block - store.checked) << place.offset;
      store.checked = block;
    };
    try {
      for (; block < end; ++block) {
        const std::size_t at = block % probes_.size();
        const std::size_t run = std::min<std::size_t>(end - block, probes_.size() - at);
        block += names_.insert_new(std::span(probes_).subspan(at, run), first + block);
        if (block == end) break;
        const std::uint64_t name = blocks[block].name.value();
        found = names_.insert(probes_[block % probes_.size()], first + block,
                              [&](std::uint32_t value) { return is_named(value, name); });
        if (found != TagTable::kNone) [[unlikely]]
          break;
      }
    } catch (const std::bad_alloc&) {
      note();
      throw;
    }
    note();
    // From here on the worker has aliases.
    if (found != TagTable::kNone) [[unlikely]]
      return settle_one_by_one(store);
  }
  return true;
}

bool FlashTree::settle_one_by_one(Store& store) {
  while (store.checked < store.event->blocks.size()) {
    const Place place = place_of(store, store.checked);
    if (!settle_new(store, *place.node, place.offset, store.checked)) return false;
    ++store.checked;
  }
  return true;
}

// The future place of a new block of the event, and how many fit from there on.
FlashTree::Place FlashTree::place_of(const Store& store, std::uint32_t block) const noexcept {
  std::uint32_t i = block - store.known;
  if (i < store.appended) return {store.at, store.offset + i, store.appended - i};
  i -= store.appended;
  return {fresh_[i / kNodeBlocks], i % kNodeBlocks, kNodeBlocks - i % kNodeBlocks};
}

// Prefetches name buckets for the next kAhead blocks.
void FlashTree::probe_from(const Store& store, std::uint32_t first) noexcept {
  const std::span<const StoredBlock> blocks = store.event->blocks;
  names_.probe(probes_, first, std::min<std::size_t>(blocks.size(), first + kAhead),
               [&](std::size_t i) { return blocks[i].name.value(); });
}

void FlashTree::reserve_kinds(const Store& store) {
  if (kinds_.empty()) kinds_.assign(store.event->blocks.size(), NameKind::kCanonical);
}

// Known blocks: usually under the same name, then there is nothing to do.
bool FlashTree::settle_known(Store& store, const Piece& piece) {
  const std::span<const StoredBlock> blocks = store.event->blocks;
  Node& node = *piece.node;
  const bool plain = !node.aliased() && !aliases_.any(store.slot);
  std::uint32_t i = 0;
  if (plain) {
    const std::uint64_t* const names = node.names() + piece.offset;
    const StoredBlock* const stored = &blocks[piece.block];
    const auto most =
        std::min(piece.count, static_cast<std::uint32_t>(std::countr_one(node.named >> piece.offset)));
    while (i < most && names[i] == stored[i].name.value()) ++i;
    store.checked += i;
  }
  for (; i < piece.count; ++i, ++store.checked) {
    const std::uint32_t offset = piece.offset + i;
    const std::uint64_t name = blocks[piece.block + i].name.value();
    const bool canonical = (node.named >> offset & 1) != 0 && node.names()[offset] == name;
    if (canonical && plain) continue;
    if (canonical && !aliases_.any(store.slot)) continue;
    if (canonical) {
      // The worker may use the name as an alias, for this block or for other content.
      const std::uint32_t alias = aliases_.find(store.slot, name);
      if (alias == 0) continue;
      if (aliases_.block_of(alias) != BlockRef(node.id, offset)) return false;
      reserve_kinds(store);
      set_kind(piece.block + i, NameKind::kAlias);
      continue;
    }
    const bool named = (node.named >> offset & 1) != 0;
    if (!named) node.names()[offset] = name;
    if (!(named ? add_alias(store, node, offset, piece.block + i)
                : settle_new(store, node, offset, piece.block + i)))
      return false;
  }
  return true;
}

// A block without a canonical name, whose name is already in the node: takes it, unless another block has it.
bool FlashTree::settle_new(Store& store, Node& node, std::uint32_t offset, std::uint32_t block) {
  const std::span<const StoredBlock> blocks = store.event->blocks;
  const std::uint64_t name = blocks[block].name.value();
  if (aliases_.any(store.slot) && aliases_.find(store.slot, name) != 0) {
    return add_alias(store, node, offset, block);
  }
  reserve_kinds(store);
  const std::uint32_t found = names_.insert(names_.tag_of(name), BlockRef(node.id, offset).word(),
                                            [&](std::uint32_t value) { return is_named(value, name); });
  if (found != TagTable::kNone) return add_alias(store, node, offset, block);
  node.named |= bit_at(offset);
  set_kind(block, NameKind::kInserted);
  return true;
}

// The name cannot be the block's canonical one: it means other content, or the block has another name. False
// when this worker itself uses it for other content, or for another block of this event.
bool FlashTree::add_alias(Store& store, Node& node, std::uint32_t offset, std::uint32_t block) {
  const std::uint64_t name = store.event->blocks[block].name.value();
  const BlockRef here(node.id, offset);
  reserve_kinds(store);
  if (const std::uint32_t alias = aliases_.find(store.slot, name); alias != 0) {
    if (aliases_.block_of(alias) != here) return false;
    set_kind(block, NameKind::kAlias);
    return true;
  }
  if (const std::uint32_t found = find_name(name); found != TagTable::kNone) {
    const BlockRef other(found);
    if (canonical_tiers(node_at(other.node()), store.slot, other.offset()) != 0) return false;
    if (names_in_event(store, other, name)) return false;
  }
  // From now on this slot may hold the block without its canonical name.
  aliases_.add(store.slot, name, here,
               (node.named >> offset & 1) != 0 ? tiers_at(node, store.slot, offset) : TierBits{0});
  node.shape |= Node::kAliased;
  set_kind(block, NameKind::kNewAlias);
  return true;
}

bool FlashTree::names_in_event(const Store& store, BlockRef other, std::uint64_t name) {
  const Node& holder = node_at(other.node());
  if (holder.parent == kNoNode) return true;  // a fresh node, not linked yet
  if (&holder == store.at && other.offset() >= store.offset && store.appended != 0) return true;
  // A known block matches the event's block at its position, or none.
  const std::uint32_t block = holder.position + other.offset() - store.position;
  if (block >= store.known || store.event->blocks[block].name.value() != name) return false;
  const Piece& piece = piece_with(block);
  return piece.node == &holder && piece.offset + (block - piece.block) == other.offset();
}

const FlashTree::Piece& FlashTree::piece_with(std::uint32_t block) const noexcept {
  // Pieces are contiguous.
  const auto behind = std::upper_bound(pieces_.begin(), pieces_.end(), block,
                                       [](std::uint32_t b, const Piece& piece) { return b < piece.block; });
  return behind[-1];
}

void FlashTree::undo_names(Store& store) noexcept {
  for (std::uint32_t block = store.checked; block-- > 0;) {
    const NameKind kind = kinds_.empty() ? NameKind::kCanonical : kinds_[block];
    if (kind == NameKind::kNewAlias) {
      aliases_.remove(aliases_.find(store.slot, store.event->blocks[block].name.value()));
    } else if (block >= store.known) {
      const Place place = place_of(store, block);
      erase_name(*place.node, place.offset);
    } else if (kind == NameKind::kInserted) {
      const Piece& piece = piece_with(block);
      erase_name(*piece.node, piece.offset + block - piece.block);
    }
  }
}

void FlashTree::undo(Store& store) noexcept {
  undo_names(store);
  for (Node* const node : fresh_) discard(node);
  fresh_.clear();
  if (is_empty()) forget_all();
}

// Counts blocks that the worker already held under these names, and records the tiers of aliases.
void FlashTree::count_repeats(const Store& store, const Piece& piece) noexcept {
  const auto tier_bit = static_cast<TierBits>(1u << store.tier);
  const Node& node = *piece.node;
  const Mask mine = piece.owner.mask(store.tier);
  if (!node.aliased() && !aliases_.any(store.slot)) {
    const Mask repeated = mine >> piece.offset & low_bits(piece.count);
    if (repeated != 0) counters_.repeated += static_cast<std::uint64_t>(std::popcount(repeated));
    return;
  }
  for (std::uint32_t i = 0; i < piece.count; ++i) {
    const std::uint32_t block = piece.block + i;
    const std::uint32_t offset = piece.offset + i;
    if (!kinds_.empty() && kinds_[block] >= NameKind::kNewAlias) {
      const std::uint32_t alias = aliases_.find(store.slot, store.event->blocks[block].name.value());
      counters_.repeated += aliases_.add_tier(alias, store.tier) ? 0 : 1;
      continue;
    }
    if (const std::uint32_t place = aliases_.find_place(store.slot, BlockRef(node.id, offset)); place != 0) {
      counters_.repeated += (aliases_.place(place).canonical & tier_bit) != 0;
      aliases_.place(place).canonical |= tier_bit;
      continue;
    }
    counters_.repeated += mine >> offset & 1;
  }
}

// Allocates the memory for publish().
void FlashTree::prepare(Store& store) {
  const bool splits = !fresh_.empty() && store.at != root_ && store.offset < store.at->size();
  bool joins = false;
  for (Piece& piece : pieces_) {
    if (splits && piece.node == store.at)
      joins = true;
    else
      piece.owner = make_owner(*piece.node, store.slot, store.tier);
  }
  if (store.appended != 0) {
    // The last piece may lie in the same node.
    const bool same = !pieces_.empty() && pieces_.back().node == store.at;
    store.owner = same ? pieces_.back().owner : make_owner(*store.at, store.slot, store.tier);
  }
  for (Node* const node : fresh_) {
    if (store.tier == 0)
      node->first_slot = static_cast<std::uint16_t>(store.slot);
    else
      make_owner(*node, store.slot, store.tier);
  }
  if (fresh_.empty()) return;
  if (const std::uint32_t edges = splits ? 2 : edges_for(*store.at); edges != 0) edges_.prepare(edges);
  if (!splits) return;
  // The split moves references, so it comes after the names and before every use of them.
  Node* const old = store.at;
  store.at = split(old, store.offset, store.slot, store.tier, joins);
  for (Piece& piece : pieces_)
    if (piece.node == old) {
      piece.node = store.at;
      piece.owner = owner(*store.at, store.slot);
    }
}

void FlashTree::publish(Store& store) noexcept {
  const auto count = static_cast<std::uint32_t>(store.event->blocks.size());
  for (const Piece& piece : pieces_) {
    count_repeats(store, piece);
    hold(*piece.node, piece.owner, store.slot, store.tier, low_bits(piece.count) << piece.offset);
  }
  std::uint32_t block = store.known;
  if (store.appended != 0) {
    count_repeats(store, {store.at, store.offset, store.appended, block, store.owner});
    hold(*store.at, store.owner, store.slot, store.tier, low_bits(store.appended) << store.offset);
    block += store.appended;
    lengthen(*store.at, store.offset + store.appended);
  }
  // The new nodes, from the last to the first: each is complete before its parent links to it.
  for (Node* const node : fresh_) {
    const std::uint32_t size = std::min(kNodeBlocks, count - block);
    node->length.store(static_cast<std::uint8_t>(size), std::memory_order_relaxed);
    const Owner mine = owner(*node, store.slot);
    count_repeats(store, {node, 0, size, block, mine});
    hold(*node, mine, store.slot, store.tier, low_bits(size));
    if (size == kNodeBlocks) close(*node);
    block += size;
  }
  FlashSlots::Trail& trail = slots_.trail(store.slot);
  trail.fresh = store.known < count;
  if (!fresh_.empty())
    trail.stored = BlockRef(fresh_.back()->id, fresh_.back()->size() - 1);
  else if (store.appended != 0)
    trail.stored = BlockRef(store.at->id, store.offset + store.appended - 1);
  else
    trail.stored = BlockRef(pieces_.back().node->id, pieces_.back().offset + pieces_.back().count - 1);
  for (std::size_t i = fresh_.size(); i-- > 1;) link(*fresh_[i - 1], fresh_[i]);
  if (!fresh_.empty()) link(*store.at, fresh_[0]);
}

}  // namespace ashlar::index::detail
