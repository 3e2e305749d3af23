// Release: what happens when guards are destroyed.
//
// The count drops without the lock. The thread that takes it to zero settles the slot under the lock; by then
// another thread may have revived or settled it, so settling inspects the slot and does only the remaining
// work.
#include <array>
#include <new>
#include <utility>

#include "ashlar/base/check.h"
#include "base/interleaving.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

void settle(std::span<const SlotRef> idle) noexcept {
  store_of(idle.front()).settle(idle);
}

void BlockStore::settle(std::span<const SlotRef> idle) noexcept {
  interleaving_point("drop.before_settle");
  Operation operation(*this);
  RegistryEntries::Cursor cursor;
  // Most become inactive: runs of those go to the backend in one call.
  std::array<BlockId, kChunk> inactive;
  std::size_t count = 0;
  for (const SlotRef& slot : idle) {
    const bool common = becomes_inactive_locked(slot.id);
    if (count != 0 && (!common || count == inactive.size())) {
      list_inactive_locked({inactive.data(), std::exchange(count, 0)}, cursor);
    }
    if (common) {
      slots_.listing[slot.id] = Listing::kInactive;
      inactive[count++] = BlockId(slot.id);
    } else {
      settle_locked(slot.id, cursor, operation.retired);
    }
  }
  if (count != 0) list_inactive_locked({inactive.data(), count}, cursor);
}

void BlockStore::list_inactive_locked(std::span<const BlockId> ids, RegistryEntries::Cursor& cursor) {
  cursor.release();  // user-supplied code runs under the store's lock alone
  inactive_->insert_all(ids, [&](BlockId id) { return slots_.hash(id.value()); });
}

bool BlockStore::becomes_inactive_locked(std::uint32_t slot) noexcept {
  const std::uint64_t word = slots_.word(slot).load(kOrderSettle);
  // relaxed: kOrderSettle made the last writer's store visible.
  return SlotWord::state(word) == BlockState::kPrimary && SlotWord::refs(word) == 0 &&
         slots_.listing[slot] == Listing::kNone && slots_.pins[slot] == 0 && slots_.holds[slot] == 0 &&
         !has_duplicates_locked(slot) &&
         (slots_.flags(slot).load(std::memory_order_relaxed) & SlotTable::kResetOnRelease) == 0;
}

void BlockStore::settle_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor,
                               RetiredExtensions& retired) {
  const std::uint64_t word = slots_.word(slot).load(kOrderSettle);
  if (SlotWord::refs(word) != 0 || slots_.listing[slot] != Listing::kNone) {
    ++counters_.late_releases;
    return;
  }
  switch (SlotWord::state(word)) {
    case BlockState::kPrimary:
      // relaxed: kOrderSettle made the last writer's store visible.
      if (slots_.pins[slot] != 0) {
        slots_.listing[slot] = Listing::kPinnedAside;
        ++pinned_aside_;
      } else if (has_duplicates_locked(slot) && slots_.holds[slot] == 0) {
        give_way_locked(slot, cursor);
      } else if ((slots_.flags(slot).load(std::memory_order_relaxed) & SlotTable::kResetOnRelease) != 0) {
        if (slots_.holds[slot] != 0) {
          slots_.listing[slot] = Listing::kHeldAside;
          ++held_aside_;
          return;
        }
        unregister_locked(slot, HashMix::of(slots_.hash(slot)), cursor, retired);
        cursor.release();  // user-supplied code runs under the store's lock alone
        if (follows_registrations_) inactive_->unregistered(BlockId(slot));
        to_reset_pool_locked(slot);
      } else {
        slots_.listing[slot] = Listing::kInactive;
        cursor.release();
        inactive_->insert(BlockId(slot), slots_.hash(slot));
        if (slots_.holds[slot] != 0) ++held_inactive_;
      }
      return;
    case BlockState::kDuplicate:
      if (is_withdrawn_locked(slot)) return drop_withdrawn_locked(slot, cursor, retired);
      drop_duplicate_locked(slot, cursor);
      return;
    default:
      // A late thread: the slot was settled, evicted and reused by another thread.
      ++counters_.late_releases;
      return;
  }
}

void drop_owned(const SlotRef& slot) noexcept {
  store_of(slot).drop_owned(slot);
}

void BlockStore::drop_owned(const SlotRef& slot) noexcept {
  const std::uint64_t word = slots_.word(slot.id).load(kOrderProbe);
  ASHLAR_DCHECK(SlotWord::generation(word) == slot.generation, "slot %u: a guard outlived its block",
                slot.id);
  std::optional<Fence> fence;
  if (slots_.partial[slot.id]) fence.swap(slots_.partial[slot.id]->fence);
  const bool in_flight = SlotWord::state(word) == BlockState::kInflight && fence && !fence->ended();
  {
    const Operation operation(*this);
    --owned_;
    if (in_flight) {
      slots_.word(slot.id).store(SlotWord::make(BlockState::kQuarantined, 0, slot.generation), kOrderEvict);
      ++quarantined_;
      ++counters_.quarantines;
    } else {
      to_reset_pool_locked(slot.id);
    }
  }
  if (in_flight) watch_quarantine(slot.id, *std::move(fence));
}

void BlockStore::watch_quarantine(std::uint32_t slot, Fence fence) noexcept {
  try {
    fence.on_ended([self = shared_from_this(), slot] { self->end_quarantine(slot); });
  } catch (const std::bad_alloc&) {
    // No callback will come: the next call that looks at the pools polls the fence.
    const Operation operation(*this);
    slots_.partial[slot]->fence = std::move(fence);
    slots_.next_twin[slot] = std::exchange(unwatched_, slot);
  }
}

void BlockStore::end_unwatched_locked() noexcept {
  for (std::uint32_t* link = &unwatched_; *link != kNone;) {
    const std::uint32_t slot = *link;
    std::optional<Fence>& fence = slots_.partial[slot]->fence;
    if (!fence->ended()) {
      link = &slots_.next_twin[slot];
      continue;
    }
    *link = slots_.next_twin[slot];
    fence.reset();
    --quarantined_;
    to_reset_pool_locked(slot);
  }
}

void BlockStore::drop_owned(std::span<const SlotRef> slots) noexcept {
  const Operation operation(*this);
  owned_ -= slots.size();
  for (const SlotRef& slot : slots) to_reset_pool_locked(slot.id);
}

void BlockStore::end_quarantine(std::uint32_t slot) {
  const Operation operation(*this);
  --quarantined_;
  to_reset_pool_locked(slot);
}

void BlockStore::drop_reference_after(const SlotRef& slot, const Fence& fence) {
  fence.on_ended([self = shared_from_this(), slot] { drop_reference(slot); });
}

void drop_reference_after(const SlotRef& slot, const Fence& fence) {
  store_of(slot).drop_reference_after(slot, fence);
}

}  // namespace ashlar::block::detail
