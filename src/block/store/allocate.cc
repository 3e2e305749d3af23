// Allocation: reset pool first, then the inactive pool, all or nothing.
//
// Taking slots happens in two passes under one hold of the lock. The first pass only collects ids, linked
// through the slots' scratch column, and can be undone; the second evicts the registered ones and hands the
// slots out. Waiting allocations queue; only the first may take slots, and no allocation overtakes the queue.
#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "base/interleaving.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

AllocationRefusal BlockStore::refusal_locked(AllocationRefusal::Reason reason, std::size_t n) const {
  return {reason, n, status_locked()};
}

Result<void, AllocationRefusal> BlockStore::allocate(std::size_t n,
                                                     std::vector<tokens::SequenceHash>* evicted,
                                                     Emitter emit) {
  if (evicted == nullptr && !is_observed()) return try_take(n, nullptr, emit);
  return take_observed(n, evicted, emit,
                       [&](std::vector<EvictedBlock>* noted, Emitter to) { return try_take(n, noted, to); });
}

Result<void, AllocationRefusal> BlockStore::try_take(std::size_t n, std::vector<EvictedBlock>* evicted,
                                                     Emitter emit) {
  interleaving_point("allocate.before_lock");
  Operation operation(*this);
  ASHLAR_CHECK(!closed_, "an allocation from the %s block manager, which was destroyed", tier_name_.c_str());
  expire_pins_locked(operation.retired);
  if (n > options_.block_count) return refusal_locked(AllocationRefusal::Reason::kTooMany, n);
  if (n != 0 && first_waiter_ != nullptr) return refusal_locked(AllocationRefusal::Reason::kQueued, n);
  if (n > available_locked() || !take_locked(n, evicted, operation.retired, emit)) {
    return refusal_locked(AllocationRefusal::Reason::kNoRoom, n);
  }
  return {};
}

Result<void, AllocationRefusal> BlockStore::can_allocate(std::size_t n) {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  if (n > options_.block_count) return refusal_locked(AllocationRefusal::Reason::kTooMany, n);
  if (n != 0 && first_waiter_ != nullptr) return refusal_locked(AllocationRefusal::Reason::kQueued, n);
  if (n > available_locked()) return refusal_locked(AllocationRefusal::Reason::kNoRoom, n);
  return {};
}

Result<void, AllocationRefusal> BlockStore::allocate_until(std::size_t n, Clock::TimePoint deadline,
                                                           std::stop_token stop, Emitter emit) {
  if (!is_observed()) return wait_and_take(n, deadline, stop, nullptr, emit);
  return take_observed(n, nullptr, emit, [&](std::vector<EvictedBlock>* noted, Emitter to) {
    return wait_and_take(n, deadline, stop, noted, to);
  });
}

