#include "index/radix/basic_radix_tree.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "base/interleaving.h"
#include "index/radix/radix_dump.h"
#include "index/radix/radix_walk.h"

namespace ashlar::index {

namespace {

struct SeenName {
  using Key = BlockName;
  BlockName name;
  bool used = false;

  Key key() const noexcept { return name; }
  bool empty() const noexcept { return !used; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key.value(), seed); }
};

bool names_repeat(std::span<const StoredBlock> blocks) {
  EntryMap<SeenName> seen;
  seen.reserve(blocks.size());
  return std::ranges::any_of(
      blocks, [&](const StoredBlock& block) { return !seen.insert({block.name, true}).second; });
}

std::int64_t difference(std::size_t after, std::size_t before) {
  return static_cast<std::int64_t>(after) - static_cast<std::int64_t>(before);
}

}  // namespace

// The current node of a query.
template <bool kShared>
class BasicRadixTree<kShared>::NodeShare {
 public:
  explicit NodeShare(const RadixNode& node) noexcept : node_(&node) { lock_shared(node); }
  ~NodeShare() { end(); }
  NodeShare(const NodeShare&) = delete;
  NodeShare& operator=(const NodeShare&) = delete;

  void pass_to(const RadixNode& next) noexcept {
    lock_shared(next);
    unlock_shared(*std::exchange(node_, &next));
  }
  void end() noexcept {
    if (node_ != nullptr) unlock_shared(*std::exchange(node_, nullptr));
  }

 private:
  const RadixNode* node_;
};

template <bool kShared>
BasicRadixTree<kShared>::~BasicRadixTree() {
  root_.free_below();
}

// --- Workers. ---

template <bool kShared>
auto BasicRadixTree<kShared>::holder_of(const Worker& worker) const -> Holder* {
  const std::optional<std::uint32_t> slot = slots_.find(worker);
  return slot ? holders_[*slot].get() : nullptr;
}

template <bool kShared>
void BasicRadixTree<kShared>::admit(const Worker& worker) {
  const SoleSlots sole(slots_lock_);
  if (slots_.find(worker)) return;
  const std::uint32_t slot = slots_.assign(worker);
  try {
    if (holders_.size() < slots_.capacity()) holders_.resize(slots_.capacity());
    ASHLAR_DCHECK(holders_[slot] == nullptr, "free slot %u has the names of a worker", slot);
    holders_[slot] = std::make_unique<Holder>(slot);
  } catch (...) {
    free_slot(slot);
    throw;
  }
}

template <bool kShared>
void BasicRadixTree<kShared>::dismiss(const Worker& worker) noexcept {
  const SoleSlots sole(slots_lock_);
  const Holder* holder = holder_of(worker);
  if (holder == nullptr) return;
  {
    const HolderHold hold(holder->mu);
    if (!holder->names.empty()) return;
  }
  free_slot(holder->slot);
}

template <bool kShared>
auto BasicRadixTree<kShared>::retire(std::uint32_t slot) noexcept -> std::unique_ptr<Holder> {
  slots_.retire(slot);
  return std::move(holders_[slot]);
}

template <bool kShared>
void BasicRadixTree<kShared>::free_slot(std::uint32_t slot) noexcept {
  // holders_ may be shorter if creating its holder failed.
  if (slot < holders_.size()) holders_[slot].reset();
  slots_.release(slot);
  if (holders_.size() > slots_.capacity()) holders_.resize(slots_.capacity());
  if (holders_.size() * 4 <= holders_.capacity()) holders_.shrink_to_fit();
}

// --- Store. ---

template <bool kShared>
StoreVerdict BasicRadixTree<kShared>::store(const BlocksStored& event) {
  RadixTally tally;
  StoreVerdict verdict = StoreVerdict::kFull;
  try {
    verdict = event.blocks.empty()    ? StoreVerdict::kEmpty
              : !is_known(event.tier) ? StoreVerdict::kUnknownTier
                                      : store(event, tally);
  } catch (const std::bad_alloc&) {  // no memory for a worker, which then has no slot
  }
  tally.count(verdict, event.blocks.size());
  totals_.add(tally);
  return verdict;
}

