// clear() and its sweep, and all other work that one call leaves to later ones.
//
// A call may leave work of any size: a cleared worker has masks in every node, a removed leaf may end a
// barren chain, an emptied table has memory. No call does all of that under the lock. The rest is queued in
// one of these, and every writing call does a share of it, at most kTidySteps:
//   barren_     ends of chains without holders
//   sweeping_   dead slots. Their masks are removed node by node, entry by entry; then their aliases, then
//               the slots themselves
//   unpruned_   nodes without holder or child, for which there was no memory in barren_ or to retire them:
//               the sweep finds them
//   gives_back_ memory of empty tables
// None of it shows in an answer: readers see no dead slot, and a barren chain has no holders.
#include <algorithm>
#include <bit>
#include <new>

#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

namespace {

constexpr std::uint64_t kNoLimit = UINT64_MAX;

}  // namespace

void FlashTree::begin_call() noexcept {
  most_steps_ = std::max(most_steps_, steps() - call_began_);
  call_began_ = steps();
}

FlashWork FlashTree::work() const noexcept {
  return {steps(), std::max(most_steps_, steps() - call_began_)};
}

void FlashTree::tidy() noexcept {
  prunes_left_ = kPrunes;
  if (!barren_.empty()) [[unlikely]]
    prune_barren();
  if (sweep_is_due()) [[unlikely]]
    sweep(kTidyNodes, steps() + kTidySteps);
  if (gives_back_ || aliases_.emptied()) [[unlikely]]
    gives_back_ = !give_back(kPieces);
  if (slots_.has_free_end()) [[unlikely]] {
    slots_.trim(kKills);
    count_holders(slots_.size() / 32);
  }
}

// --- Clear. ---

void FlashTree::kill(std::span<const std::uint32_t> slots) {
  const std::size_t dying = died_.size() + slots.size();
  if (dying > died_.capacity()) died_.reserve(std::max(dying, 2 * died_.capacity()));
  slots_.kill(slots);
  died_.insert(died_.end(), slots.begin(), slots.end());
  steps_ += slots.size();
  count_holders(slots_.size() / 32);  // two words per 64 slots
}

void FlashTree::clear(const Worker& worker) {
  begin_call();
  if (const std::optional<std::uint32_t> slot = slots_.find(worker)) kill(std::span(&*slot, 1));
  ++counters_.clears;
  tidy();
}

std::optional<std::uint32_t> FlashTree::remove_worker(WorkerId worker, std::uint32_t rank) {
  begin_call();
  const std::vector<std::uint32_t> slots = slots_.slots_of(worker, rank, kKills);
  const std::uint32_t last = slots.empty() ? 0 : slots_.worker(slots.back()).rank;
  kill(slots);
  if (rank == 0) ++counters_.clears;
  tidy();
  if (slots.size() < kKills) return std::nullopt;
  return last == UINT32_MAX ? std::nullopt : std::optional(last + 1);
}

// --- The sweep. ---

bool FlashTree::has_dead(const Node& node) const noexcept {
  const OwnerSet* const set = node.set();
  if (set == nullptr)
    return node.first_mask.load(std::memory_order_relaxed) != 0 && slots_.dead(node.first_slot);
  if (set->words == 0) return true;  // few entries: no `full` and `listed` bits
  count_holders(set->words);
  for (std::uint32_t w = 0; w < set->words; ++w)
    if ((set->listed()[w].load(std::memory_order_relaxed) & slots_.dead_bits(w)) != 0) return true;
  return false;
}

void FlashTree::drop_dead_names(Node& node) {
  if (!any_dead()) return;
  for (Mask left = node.named & ~held(node, kNoSlot); left != 0; left &= left - 1) {
    erase_name(node, static_cast<std::uint32_t>(std::countr_zero(left)));
    ++steps_;
  }
}

void FlashTree::leave_out_dead(const Node& node) noexcept {
  // The sweep may be in the middle of this node.
  if (node.id == sweep_at_) sweep_entry_ = 0;
}

bool FlashTree::purge(Node& node, std::uint32_t& from, std::uint64_t until) {
  if (from == 0 && !has_dead(node)) return true;
  OwnerSet* const set = node.set();
  if (set == nullptr) write_mask(node, {nullptr, 0, &node.first_mask}, node.first_slot, 0, 0);
  const std::uint32_t count = set == nullptr ? 0 : set->count.load(std::memory_order_relaxed);
  for (; from < count; ++from) {
    if (from % 16 == 0) {
      if (steps() >= until) return false;
      ++steps_;
    }
    const std::uint32_t slot = set->slots()[from];
    const Owner entry{set, from, nullptr};
    if (!slots_.dead(slot) || entry.any() == 0) continue;
    ++steps_;
    for (std::size_t tier = 0; tier < set->tiers(); ++tier)
      if (entry.mask(tier) != 0) write_mask(node, entry, slot, tier, 0);
  }
  drop_dead_names(node);
  return true;
}

