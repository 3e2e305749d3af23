// Stores and removals of PositionalTables.
//
// A store examines the whole event first (chains, entry keys, the meaning of each name) and refuses it, or
// applies it block by block. The lookups of later blocks are prefetched while earlier ones are applied. If
// memory runs out the applied blocks are removed again, the last one first, which restores names, records and
// ghosts.
//
// A removal processes the names from the deeper end of the event, so that an event that names a chain front
// to back does not create ghosts only to free them again.
#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "ashlar/base/check.h"
#include "index/positional/positional_tables.h"

namespace ashlar::index::detail {
namespace {

constexpr std::size_t kWriteAhead = 8;  // blocks between prefetch and use

// Detects duplicate names in one event. Resets by a new round number, without clearing.
class NamesSeen {
 public:
  void begin(std::size_t names) {
    const std::size_t wanted = std::bit_ceil(2 * names);
    if (places_.size() < wanted) places_.assign(wanted, {});
    shift_ = 64 - std::countr_zero(wanted);
    mask_ = wanted - 1;
    ++round_;
  }
  bool first_time(BlockName name) noexcept {
    for (auto at = static_cast<std::size_t>(NameEntry::hash(name.value(), seed_) >> shift_);;
         at = (at + 1) & mask_) {
      Place& place = places_[at];
      if (place.round != round_) {
        place = {round_, name};
        return true;
      }
      if (place.name == name) return false;
    }
  }

 private:
  struct Place {
    std::uint64_t round = 0;
    BlockName name;
  };
  std::vector<Place> places_;
  std::uint64_t seed_ = draw_seed();
  std::uint64_t round_ = 0;
  std::size_t mask_ = 0;
  int shift_ = 64;
};

}  // namespace

// An examined event. Reused by the thread, for its memory.
struct StorePlan {
  struct Block {
    Chain chain;
    std::uint64_t key = 0;
    std::uint32_t known = kNoRecord;  // the record the name already means
    bool repeated = false;            // the worker had the name in the tier already
  };
  std::vector<Block> blocks;
  NamesSeen names;
  std::uint32_t parent = kNoRecord;

  // Empty, or the first fault in the order of StoreVerdict. `worker` is null if it has no slot. `seed` is
  // that of the entry keys.
  std::optional<StoreVerdict> make(WorkerBlocks* worker, const BlocksStored& event, std::uint64_t seed,
                                   std::uint64_t max_depth, std::size_t max_records);
};

std::optional<StoreVerdict> StorePlan::make(WorkerBlocks* worker, const BlocksStored& event,
                                            std::uint64_t seed, std::uint64_t max_depth,
                                            std::size_t max_records) {
  Chain chain;
  std::uint64_t position = 0;
  parent = kNoRecord;
  if (event.parent) {
    const NameEntry* name = worker == nullptr ? nullptr : worker->find_name(*event.parent);
    if (name == nullptr) return StoreVerdict::kUnknownParent;
    parent = name->record();
    const HeldBlock& record = worker->record(parent);
    chain = record.chain;
    position = std::uint64_t{record.position} + 1;
  }
  if (event.start_position && *event.start_position != position) return StoreVerdict::kWrongPosition;

  const std::span<const StoredBlock> stored = event.blocks;
  blocks.resize(stored.size());
  names.begin(stored.size());
  if (worker != nullptr)
    for (std::size_t i = 0; i < std::min(2 * kWriteAhead, stored.size()); ++i)
      worker->prefetch_name(stored[i].name);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (worker != nullptr && i + 2 * kWriteAhead < stored.size())
      worker->prefetch_name(stored[i + 2 * kWriteAhead].name);
    chain = extended(chain, stored[i].local);
    const NameEntry* known = worker == nullptr ? nullptr : worker->find_name(stored[i].name);
    // A known name that occurs twice means other content the second time; a new one is recorded.
    if (known != nullptr ? worker->record(known->record()).chain != chain : !names.first_time(stored[i].name))
      return StoreVerdict::kNameInUse;
    blocks[i] = {chain, entry_key(static_cast<std::uint32_t>(position + i), stored[i].local, seed),
                 known == nullptr ? kNoRecord : known->record(), false};
  }
  if (position + stored.size() > max_depth) return StoreVerdict::kFull;
  if (worker != nullptr && worker->records() + stored.size() > max_records) return StoreVerdict::kFull;
  return std::nullopt;
}