template <bool kShared>
StoreVerdict BasicRadixTree<kShared>::store(const BlocksStored& event, RadixTally& tally) {
  for (;;) {
    std::optional<StoreVerdict> verdict;
    bool idle = false;
    {
      const SharedSlots shared(slots_lock_);
      if (Holder* holder = holder_of(event.worker)) {
        const HolderHold hold(holder->mu);
        verdict = store(*holder, event, tally);
        idle = holder->names.empty();
      }
    }
    if (idle) dismiss(event.worker);
    if (verdict) return *verdict;
    // A refused event must not assign a slot.
    if (event.parent) return StoreVerdict::kUnknownParent;
    if (event.start_position.value_or(0) != 0) return StoreVerdict::kWrongPosition;
    if (names_repeat(event.blocks)) return StoreVerdict::kNameInUse;
    if (event.blocks.size() > std::numeric_limits<std::uint32_t>::max()) return StoreVerdict::kFull;
    admit(event.worker);
  }
}

template <bool kShared>
StoreVerdict BasicRadixTree<kShared>::store(Holder& holder, const BlocksStored& event, RadixTally& tally) {
  RadixNode* node = &root_;
  std::uint32_t offset = 0;
  if (event.parent) {
    const RadixNames::Entry* parent = holder.names.map().find(*event.parent);
    if (parent == nullptr) return StoreVerdict::kUnknownParent;
    node = parent->place.node();
    offset = parent->place.offset() + 1;
  }
  const std::uint64_t position = std::uint64_t{node->start()} + offset;
  if (event.start_position && *event.start_position != position) return StoreVerdict::kWrongPosition;
  const std::size_t names_bytes = holder.names.bytes();
  RadixEntries entries(holder.names, event.blocks);
  StoreVerdict verdict = StoreVerdict::kApplied;
  try {
    if (!entries.insert() || (entries.any_known() && !agree(entries, node, offset)))
      verdict = StoreVerdict::kNameInUse;
    else if (position + event.blocks.size() > std::numeric_limits<std::uint32_t>::max())
      verdict = StoreVerdict::kFull;
    else
      apply(holder, event.tier, node, offset, entries, tally);
  } catch (const std::bad_alloc&) {
    verdict = StoreVerdict::kFull;
  }
  if (verdict != StoreVerdict::kApplied) entries.undo();
  tally.bytes += difference(holder.names.bytes(), names_bytes);
  return verdict;
}

// A placed name keeps its node and those above it alive, so the walk finds all of them if they agree.
template <bool kShared>
bool BasicRadixTree<kShared>::agree(RadixEntries& entries, const RadixNode* node,
                                    std::uint32_t offset) const {
  lock_shared(*node);
  bool agreed = true;
  bool on_path = true;
  for (std::size_t i = 0; i < entries.blocks().size() && agreed; ++i, ++offset) {
    const LocalHash local = entries.blocks()[i].local;
    if (on_path && (offset == node->length() || node->local(offset) != local)) {
      const RadixNode* child = node->child(offset, local);
      on_path = child != nullptr;
      if (on_path) {
        lock_shared(*child);
        unlock_shared(*node);
        node = child;
        offset = 0;
      }
    }
    const RadixPlace place = entries.place(i);
    agreed = place.is_pending() || (on_path && place.node() == node && place.offset() == offset);
  }
  unlock_shared(*node);
  return agreed;
}