Result<void, AllocationRefusal> BlockStore::wait_and_take(std::size_t n, Clock::TimePoint deadline,
                                                          const std::stop_token& stop,
                                                          std::vector<EvictedBlock>* evicted, Emitter emit) {
  interleaving_point("allocate.before_lock");
  Waiter self{n, {}, nullptr};
  // Destroyed after the operation: it waits for a call in progress, which takes the lock.
  const std::stop_callback wake(stop, [&] {
    const MutexLock lock(mu_);
    self.condition.notify_one();
  });
  Operation operation(*this);
  if (n > options_.block_count) return refusal_locked(AllocationRefusal::Reason::kTooMany, n);
  if (n == 0) return {};  // needs no blocks, so it does not wait
  (last_waiter_ == nullptr ? first_waiter_ : last_waiter_->next) = &self;
  last_waiter_ = &self;
  ++waiters_;

  Result<void, AllocationRefusal> outcome;
  for (;;) {
    expire_pins_locked(operation.retired);
    // Retired values may hold the blocks we wait for.
    if (destroy_retired_locked(operation.retired)) continue;
    if (first_waiter_ == &self && n <= available_locked()) {
      if (!take_locked(n, evicted, operation.retired, emit)) {
        outcome = refusal_locked(AllocationRefusal::Reason::kNoRoom, n);
      }
      break;
    }
    if (options_.clock->now() >= deadline) {
      outcome = refusal_locked(AllocationRefusal::Reason::kTimedOut, n);
      break;
    }
    if (stop.stop_requested()) {
      outcome = refusal_locked(AllocationRefusal::Reason::kCancelled, n);
      break;
    }
    // An expiring pin frees a block without any call.
    const Clock::TimePoint next_pin = pins_.next_end().value_or(deadline);
    options_.clock->wait_until(self.condition, mu_, std::min(deadline, next_pin));
  }

  // Leave the queue from any position; the end of the operation wakes the new first.
  Waiter* before = nullptr;
  for (Waiter* at = first_waiter_; at != &self; at = at->next) before = at;
  (before == nullptr ? first_waiter_ : before->next) = self.next;
  if (last_waiter_ == &self) last_waiter_ = before;
  --waiters_;
  // The new first must know which pins end next; it was not told while it queued.
  if (first_waiter_ != nullptr) first_waiter_->condition.notify_one();
  return outcome;
}

bool BlockStore::destroy_retired_locked(RetiredExtensions& retired) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  if (retired.empty()) return false;
  mu_.unlock();
  retired.destroy();
  mu_.lock();
  return true;
}

void BlockStore::wake_waiter_locked() {
  if (first_waiter_->n <= available_locked()) first_waiter_->condition.notify_one();
}

bool BlockStore::take_locked(std::size_t n, std::vector<EvictedBlock>* evicted, RetiredExtensions& retired,
                             Emitter emit) {
  // First pass: a linked list of ids, in the order in which they are handed out.
  std::uint32_t first = kNone;
  std::uint32_t last = kNone;
  std::size_t taken = 0;
  std::size_t from_reset = 0;
  std::array<BlockId, kChunk> ids;
  while (taken < n) {
    const std::span<BlockId> room = std::span<BlockId>(ids).first(std::min(kChunk, n - taken));
    std::size_t count = reset_->pop(room);
    const bool evicts = count == 0;
    from_reset += count;
    if (evicts) count = inactive_->pop(room);
    if (count == 0) break;
    for (const BlockId id : room.first(count)) {
      if (evicts && set_aside_if_held_locked(id.value())) continue;
      ++taken;
      (last == kNone ? first : slots_.next_twin[last]) = id.value();
      last = id.value();
      slots_.next_twin[last] = kNone;
    }
  }
  if (taken < n) {
    for (std::uint32_t slot = first; slot != kNone;) {
      const std::uint32_t next = std::exchange(slots_.next_twin[slot], SlotTable::kNoTwin);
      if (from_reset != 0) {
        --from_reset;
        reset_->push(BlockId(slot));
      } else {
        inactive_->insert(BlockId(slot), slots_.hash(slot));
      }
      slot = next;
    }
    return false;
  }
  owned_ += n;
  counters_.allocations += n;
  counters_.allocations_from_reset += from_reset;
  counters_.evictions += n - from_reset;
  emit_taken_locked(first, n, evicted, retired, emit);
  return true;
}