namespace {

// The thread's plan. Memory of very large events is not kept.
class ThreadPlan {
 public:
  ~ThreadPlan() {
    if (kept_.blocks.capacity() > kMaxKept) kept_ = {};
  }
  StorePlan& operator*() noexcept { return kept_; }
  StorePlan* operator->() noexcept { return &kept_; }

 private:
  static constexpr std::size_t kMaxKept = std::size_t{1} << 16;
  static inline thread_local StorePlan kept_;
};

}  // namespace

StoreVerdict PositionalTables::refused(StoreVerdict verdict) noexcept {
  switch (verdict) {
    case StoreVerdict::kApplied:
      break;
    case StoreVerdict::kEmpty:
      count(counters_.empty_stores);
      break;
    case StoreVerdict::kUnknownTier:
      count(counters_.unknown_tiers);
      break;
    case StoreVerdict::kUnknownParent:
      count(counters_.unknown_parents);
      break;
    case StoreVerdict::kWrongPosition:
      count(counters_.wrong_positions);
      break;
    case StoreVerdict::kNameInUse:
      count(counters_.names_in_use);
      break;
    case StoreVerdict::kFull:
      count(counters_.full);
      break;
  }
  return verdict;
}

StoreVerdict PositionalTables::store(const BlocksStored& event) {
  if (event.blocks.empty()) return refused(StoreVerdict::kEmpty);
  if (!is_known(event.tier)) return refused(StoreVerdict::kUnknownTier);
  try {
    return store_or_throw(event);
  } catch (const std::bad_alloc&) {
    drop_worker_if_empty(event.worker);
    return refused(StoreVerdict::kFull);
  }
}

StoreVerdict PositionalTables::store_or_throw(const BlocksStored& event) {
  for (;;) {
    std::optional<StoreVerdict> verdict;
    {
      const StripeHold hold(gate_);
      if (WorkerBlocks* blocks = blocks_of(event.worker)) {
        const MutexLock held(blocks->lock);
        verdict = store_into(*blocks, event);
        if (!blocks->empty()) return *verdict;
      } else {
        // An event that may be refused gets no slot.
        ThreadPlan plan;
        if (const auto fault = plan->make(nullptr, event, seed_, kMaxDepth, kMaxRecords))
          return refused(*fault);
        if (slots_.used() >= WorkerSet::kMaxSlots) return refused(StoreVerdict::kFull);
      }
    }
    if (verdict) {
      drop_worker_if_empty(event.worker);
      return *verdict;
    }
    add_worker(event.worker);
  }
}

StoreVerdict PositionalTables::store_into(WorkerBlocks& blocks, const BlocksStored& event) {
  ThreadPlan plan;
  if (const auto fault = plan->make(&blocks, event, seed_, kMaxDepth, kMaxRecords)) return refused(*fault);
  apply(blocks, event, *plan);
  return StoreVerdict::kApplied;
}