template <bool kShared>
void BasicRadixTree<kShared>::apply(Holder& holder, StorageTier tier, RadixNode* node, std::uint32_t offset,
                                    RadixEntries& entries, RadixTally& tally) {
  RadixSteps steps;
  bool locked = true;  // the node is locked, wherever code may throw
  try {
    if (node == &root_) {
      node = enter_first(entries.blocks(), tally);
      offset = 0;
    } else {
      lock(*node);
    }
    for (std::size_t done = 0;;) {
      const std::span<const StoredBlock> blocks = entries.blocks().subspan(done);
      std::uint32_t count = node->match(offset, blocks);
      if (count == 0) {
        const bool extends = node->extends_at(offset) && node->child(offset, blocks[0].local) == nullptr;
        if (!extends) {
          node = enter_child(node, offset, blocks, tally);
          offset = 0;
          continue;
        }
        count = node->extend(blocks, tally);
      }
      steps.make_room();
      const std::uint64_t before = node->add(holder.slot, tier, RadixNode::bits(offset, count), tally);
      // The worker now holds blocks of the node, so it stays after unlocking.
      unlock(*node);
      locked = false;
      entries.give_places(tier, steps.add({node, before, 0, done, offset, count, 0}), tally);
      done += count;
      offset += count;
      if (done == entries.blocks().size()) return;
      lock(*node);
      locked = true;
    }
  } catch (const std::bad_alloc&) {
    if (locked && node == &root_) {
      unlock(root_);
    } else if (locked) {
      node->cut_end(tally);
      leave(node, tally);
    }
    retreat(holder, tier, entries, steps, tally);
    tally.counters = {};  // of names already present
    throw;
  }
}

// Each node stays until its own step is undone: the worker holds blocks there.
template <bool kShared>
void BasicRadixTree<kShared>::retreat(Holder& holder, StorageTier tier, RadixEntries& entries,
                                      RadixSteps& steps, RadixTally& tally) noexcept {
  for (; !steps.empty(); steps.pop_back()) {
    RadixStep& step = steps.back();
    entries.take_places(tier, step);
    const std::uint64_t added = RadixNode::bits(step.offset, step.count) & ~step.held_before;
    if (added == 0) continue;
    lock(*step.node);
    step.node->take(holder.slot, tier, added, tally);
    leave(step.node, tally);
  }
}

template <bool kShared>
RadixNode* BasicRadixTree<kShared>::enter_child(RadixNode* node, std::uint32_t offset,
                                                std::span<const StoredBlock> blocks, RadixTally& tally) {
  RadixNode* child = node->child(offset, blocks[0].local);
  if (child == nullptr) {
    auto made = std::make_unique<RadixNode>(node, offset, blocks, tally);
    try {
      node->link(made.get(), tally);
    } catch (...) {
      --tally.nodes;
      tally.bytes -= static_cast<std::int64_t>(made->bytes());
      throw;
    }
    child = made.release();
  }
  lock(*child);
  unlock(*node);
  return child;
}

// Most stores of a shared prefix find its first node, and so disturb no reader of the root.
template <bool kShared>
RadixNode* BasicRadixTree<kShared>::enter_first(std::span<const StoredBlock> blocks, RadixTally& tally) {
  if constexpr (kShared) {
    lock_shared(root_);
    RadixNode* first = root_.child(0, blocks[0].local);
    if (first != nullptr) lock(*first);
    unlock_shared(root_);
    if (first != nullptr) return first;
  }
  lock(root_);
  return enter_child(&root_, 0, blocks, tally);
}

// --- Remove. ---

template <bool kShared>
BlockPresence BasicRadixTree<kShared>::presence_of(const RadixNames::Entry& entry) {
  const RadixNode& node = *entry.place.node();
  const std::uint32_t offset = entry.place.offset();
  lock_shared(node);
  const LocalHash local = node.local(offset);
  unlock_shared(node);
  return {entry.name, local, node.start() + offset, entry.place.tiers()};
}

template <bool kShared>
void BasicRadixTree<kShared>::presence(const Worker& worker, std::span<const BlockName> names,
                                       std::span<BlockPresence> out) const {
  ASHLAR_CHECK(names.size() == out.size(), "%zu names, room for %zu answers", names.size(), out.size());
  for (std::size_t i = 0; i < names.size(); ++i) out[i] = {.name = names[i]};
  const SharedSlots shared(slots_lock_);
  Holder* const holder = holder_of(worker);
  if (holder == nullptr) return;
  const HolderHold hold(holder->mu);
  const EntryMap<RadixNames::Entry>& map = holder->names.map();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i + RadixEntries::kAhead < names.size()) map.prefetch(names[i + RadixEntries::kAhead]);
    if (const RadixNames::Entry* const entry = map.find(names[i])) out[i] = presence_of(*entry);
  }
}