void BlockStore::emit_taken_locked(std::uint32_t first, std::size_t n, std::vector<EvictedBlock>* evicted,
                                   RetiredExtensions& retired, Emitter emit) {
  RegistryEntries::Cursor cursor;
  SlotBuffer<kChunk> out;
  std::uint32_t slot = first;
  for (std::size_t emitted = 0; emitted < n;) {
    const std::size_t count = std::min(kChunk, n - emitted);
    // Prefetch what the evictions need, all at once.
    std::array<std::uint64_t, kChunk> mixed;
    for (std::size_t i = 0; i < count; ++i, slot = slots_.next_twin[slot]) {
      out[i].id = slot;
      mixed[i] = HashMix::of(slots_.hash(slot));  // meaningless for a slot that was not registered
      if (slots_.listing[slot] == Listing::kNone) continue;
      index_.prefetch(mixed[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = take_one_locked(out[i].id, mixed[i], cursor, evicted, retired);
    }
    emit(emitted, {out.data(), count});
    emitted += count;
  }
}

// `mixed` belongs to the slot's hash, if it is registered.
inline SlotRef BlockStore::take_one_locked(std::uint32_t slot, std::uint64_t mixed,
                                           RegistryEntries::Cursor& cursor,
                                           std::vector<EvictedBlock>* evicted, RetiredExtensions& retired) {
  std::atomic<std::uint64_t>& word = slots_.word(slot);
  const std::uint64_t old = word.load(kOrderProbe);
  if (SlotWord::state(old) == BlockState::kPrimary) {
    ASHLAR_DCHECK(SlotWord::refs(old) == 0, "slot %u was evicted with %u references", slot,
                  SlotWord::refs(old));
    slots_.listing[slot] = Listing::kNone;
    if (evicted != nullptr) evicted->push_back({BlockId(slot), slots_.hash(slot)});
    unregister_locked(slot, mixed, cursor, retired);
  }
  const std::uint64_t fresh = SlotWord::make(BlockState::kMutable, 0, SlotWord::generation(old) + 1);
  word.store(fresh, kOrderEvict);
  // relaxed: only the owner reads the flags of an owned slot.
  slots_.flags(slot).store(options_.default_reset_on_release ? SlotTable::kResetOnRelease : 0,
                           std::memory_order_relaxed);
  facts_->begin_life(BlockId(slot));
  return ref(slot, fresh);
}

void BlockStore::unregister_locked(std::uint32_t slot, std::uint64_t mixed, RegistryEntries::Cursor& cursor,
                                   RetiredExtensions& retired) {
  if (options_.events) publish_removed_locked(slot);
  leave_locked(slot, mixed, cursor, retired);
}

void BlockStore::leave_locked(std::uint32_t slot, std::uint64_t mixed, RegistryEntries::Cursor& cursor,
                              RetiredExtensions& retired) {
  registry_.release_block(cursor, slots_.hash(slot), tier_, retired, [&] {
    index_.erase(mixed, slot);
    Entry* const entry = slots_.entry(slot);
    slots_.set_entry(slot, nullptr);
    return entry;
  });
}

std::size_t BlockStore::reset_inactive() {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  RegistryEntries::Cursor cursor;
  std::array<BlockId, kChunk> ids;
  std::size_t total = 0;
  while (const std::size_t count = inactive_->pop(ids)) {
    for (const BlockId id : std::span(ids).first(count)) {
      if (set_aside_if_held_locked(id.value())) continue;
      ++total;
      slots_.listing[id.value()] = Listing::kNone;
      unregister_locked(id.value(), HashMix::of(slots_.hash(id.value())), cursor, operation.retired);
      cursor.release();  // user-supplied code runs under the store's lock alone
      to_reset_pool_locked(id.value());
    }
  }
  return total;
}

void BlockStore::to_reset_pool_locked(std::uint32_t slot) {
  std::atomic<std::uint64_t>& word = slots_.word(slot);
  word.store(SlotWord::make(BlockState::kReset, 0, SlotWord::generation(word.load(kOrderProbe))),
             kOrderEvict);
  reset_->push(BlockId(slot));
}

std::vector<tokens::SequenceHash> BlockStore::next_victims(std::size_t n) {
  std::vector<BlockId> ids(std::min<std::size_t>(n, options_.block_count));
  std::vector<tokens::SequenceHash> hashes;
  hashes.reserve(ids.size());
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  ids.resize(inactive_->peek(ids));
  for (const BlockId id : ids) hashes.push_back(slots_.hash(id.value()));
  return hashes;
}

}  // namespace ashlar::block::detail