void PositionalTables::apply(WorkerBlocks& blocks, const BlocksStored& event, StorePlan& plan) {
  const std::size_t n = plan.blocks.size();
  if (event.tier != StorageTier::kDevice && !blocks.in_lower_tiers()) board_.post_lower_tier(blocks.slot());
  const auto prefetch = [&](std::size_t i) {
    map_of(plan.blocks[i].key).prefetch_to_add(plan.blocks[i].key);
    blocks.prefetch_chain(plan.blocks[i].chain);
  };
  for (std::size_t i = 0; i < std::min(kWriteAhead, n); ++i) prefetch(i);
  std::size_t repeated = 0;
  std::uint32_t parent = plan.parent;
  std::size_t i = 0;
  try {
    for (; i < n; ++i) {
      if (i + kWriteAhead < n) prefetch(i + kWriteAhead);
      parent = apply_block(blocks, event, plan, i, parent);
      repeated += plan.blocks[i].repeated ? 1 : 0;
    }
  } catch (...) {
    retreat(blocks, event, plan, i);
    throw;
  }
  if (blocks.nested() && board_.is_posted(blocks.slot())) board_.take_down(blocks.slot());
  count(counters_.stored, n);
  if (repeated != 0) count(counters_.repeated, repeated);
}

std::uint32_t PositionalTables::apply_block(WorkerBlocks& blocks, const BlocksStored& event, StorePlan& plan,
                                            std::size_t i, std::uint32_t parent) {
  StorePlan::Block& block = plan.blocks[i];
  if (block.known == kNoRecord)
    return apply_new_name(blocks, event.blocks[i], block.chain, block.key, parent, event.tier);
  const TierMask tier = mask_of(event.tier);
  NameEntry& name = *blocks.find_name(event.blocks[i].name);
  if ((name.tiers & tier) != 0) {
    block.repeated = true;
    return block.known;
  }
  if ((blocks.record(block.known).tiers & tier) == 0) publish(block.key, block.chain, blocks.slot(), tier);
  blocks.add_tier(name, event.tier);
  return block.known;
}

void PositionalTables::retreat(WorkerBlocks& blocks, const BlocksStored& event, const StorePlan& plan,
                               std::size_t done) noexcept {
  for (std::size_t i = done; i-- > 0;)
    if (!plan.blocks[i].repeated) remove_one(blocks, event.tier, event.blocks[i].name);
  if (blocks.nested() && board_.is_posted(blocks.slot())) board_.take_down(blocks.slot());
}

// Returns the record of the name.
std::uint32_t PositionalTables::apply_new_name(WorkerBlocks& blocks, const StoredBlock& block,
                                               const Chain& chain, std::uint64_t key, std::uint32_t parent,
                                               StorageTier tier) {
  const TierMask before = publish(key, chain, blocks.slot(), mask_of(tier));
  // The worker has a record for content held under another name, and for a ghost.
  std::uint32_t record = before != 0 || blocks.has_ghosts() ? blocks.find_record(chain) : kNoRecord;
  const bool is_new = record == kNoRecord;
  try {
    if (is_new) {
      ASHLAR_CHECK(before == 0, "slot %u has no record of a content that it holds", blocks.slot());
      record = blocks.add_record(chain, block.local, parent);
    }
    blocks.add_name(block.name, record, tier);
  } catch (...) {
    if (is_new && record != kNoRecord) blocks.drop_record(record);
    if ((before & mask_of(tier)) == 0) withdraw(key, chain, blocks.slot(), mask_of(tier));
    throw;
  }
  return record;
}

std::size_t PositionalTables::remove(const Worker& worker, StorageTier tier,
                                     std::span<const BlockName> names) {
  std::size_t removed = 0;
  bool empty = false;
  if (is_known(tier)) {
    const StripeHold hold(gate_);
    if (WorkerBlocks* blocks = blocks_of(worker)) {
      const MutexLock held(blocks->lock);
      removed = remove_from(*blocks, tier, names);
      empty = blocks->empty();
    }
  }
  if (empty) drop_worker_if_empty(worker);
  if (removed != 0) count(counters_.removed, removed);
  if (removed != names.size()) count(counters_.unknown_removals, names.size() - removed);
  return removed;
}

