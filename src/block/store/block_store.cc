#include "block/store/block_store.h"

#include <algorithm>
#include <cinttypes>

#include "ashlar/base/check.h"

namespace ashlar::block::detail {

BlockStore::BlockStore(ManagerOptions options, events::TierId tier, std::string tier_name,
                       std::shared_ptr<BlockFacts> facts, std::unique_ptr<InactivePool> inactive,
                       std::unique_ptr<ResetAllocator> reset)
    : options_(std::move(options)),
      tier_(tier),
      tier_name_(std::move(tier_name)),
      registry_(*options_.registry->entries_),
      slots_(options_.block_count, options_.block_size, options_.keep_tokens, options_.events != nullptr),
      index_(options_.block_count),
      facts_(std::move(facts)),
      follows_registrations_(inactive->follows_registrations()),
      inactive_(std::move(inactive)),
      reset_(std::move(reset)),
      pins_(options_.max_pins != 0 ? options_.max_pins : std::max<std::size_t>(options_.block_count / 4, 1)),
      sorted_(options_.block_count, LargeArray<std::uint32_t>::kUntouched) {
  words = &slots_.word(0);
  const MutexLock lock(mu_);
  for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) reset_->push(BlockId(slot));
}

// The lock of the hash's shard is held. A slot whose entry belongs to that shard, implied or not, is
// registered with a hash of that shard, and stays so under the lock; its hash was stored before its entry.
// Any other slot may change concurrently and is skipped, whatever hash it seems to have.
Entry* BlockStore::find_entry(std::uint64_t mixed, const tokens::SequenceHash& hash) {
  const std::size_t shard = RegistryEntries::shard_number(hash.position());
  Entry* found = nullptr;
  const std::uint32_t slot = index_.find(mixed, [&](std::uint32_t candidate) {
    found = slots_.entry(candidate);
    return found != nullptr && found->shard == shard && slots_.hash(candidate) == hash;
  });
  if (slot == kNone) return nullptr;
  if (is_implied(found)) {
    found = &registry_.spell_out(hash, tier_);
    slots_.set_entry(slot, found);
  }
  return found;
}

std::size_t BlockStore::count_implied(std::uint32_t position) const noexcept {
  const Entry* const implied = implied_entries.of(RegistryEntries::shard_number(position));
  std::size_t count = 0;
  for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) {
    // The entry first, as above.
    if (slots_.entry(slot) == implied && slots_.hash(slot).position() == position) ++count;
  }
  return count;
}

BlockStore::Operation::Operation(BlockStore& store) : store_(store) {
  store_.mu_.lock();
}

BlockStore::Operation::~Operation() {
  if (store_.first_waiter_ != nullptr) store_.wake_waiter_locked();
  const PressureChange pressure = store_.pressure_change_locked();
  // The manager may be destroyed once the lock is free; a thread that runs callbacks keeps the store alive.
  const std::shared_ptr<BlockStore> keep =
      pressure.changed && store_.options_.on_pressure ? store_.shared_from_this() : nullptr;
  store_.mu_.unlock();
  if (keep) store_.options_.on_pressure(pressure.now, pressure.available);
}

BlockStore::PressureChange BlockStore::pressure_change_locked() {
  const Watermarks& marks = options_.watermarks;
  if (marks.high == 0) return {};
  const std::size_t available = available_locked();
  const Pressure before = pressure_.load(std::memory_order_relaxed);
  Pressure now = before;
  if (available < marks.low) now = Pressure::kLow;
  if (available >= marks.high) now = Pressure::kNormal;
  if (now == before) return {};
  // relaxed: a statistic; it publishes nothing.
  pressure_.store(now, std::memory_order_relaxed);
  return {true, now, available};
}

PoolStatus BlockStore::status_locked() const {
  PoolStatus status;
  status.total = options_.block_count;
  status.reset = reset_->size();
  status.inactive = inactive_->size() - held_inactive_;
  status.held_inactive = held_inactive_ + held_aside_;
  status.pinned_inactive = pinned_aside_;
  status.owned = owned_;
  status.quarantined = quarantined_;
  status.waiters = waiters_;
  status.active = status.total - status.reset - status.inactive - status.pinned_inactive -
                  status.held_inactive - status.owned - status.quarantined;
  return status;
}

PoolStatus BlockStore::status() {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  return status_locked();
}

