// Pins: a pinned block without references stays out of the inactive pool until its last pin ends. The next
// operation that looks at the pools notices pins that end by time.
#include "block/store/block_store.h"

namespace ashlar::block::detail {

Result<PinRef> BlockStore::pin_locked(std::uint32_t slot, Clock::Duration ttl) {
  if (ttl <= Clock::Duration::zero()) {
    return make_error(ErrorCode::kInvalidArgument, "a pin of %lld ns; its time must be positive",
                      static_cast<long long>(ttl.count()));
  }
  const Clock::TimePoint now = options_.clock->now();
  const Clock::TimePoint end = ttl > Clock::TimePoint::max() - now ? Clock::TimePoint::max() : now + ttl;
  if (slots_.pins[slot] == UINT16_MAX) {
    return make_error(ErrorCode::kCapacity, "block %u is pinned %u times already", slot,
                      unsigned{UINT16_MAX});
  }
  const auto key = pins_.add(slot, end);
  if (!key) {
    return make_error(ErrorCode::kCapacity, "all %zu pins are taken; unpin something, or raise max_pins",
                      pins_.capacity());
  }
  ++slots_.pins[slot];
  // A waiting allocation sleeps until the earliest pin it knew of ends; this one may end sooner.
  if (first_waiter_ != nullptr) first_waiter_->condition.notify_one();
  if (slots_.listing[slot] == Listing::kInactive) {
    inactive_->remove(BlockId(slot));
    if (slots_.holds[slot] != 0) --held_inactive_;
    slots_.listing[slot] = Listing::kPinnedAside;
    ++pinned_aside_;
  } else if (slots_.listing[slot] == Listing::kHeldAside) {
    --held_aside_;
    slots_.listing[slot] = Listing::kPinnedAside;
    ++pinned_aside_;
  }
  return PinRef{weak_from_this(), key->record, key->serial};
}

Result<PinRef> BlockStore::pin(const tokens::SequenceHash& hash, Clock::Duration ttl) {
  try {
    Operation operation(*this);
    expire_pins_locked(operation.retired);
    const std::uint32_t slot = find_confirmed(hash);
    if (slot == kNone) {
      return make_error(ErrorCode::kNotFound, "no block of hash %s is registered in %s",
                        hash.to_string().c_str(), tier_name_.c_str());
    }
    return pin_locked(slot, ttl);
  } catch (const std::bad_alloc&) {
    return out_of_memory_error();
  }
}

Result<PinRef> BlockStore::pin(const SlotRef& slot, Clock::Duration ttl) {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  // The primary is what stays cached.
  const std::uint32_t primary = find_confirmed(slots_.hash(slot.id));
  if (primary == kNone) {
    return make_error(ErrorCode::kNotFound, "block %u has lost its name: the work that wrote it has failed",
                      slot.id);
  }
  return pin_locked(primary, ttl);
}

void BlockStore::pin_ended_locked(std::uint32_t slot, RetiredExtensions& retired) {
  if (--slots_.pins[slot] != 0 || slots_.listing[slot] != Listing::kPinnedAside) return;
  --pinned_aside_;
  slots_.listing[slot] = Listing::kNone;
  RegistryEntries::Cursor cursor;
  settle_locked(slot, cursor, retired);
}

void BlockStore::unpin(const PinTable::Key& key) {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  if (closed_) return;
  if (const auto slot = pins_.remove(key)) pin_ended_locked(*slot, operation.retired);
}

bool BlockStore::is_pinned(const PinTable::Key& key) {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  return !closed_ && pins_.slot_of(key).has_value();
}

void BlockStore::expire_pins_locked(RetiredExtensions& retired) {
  if (unwatched_ != kNone) end_unwatched_locked();
  if (pins_.size() == 0 || closed_) return;
  const Clock::TimePoint now = options_.clock->now();
  while (const auto slot = pins_.remove_ended(now)) pin_ended_locked(*slot, retired);
}

Result<PinRef> pin(const SlotRef& slot, Clock::Duration ttl) {
  return store_of(slot).pin(slot, ttl);
}

void unpin(const PinRef& pin) noexcept {
  if (const auto store = pin.store.lock()) store->unpin({pin.record, pin.serial});
}

bool is_pinned(const PinRef& pin) noexcept {
  const auto store = pin.store.lock();
  return store && store->is_pinned({pin.record, pin.serial});
}

}  // namespace ashlar::block::detail