template <bool kShared>
void BasicRadixTree<kShared>::list(const Worker& worker, std::vector<BlockPresence>& out) const {
  const SharedSlots shared(slots_lock_);
  Holder* const holder = holder_of(worker);
  if (holder == nullptr) return;
  const HolderHold hold(holder->mu);
  out.reserve(out.size() + holder->names.map().size());
  holder->names.map().for_each([&](const RadixNames::Entry& entry) { out.push_back(presence_of(entry)); });
}

template <bool kShared>
std::size_t BasicRadixTree<kShared>::remove(const Worker& worker, StorageTier tier,
                                            std::span<const BlockName> names) {
  RadixTally tally;
  std::size_t removed = 0;
  bool idle = false;
  if (is_known(tier)) {
    const SharedSlots shared(slots_lock_);
    if (Holder* holder = holder_of(worker)) {
      const HolderHold hold(holder->mu);
      removed = remove(*holder, tier, names, tally);
      idle = holder->names.empty();
    }
  }
  if (idle) dismiss(worker);
  tally.counters.removed = removed;
  tally.counters.unknown_removals = names.size() - removed;
  totals_.add(tally);
  return removed;
}

template <bool kShared>
std::size_t BasicRadixTree<kShared>::remove(Holder& holder, StorageTier tier,
                                            std::span<const BlockName> names, RadixTally& tally) noexcept {
  EntryMap<RadixNames::Entry>& map = holder.names.map();
  const std::size_t names_bytes = holder.names.bytes();
  std::size_t removed = 0;
  // Consecutive names in one node are removed together.
  RadixNode* node = nullptr;
  std::uint64_t blocks = 0;
  const auto take = [&] {
    lock(*node);
    node->take(holder.slot, tier, blocks, tally);
    leave(node, tally);
  };
  for (std::size_t i = 0; i < std::min(RadixEntries::kAhead, names.size()); ++i) map.prefetch(names[i]);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i + RadixEntries::kAhead < names.size()) map.prefetch(names[i + RadixEntries::kAhead]);
    RadixNames::Entry* entry = map.find(names[i]);
    if (entry == nullptr || !entry->place.in_tier(tier)) continue;
    ++removed;
    entry->place.take_tier(tier);
    const RadixPlace place = entry->place;
    if (!place.in_any_tier()) map.erase(entry);
    if (holder.names.take_name(place, tier)) continue;
    if (place.node() != node) {
      if (node != nullptr) take();
      node = place.node();
      blocks = 0;
    }
    blocks |= std::uint64_t{1} << place.offset();
  }
  if (node != nullptr) take();
  tally.bytes += difference(holder.names.bytes(), names_bytes);
  return removed;
}

template <bool kShared>
void BasicRadixTree<kShared>::leave(RadixNode* node, RadixTally& tally) noexcept {
  bool doom = node->vacant() && !node->doomed;
  node->doomed |= doom;
  unlock(*node);
  while (doom) {
    RadixNode* parent = node->parent();
    lock(*parent);
    lock(*node);
    node->doomed = node->vacant();
    doom = false;
    if (node->doomed) {
      parent->unlink(node, tally);
      doom = parent != &root_ && parent->vacant() && !parent->doomed;
      parent->doomed |= doom;
    }
    const bool freed = node->doomed;
    unlock(*node);
    unlock(*parent);
    if (freed) {
      --tally.nodes;
      tally.bytes -= static_cast<std::int64_t>(node->bytes());
      delete node;
    }
    node = parent;
  }
}

template <bool kShared>
void BasicRadixTree<kShared>::take_all(Holder& holder, RadixTally& tally) noexcept {
  // A node may be freed once the worker has left it, so each is visited once.
  const std::span<RadixNames::Entry> entries = holder.names.map().take_apart();
  std::ranges::sort(entries, {}, [](const RadixNames::Entry& entry) { return entry.place.content(); });
  RadixNode* last = nullptr;
  for (const RadixNames::Entry& entry : entries) {
    RadixNode* const node = entry.place.node();
    if (std::exchange(last, node) == node) continue;
    lock(*node);
    node->take_all(holder.slot, tally);
    leave(node, tally);
  }
  tally.bytes -= static_cast<std::int64_t>(holder.names.bytes());
}

