// Holds: a held block without references keeps its place in the inactive pool. Only when the backend chooses
// it as a victim is it set aside, and the last hold then evicts it.
#include "block/store/block_store.h"

namespace ashlar::block::detail {

std::optional<HoldRef> BlockStore::try_hold(const tokens::SequenceHash& hash, NotHeld* why) {
  try {
    Operation operation(*this);
    expire_pins_locked(operation.retired);
    const std::uint32_t slot = find_confirmed(hash);
    if (slot == kNone || slots_.holds[slot] == UINT16_MAX) {
      *why = slot == kNone ? NotHeld::kAbsent : NotHeld::kTooOften;
      return std::nullopt;
    }
    if (slots_.holds[slot]++ == 0 && slots_.listing[slot] == Listing::kInactive) ++held_inactive_;
    return HoldRef{weak_from_this(), hash, slot};
  } catch (const std::bad_alloc&) {
    *why = NotHeld::kNoMemory;
    return std::nullopt;
  }
}

Result<HoldRef> BlockStore::hold(const tokens::SequenceHash& hash) {
  NotHeld why = NotHeld::kAbsent;
  if (std::optional<HoldRef> held = try_hold(hash, &why)) return *std::move(held);
  switch (why) {
    case NotHeld::kAbsent:
      return make_error(ErrorCode::kNotFound, "no block of hash %s is registered in %s",
                        hash.to_string().c_str(), tier_name_.c_str());
    case NotHeld::kTooOften:
      return make_error(ErrorCode::kCapacity, "the block of hash %s is held %u times already",
                        hash.to_string().c_str(), unsigned{UINT16_MAX});
    case NotHeld::kNoMemory:
      break;
  }
  return out_of_memory_error();
}

void BlockStore::end_hold(std::uint32_t slot) noexcept {
  std::optional<EvictedBlock> gone;
  end_hold(slot, gone);
  if (!gone) return;
  for (BlockObserver* const observer : observers_) observer->evicted({&*gone, 1});
}

void BlockStore::end_hold(std::uint32_t slot, std::optional<EvictedBlock>& gone) noexcept {
  Operation operation(*this);
  if (closed_ || --slots_.holds[slot] != 0) return;
  RegistryEntries::Cursor cursor;
  if (slots_.listing[slot] == Listing::kInactive) {
    --held_inactive_;
    if (!has_duplicates_locked(slot)) return;
    inactive_->remove(BlockId(slot));
    slots_.listing[slot] = Listing::kNone;
    give_way_locked(slot, cursor);
  } else if (slots_.listing[slot] == Listing::kHeldAside) {
    --held_aside_;
    slots_.listing[slot] = Listing::kNone;
    if (is_withdrawn_locked(slot)) return drop_withdrawn_locked(slot, cursor, operation.retired);
    if (has_duplicates_locked(slot)) return give_way_locked(slot, cursor);
    gone = EvictedBlock{BlockId(slot), slots_.hash(slot)};
    unregister_locked(slot, HashMix::of(slots_.hash(slot)), cursor, operation.retired);
    cursor.release();  // user-supplied code runs under the store's lock alone
    if (follows_registrations_) inactive_->unregistered(BlockId(slot));
    to_reset_pool_locked(slot);
    ++counters_.evictions;
  }
}

// The backend chose the slot as a victim. True when the slot is held, and was set aside.
bool BlockStore::set_aside_if_held_locked(std::uint32_t slot) {
  if (slots_.holds[slot] == 0) return false;
  --held_inactive_;
  ++held_aside_;
  slots_.listing[slot] = Listing::kHeldAside;
  // It is still registered, even if the backend took its removal for an eviction.
  if (follows_registrations_) inactive_->registered(BlockId(slot), slots_.hash(slot));
  return true;
}

void end_hold(const HoldRef& hold) noexcept {
  if (const auto store = hold.store.lock()) store->end_hold(hold.slot);
}

}  // namespace ashlar::block::detail