std::size_t PositionalTables::remove_from(WorkerBlocks& blocks, StorageTier tier,
                                          std::span<const BlockName> names) noexcept {
  if (names.empty()) return 0;
  const auto position_of = [&](BlockName name) -> std::uint32_t {
    const NameEntry* entry = blocks.find_name(name);
    return entry == nullptr ? 0 : blocks.record(entry->record()).position;
  };
  const bool backwards = position_of(names.front()) < position_of(names.back());
  const auto name_at = [&](std::size_t i) { return names[backwards ? names.size() - 1 - i : i]; };

  // Prefetch the place of a name first, then the entry it leads to, then remove.
  const auto fetch_entry = [&](BlockName name) {
    const NameEntry* entry = blocks.find_name(name);
    if (entry == nullptr) return;
    const HeldBlock& record = blocks.record(entry->record());
    const std::uint64_t key = key_of(record);
    map_of(key).prefetch_to_remove(key);
    blocks.prefetch_chain(record.chain);
  };
  const std::size_t n = names.size();
  for (std::size_t i = 0; i < std::min(2 * kWriteAhead, n); ++i) blocks.prefetch_name(name_at(i));
  for (std::size_t i = 0; i < std::min(kWriteAhead, n); ++i) fetch_entry(name_at(i));
  std::size_t removed = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + 2 * kWriteAhead < n) blocks.prefetch_name(name_at(i + 2 * kWriteAhead));
    if (i + kWriteAhead < n) fetch_entry(name_at(i + kWriteAhead));
    removed += remove_one(blocks, tier, name_at(i)) ? 1 : 0;
  }
  if (blocks.nested() && board_.is_posted(blocks.slot())) board_.take_down(blocks.slot());
  return removed;
}

bool PositionalTables::remove_one(WorkerBlocks& blocks, StorageTier tier, BlockName name) noexcept {
  NameEntry* entry = blocks.find_name(name);
  if (entry == nullptr || (entry->tiers & mask_of(tier)) == 0) return false;
  if (blocks.is_last_in_tier(*entry, tier)) {
    const HeldBlock& record = blocks.record(entry->record());
    const bool leaves = record.tiers == mask_of(tier);
    if (leaves && record.children != 0 && !board_.is_posted(blocks.slot())) board_.post(blocks.slot());
    withdraw(key_of(record), record.chain, blocks.slot(), mask_of(tier));
  }
  blocks.remove_name(*entry, tier);
  return true;
}

namespace {

BlockPresence presence_of(const WorkerBlocks& blocks, const NameEntry& entry) {
  const HeldBlock& record = blocks.record(entry.record());
  return {BlockName(entry.name), record.local, record.position, entry.tiers};
}

}  // namespace

void PositionalTables::presence(const Worker& worker, std::span<const BlockName> names,
                                std::span<BlockPresence> out) const {
  ASHLAR_CHECK(names.size() == out.size(), "%zu names, room for %zu answers", names.size(), out.size());
  for (std::size_t i = 0; i < names.size(); ++i) out[i] = {.name = names[i]};
  const StripeHold hold(gate_);
  WorkerBlocks* const blocks = blocks_of(worker);
  if (blocks == nullptr) return;
  const MutexLock held(blocks->lock);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i + kWriteAhead < names.size()) blocks->prefetch_name(names[i + kWriteAhead]);
    if (const NameEntry* const entry = blocks->find_name(names[i])) out[i] = presence_of(*blocks, *entry);
  }
}

void PositionalTables::list(const Worker& worker, std::vector<BlockPresence>& out) const {
  const StripeHold hold(gate_);
  WorkerBlocks* const blocks = blocks_of(worker);
  if (blocks == nullptr) return;
  const MutexLock held(blocks->lock);
  blocks->for_each_name([&](const NameEntry& entry) { out.push_back(presence_of(*blocks, entry)); });
}

// Queries skip a retired slot, so the order of its records does not matter.
void PositionalTables::withdraw_all(const WorkerBlocks& blocks) noexcept {
  blocks.for_each_record([&](std::uint32_t, const HeldBlock& record) {
    if (record.tiers != 0)
      withdraw(key_of(record), record.chain, blocks.slot(), static_cast<TierMask>(record.tiers));
  });
}

}  // namespace ashlar::index::detail