ManagerCounters BlockStore::counters() {
  ManagerCounters counters;
  {
    const MutexLock lock(mu_);
    counters = counters_;
  }
  counters.stagings = stagings_.value();
  counters.match_hashes_requested = match_requested_.value();
  counters.match_blocks_returned = match_returned_.value();
  counters.match_probes = match_probes_.value();
  counters.scan_hashes_requested = scan_requested_.value();
  counters.scan_blocks_returned = scan_returned_.value();
  return counters;
}

void BlockStore::for_each_registered(const std::function<void(const tokens::SequenceHash&, BlockId)>& visit) {
  std::vector<std::pair<tokens::SequenceHash, BlockId>> registered;
  {
    const MutexLock lock(mu_);
    for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) {
      if (SlotWord::state(slots_.word(slot).load(kOrderProbe)) != BlockState::kPrimary) continue;
      registered.emplace_back(slots_.hash(slot), BlockId(slot));
    }
  }
  // Parents before children, in event order.
  std::sort(registered.begin(), registered.end());
  for (const auto& [hash, id] : registered) visit(hash, id);
}

void BlockStore::close() {
  Operation operation(*this);
  end_unwatched_locked();
  const PoolStatus status = status_locked();
  if (status.owned + status.active + status.quarantined + status.waiters != 0) {
    std::array<std::size_t, kBlockStates> in_state{};
    for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) {
      const std::uint64_t word = slots_.word(slot).load(kOrderProbe);
      const bool inactive =
          SlotWord::state(word) == BlockState::kPrimary && slots_.listing[slot] != Listing::kNone;
      if (!inactive) ++in_state[static_cast<std::size_t>(SlotWord::state(word))];
    }
    std::string states;
    for (std::size_t i = 0; i < kBlockStates; ++i) {
      const auto state = static_cast<BlockState>(i);
      if (state == BlockState::kReset || in_state[i] == 0) continue;
      states +=
          (states.empty() ? "" : ", ") + std::to_string(in_state[i]) + " " + std::string(to_string(state));
    }
    ASHLAR_CHECK(false,
                 "the %s block manager was destroyed with %zu blocks outstanding (%s) and %zu waiting "
                 "allocations; drop the guards and settle the fences first",
                 tier_name_.c_str(), status.owned + status.active + status.quarantined, states.c_str(),
                 status.waiters);
  }
  closed_ = true;
  RegistryEntries::Cursor cursor;
  for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) {
    const std::uint64_t word = slots_.word(slot).load(kOrderProbe);
    if (SlotWord::state(word) == BlockState::kDuplicate) {  // withdrawn, and held
      if (Entry* const entry = slots_.entry(slot)) registry_.release(cursor, *entry, operation.retired);
      slots_.set_entry(slot, nullptr);
    }
    if (SlotWord::state(word) != BlockState::kPrimary) continue;
    unregister_locked(slot, HashMix::of(slots_.hash(slot)), cursor, operation.retired);
    slots_.word(slot).store(SlotWord::make(BlockState::kReset, 0, SlotWord::generation(word)), kOrderEvict);
  }
  cursor.release();
  registry_.detach(*this);
  if (options_.events) options_.events->release_claim();
}