bool FlashTree::sweep(std::size_t nodes, std::uint64_t until) noexcept {
  for (bool began = false;;) {
    if (!in_sweep_) {
      // Nodes that a whole sweep of this call could not prune, another sweep could not either.
      if (died_.empty() && (!unpruned_ || began)) return true;
      in_sweep_ = began = true;
      unpruned_ = false;
      sweeping_.swap(died_);
      sweep_at_ = kRootId + 1;
      sweep_entry_ = 0;
      sweep_alias_ = 1;
    }
    for (; sweep_at_ < nodes_.end(); ++sweep_at_, sweep_entry_ = 0) {
      if (nodes == 0 || steps() >= until) return false;
      --nodes;
      ++steps_;
      Node* const node = nodes_[sweep_at_];
      if (node == nullptr) continue;
      if (!purge(*node, sweep_entry_, until)) return false;
      prune(node);
    }
    for (; sweep_alias_ < aliases_.end(); ++sweep_alias_) {
      if (steps() >= until) return false;
      if (aliases_.in_use(sweep_alias_) && slots_.dead(aliases_.alias(sweep_alias_).slot))
        aliases_.remove(sweep_alias_);
    }
    for (; !sweeping_.empty(); sweeping_.pop_back()) {
      if (steps() >= until) return false;
      if (!domain_.try_reserve(1)) return true;
      ++steps_;
      slots_.recycle(sweeping_.back());
    }
    in_sweep_ = false;
    if (is_empty()) forget_all();
  }
}

// --- Barren chains, memory, slots. ---

bool FlashTree::prune_barren() noexcept {
  while (!barren_.empty()) {
    if (prunes_left_ == 0) return false;
    const std::uint32_t id = barren_.back();
    barren_.pop_back();
    // It may have been freed with another chain; its id is then free, or names a node that prune() leaves
    // alone.
    Node* const node = id < nodes_.end() ? nodes_[id] : nullptr;
    if (node == nullptr) continue;
    --prunes_left_;
    prune(node);
  }
  if (is_empty()) forget_all();
  return true;
}

void FlashTree::forget_all() noexcept {
  names_.forget();
  if (nodes_.live() == 1) nodes_.shrink_to_first();
  gives_back_ = true;
}

bool FlashTree::give_back(std::size_t pieces) noexcept {
  steps_ += 4 * std::min(pieces, kPieces);
  bool done = names_.free_some(pieces);
  if (done && is_empty()) {
    names_.forget();
    done = names_.free_some(pieces) && names_.undo_splits(pieces);
  }
  done &= edges_.free_some(pieces);
  done &= aliases_.trim(pieces);
  done &= nodes_.trim(pieces);
  return done;
}

std::size_t FlashTree::release_idle() {
  const std::vector<std::uint32_t> idle = slots_.idle(kKills);
  if (idle.empty()) return 0;
  domain_.reserve(1 + idle.size());  // the roster, and each slot
  slots_.kill(idle);
  for (const std::uint32_t slot : idle) slots_.recycle(slot);
  steps_ += 2 * idle.size();
  return idle.size();
}

bool FlashTree::release_slots() {
  if (!sweep(SIZE_MAX, steps() + kTidySteps)) return false;
  const std::size_t idle = release_idle();
  // Slots that an earlier reader may know become free when it has left.
  const bool reviewed = slots_.waiting() == 0 || domain_.collect();
  return reviewed && idle < kKills;
}

void FlashTree::settle() {
  begin_call();
  do {
    prunes_left_ = SIZE_MAX;
    prune_barren();
    while (!sweep(SIZE_MAX, kNoLimit)) {
    }
  } while (!barren_.empty());
  while (release_idle() != 0) {
  }
  // Freeing may expose more to free: a tail of free slots, a table without entries.
  bool done = true;
  for (std::size_t held = SIZE_MAX; domain_.waiting_count() != held;) {
    done = domain_.flush();
    held = domain_.waiting_count();
    slots_.trim(SIZE_MAX);
    done &= give_back(SIZE_MAX);
  }
  gives_back_ = !done;
  if (!done || sweep_is_due() || slots_.has_free_end()) throw std::bad_alloc();
}

}  // namespace ashlar::index::detail