template <bool kShared>
void BasicRadixTree<kShared>::sweep(const Retired& retired, RadixTally& tally) {
  interleaving_point("index.retired");
  for (Holder* one = retired.first(); one != nullptr; one = retired.next(*one)) {
    Holder& holder = *one;
    const HolderHold hold(holder.mu);
    take_all(holder, tally);
  }
  for (const Holder* one = retired.first(); one != nullptr;) {
    const SoleSlots sole(slots_lock_);
    for (std::size_t i = 0; i < kRanksPerHold && one != nullptr; ++i, one = retired.next(*one))
      free_slot(one->slot);
  }
}

template <bool kShared>
void BasicRadixTree<kShared>::clear(const Worker& worker) {
  RadixTally tally;
  ++tally.counters.clears;
  Retired retired;
  {
    const SoleSlots sole(slots_lock_);
    if (const std::optional<std::uint32_t> slot = slots_.find(worker)) retired.add(retire(*slot));
  }
  if (retired.first() != nullptr) sweep(retired, tally);
  totals_.add(tally);
}

template <bool kShared>
void BasicRadixTree<kShared>::remove_worker(WorkerId id) {
  RadixTally tally;
  ++tally.counters.clears;
  Retired retired;
  for (bool more = true; more;) {
    const SoleSlots sole(slots_lock_);
    const auto take = [&](std::uint32_t slot) ASHLAR_NO_THREAD_SAFETY_ANALYSIS { retired.add(retire(slot)); };
    more = slots_.for_each_slot_of(id, kRanksPerHold, take) == kRanksPerHold;
  }
  sweep(retired, tally);
  totals_.add(tally);
}

// --- Reads. ---

template <bool kShared>
void BasicRadixTree<kShared>::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                                           const FindOptions& options) const {
  const SharedSlots shared(slots_lock_);
  scores.begin(slots_.assignment(), slots_.workers());
  if (locals.empty() || slots_.capacity() == 0) return;
  NodeShare share(root_);
  const RadixNode* next = root_.child(0, locals[0]);
  if (next == nullptr) return;
  RadixWalk walk(locals, scores, options, slots_.retired());
  while (next != nullptr) {
    share.pass_to(*next);
    next = walk.visit(*next) ? next->child(walk.offset(), walk.next_local()) : nullptr;
  }
  share.end();
  walk.finish();
}

template <bool kShared>
void BasicRadixTree<kShared>::dump(IndexSink& sink) const {
  std::vector<Worker> workers;
  {
    const SharedSlots shared(slots_lock_);
    for (std::uint32_t slot = 0; slot < slots_.capacity(); ++slot)
      if (slots_.in_use(slot)) workers.push_back(slots_.workers()[slot]);
  }
  // A worker's calls are collected under its lock and sent without it.
  for (const Worker& worker : workers) {
    RadixDump calls(worker);
    {
      const SharedSlots shared(slots_lock_);
      const Holder* holder = holder_of(worker);
      if (holder == nullptr) continue;
      const HolderHold hold(holder->mu);
      calls.add(holder->names, [](const RadixNode& node, std::span<LocalHash> locals) {
        lock_shared(node);
        for (std::uint32_t i = 0; i < locals.size(); ++i) locals[i] = node.local(i);
        unlock_shared(node);
      });
    }
    calls.send(sink);
  }
}

template <bool kShared>
IndexSizes BasicRadixTree<kShared>::sizes() const {
  const SharedSlots shared(slots_lock_);
  IndexSizes sizes = totals_.sizes();
  sizes.workers = slots_.size();
  sizes.bytes +=
      slots_.bytes() + slots_.size() * sizeof(Holder) + holders_.capacity() * sizeof(std::unique_ptr<Holder>);
  return sizes;
}

template class BasicRadixTree<false>;
template class BasicRadixTree<true>;

}  // namespace ashlar::index