void BlockStore::check_invariants() {
  const MutexLock lock(mu_);
  const PoolStatus status = status_locked();
  std::size_t listed = 0, aside = 0, held = 0, reset = 0, quarantined = 0, owned = 0, active = 0;
  std::size_t duplicates = 0, in_rings = 0;
  for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) {
    const std::uint64_t word = slots_.word(slot).load(kOrderProbe);
    const BlockState state = SlotWord::state(word);
    const Listing listing = slots_.listing[slot];
    const std::uint32_t refs = SlotWord::refs(word);
    const bool withdrawn = state == BlockState::kDuplicate && is_withdrawn_locked(slot);
    ASHLAR_CHECK(listing == Listing::kNone || ((state == BlockState::kPrimary || withdrawn) && refs == 0),
                 "slot %u is listed in state %d with %u references", slot, static_cast<int>(state), refs);
    switch (state) {
      case BlockState::kReset:
        ++reset;
        break;
      case BlockState::kQuarantined:
        ++quarantined;
        break;
      case BlockState::kPrimary:
        ASHLAR_CHECK(find_confirmed(slots_.hash(slot)) == slot,
                     "primary %u is not the block that its hash finds", slot);
        ASHLAR_CHECK(slots_.entry(slot) != nullptr, "slot %u is registered without an entry", slot);
        if (!is_implied(slots_.entry(slot))) {
          const Entry& entry = *slots_.entry(slot);
          ASHLAR_CHECK(entry.hash == slots_.hash(slot), "slot %u has another hash's entry", slot);
          ASHLAR_CHECK(entry.presence[tier_.value()].load(std::memory_order_relaxed) >= 1,
                       "slot %u is registered and not present", slot);
        }
        in_rings += check_twins_of_locked(slot);
        if (listing == Listing::kInactive) {
          ASHLAR_CHECK(slots_.holds[slot] != 0 || !has_duplicates_locked(slot),
                       "slot %u is evictable and has duplicates", slot);
          ++(slots_.holds[slot] != 0 ? held : listed);
          ASHLAR_CHECK(slots_.pins[slot] == 0, "slot %u is pinned and evictable", slot);
        } else if (listing == Listing::kHeldAside) {
          ++held;
          ASHLAR_CHECK(slots_.holds[slot] != 0, "slot %u is set aside without a hold", slot);
        } else if (listing == Listing::kPinnedAside) {
          ++aside;
          ASHLAR_CHECK(slots_.pins[slot] != 0, "slot %u is set aside without a pin", slot);
        } else {
          ++active;
          ASHLAR_CHECK(refs != 0, "slot %u has no references and is in no pool", slot);
        }
        break;
      case BlockState::kDuplicate:
        if (withdrawn) {
          ASHLAR_CHECK(find_confirmed(slots_.hash(slot)) != slot, "slot %u is found and has lost its name",
                       slot);
          ASHLAR_CHECK(refs != 0 || listing != Listing::kNone, "slot %u has no references and is in no pool",
                       slot);
          ++(listing == Listing::kPinnedAside ? aside : listing == Listing::kHeldAside ? held : active);
          break;
        }
        ++active;
        ++duplicates;
        ASHLAR_CHECK(refs != 0, "duplicate %u has no references", slot);
        break;
      default:
        ++owned;
        break;
    }
  }
  ASHLAR_CHECK(duplicates == in_rings, "%zu duplicates, %zu of them with their primaries", duplicates,
               in_rings);
  ASHLAR_CHECK(reset == status.reset && listed == status.inactive && aside == status.pinned_inactive &&
                   held == status.held_inactive && quarantined == status.quarantined &&
                   owned == status.owned && active == status.active,
               "pools count %s, slots count reset %zu inactive %zu pinned %zu held %zu quarantined %zu owned "
               "%zu active %zu",
               status.to_string().c_str(), reset, listed, aside, held, quarantined, owned, active);
}

// ---- calls from the guards

std::uint32_t block_size_of(const SlotRef& slot) noexcept {
  return store_of(slot).options().block_size;
}
tokens::SequenceHash hash_of(const SlotRef& slot) noexcept {
  return store_of(slot).slots().hash(slot.id);
}
tokens::PrefixDigest prefix_of(const SlotRef& slot) noexcept {
  return store_of(slot).slots().prefix(slot.id);
}

RegistrationHandle registration_handle_of(const SlotRef& slot) {
  RegistryEntries& registry = store_of(slot).registry();
  RegistryEntries::Cursor cursor;
  Entry* const entry = registry.acquire(cursor, hash_of(slot)).entry;  // found, unless it was withdrawn
  cursor.release();
  return registry.handle(entry);
}

std::uint32_t use_count_of(const SlotRef& slot) noexcept {
  return SlotWord::refs(store_of(slot).slots().word(slot.id).load(kOrderProbe));
}

bool is_duplicate(const SlotRef& slot) noexcept {
  return SlotWord::state(store_of(slot).slots().word(slot.id).load(kOrderProbe)) == BlockState::kDuplicate;
}

void set_reset_on_release(const SlotRef& slot, bool reset) noexcept {
  // relaxed: the caller's own drop (kOrderDrop) comes later and publishes the flag to the thread that settles
  // the slot.
  std::atomic<std::uint8_t>& flags = store_of(slot).slots().flags(slot.id);
  if (reset) {
    flags.fetch_or(SlotTable::kResetOnRelease, std::memory_order_relaxed);
  } else {
    flags.fetch_and(static_cast<std::uint8_t>(~SlotTable::kResetOnRelease), std::memory_order_relaxed);
  }
}

WeakSlot downgrade(const SlotRef& slot) {
  return {store_of(slot).weak_from_this(), hash_of(slot), prefix_of(slot), slot.id};
}

std::optional<SlotRef> upgrade(const WeakSlot& weak) {
  const std::shared_ptr<BlockStore> store = weak.store.lock();
  return store ? store->upgrade(weak) : std::nullopt;
}

}  // namespace ashlar::block::detail
