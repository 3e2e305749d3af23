// Matching: from hashes to references.
//
// The walk goes in batches (PrefetchingLookup), so that cache misses overlap. A block in use is taken without
// the lock: read the word, compare hash and prefix digest, add one reference with a compare-exchange. Every
// other case (the block has no references, the slot began another life, two hashes share a tag, other tokens)
// is settled under the lock. A block with kMaxReferences is a miss. A hash without an index entry is a miss:
// entries never move, so a present hash is never overlooked.
#include <algorithm>

#include "base/interleaving.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

namespace {

// One more reference to a primary that is in use and has this name: is_named(). Returns the word afterwards,
// or 0.
template <class IsNamed>
inline std::uint64_t try_acquire(SlotTable& slots, std::uint32_t slot, IsNamed&& is_named) noexcept {
  std::atomic<std::uint64_t>& word = slots.word(slot);
  std::uint64_t seen = word.load(kOrderMatch);
  do {
    if (!SlotWord::is_primary_in_use(seen)) return 0;
    // The name of the life that `seen` belongs to: if the exchange succeeds, that life never ended in
    // between.
    if (!is_named()) return 0;
  } while (!word.compare_exchange_weak(seen, seen + SlotWord::kOneRef, kOrderMatch));
  return seen + SlotWord::kOneRef;
}

}  // namespace

std::uint64_t BlockStore::add_reference_locked(std::uint32_t slot) {
  const std::uint64_t old = slots_.word(slot).fetch_add(SlotWord::kOneRef, kOrderRevive);
  if (SlotWord::refs(old) == 0) {
    // It had no references: either its last drop is settled and it is in a pool, or that drop will find it in
    // use.
    switch (slots_.listing[slot]) {
      case Listing::kInactive:
        inactive_->remove(BlockId(slot));
        if (slots_.holds[slot] != 0) --held_inactive_;
        facts_->acquire(BlockId(slot));
        ++counters_.revivals;
        break;
      case Listing::kPinnedAside:
        --pinned_aside_;
        facts_->acquire(BlockId(slot));
        ++counters_.revivals;
        break;
      case Listing::kHeldAside:
        --held_aside_;
        facts_->acquire(BlockId(slot));
        ++counters_.revivals;
        break;
      case Listing::kNone:
        break;
    }
    slots_.listing[slot] = Listing::kNone;
  }
  return old + SlotWord::kOneRef;
}

std::optional<SlotRef> BlockStore::acquire_locked(const tokens::SequenceHash& hash,
                                                  const tokens::PrefixDigest& prefix, std::uint32_t hint) {
  const bool confirmed = hint != kNone && slots_.hash(hint) == hash &&
                         SlotWord::state(slots_.word(hint).load(kOrderProbe)) == BlockState::kPrimary;
  const std::uint32_t slot = confirmed ? hint : find_confirmed(hash);
  if (slot == kNone || !slots_.prefix(slot).agrees_with(prefix) || !has_room_for_references(slot, 1)) {
    return std::nullopt;
  }
  return ref(slot, add_reference_locked(slot));
}

std::size_t BlockStore::match_run(std::span<const tokens::SequenceHash> hashes,
                                  std::span<const tokens::PrefixDigest> prefixes,
                                  const std::uint32_t* candidates, SlotRef* found,
                                  const std::uint64_t* mixed) {
  std::size_t hits = 0;
  const TinyLfu* const tracker = mixed != nullptr ? registry_.tracker() : nullptr;
  const auto acquire_each = [&](auto&& is_named) {
    for (; hits < hashes.size(); ++hits) {
      const std::uint32_t slot = candidates[hits];
      if (slot == kNone) return;
      if (tracker != nullptr) tracker->prefetch_mixed(mixed[hits]);
      const std::uint64_t word = try_acquire(slots_, slot, [&] { return is_named(slot); });
      if (word == 0) return;
      found[hits] = ref(slot, word);
    }
  };
  if (prefixes.empty()) {
    acquire_each([&](std::uint32_t slot) { return slots_.hash(slot) == hashes[hits]; });
  } else {
    acquire_each([&](std::uint32_t slot) { return slots_.is_named(slot, hashes[hits], prefixes[hits]); });
  }
  if (hits == hashes.size() || candidates[hits] == kNone) return hits;

  interleaving_point("match.before_lock");
  const Operation operation(*this);
  for (; hits < hashes.size(); ++hits) {
    if (tracker != nullptr && candidates[hits] != kNone) tracker->prefetch_mixed(mixed[hits]);
    const tokens::PrefixDigest prefix = prefixes.empty() ? tokens::PrefixDigest() : prefixes[hits];
    const std::optional<SlotRef> slot = acquire_locked(hashes[hits], prefix, candidates[hits]);
    if (!slot) break;
    found[hits] = *slot;
  }
  return hits;
}

void BlockStore::hand_over(std::size_t first, std::span<const SlotRef> found, Emitter emit) {
  try {
    emit(first, found);
  } catch (...) {
    Dropper dropper;
    for (std::size_t i = found.size(); i-- > 0;) dropper.drop(found[i]);
    throw;
  }
}

std::size_t BlockStore::match_prefix(std::span<const tokens::SequenceHash> hashes,
                                     std::span<const tokens::PrefixDigest> prefixes, Emitter emit) {
  UsedElsewhere elsewhere(*this);
  std::size_t done = 0;
  // One probe of the index settles a prompt never seen before.
  const std::uint32_t first = hashes.empty() ? kNone : index_.candidate(HashMix::of(hashes.front()));
  if (first != kNone) {
    PrefetchingLookup candidates(index_, slots_, hashes, first);
    SlotBuffer<PrefetchingLookup::kBatchSize> found;
    while (done < hashes.size()) {
      const PrefetchingLookup::Batch& batch = candidates.next();
      const std::size_t hits = match_run(hashes.subspan(done, batch.size),
                                         prefixes.empty() ? prefixes : prefixes.subspan(done, batch.size),
                                         batch.slots.data(), found.data(), batch.mixed.data());
      used({batch.mixed.data(), hits}, found.data(), elsewhere);
      hand_over(done, found.first(hits), emit);
      done += hits;
      if (hits < batch.size) break;
    }
  }
  match_requested_.add(hashes.size());
  match_returned_.add(done);
  return done;
}

bool BlockStore::holds(const tokens::SequenceHash& hash, const tokens::PrefixDigest& prefix) noexcept {
  const std::uint64_t mixed = HashMix::of(hash);
  std::uint32_t slot = index_.candidate(mixed);
  if (slot == kNone) return false;
  if (SlotWord::state(slots_.word(slot).load(kOrderMatch)) == BlockState::kPrimary &&
      slots_.is_named(slot, hash, prefix))
    return true;
  // Two hashes share a tag, other tokens, or the hash is moving to another block.
  const MutexLock lock(mu_);
  slot = find_confirmed(mixed, hash);
  return slot != kNone && slots_.prefix(slot).agrees_with(prefix);
}

Result<void, AllocationRefusal> BlockStore::can_allocate_after_match(
    std::span<const tokens::SequenceHash> hashes, std::span<const tokens::PrefixDigest> prefixes,
    std::size_t blocks) {
  Operation operation(*this);
  expire_pins_locked(operation.retired);
  std::size_t hits = 0;
  std::size_t revived = 0;  // of these, those that an allocation could have taken
  for (; hits < hashes.size(); ++hits) {
    const std::uint32_t slot = find_confirmed(hashes[hits]);
    if (slot == kNone || !slots_.prefix(slot).agrees_with(prefixes[hits])) break;
    if (slots_.listing[slot] == Listing::kInactive && slots_.holds[slot] == 0) ++revived;
  }
  const std::size_t needed = blocks - hits;
  if (needed > options_.block_count) return refusal_locked(AllocationRefusal::Reason::kTooMany, needed);
  if (needed != 0 && first_waiter_ != nullptr)
    return refusal_locked(AllocationRefusal::Reason::kQueued, needed);
  if (needed + revived > available_locked())
    return refusal_locked(AllocationRefusal::Reason::kNoRoom, needed);
  return {};
}

std::size_t BlockStore::match_prefix(std::span<const tokens::TokenBlock> blocks, Emitter emit) {
  UsedElsewhere elsewhere(*this);
  SlotBuffer<PrefetchingLookup::kBatchSize> found;
  std::array<tokens::SequenceHash, PrefetchingLookup::kBatchSize> hashes;
  std::array<tokens::PrefixDigest, PrefetchingLookup::kBatchSize> prefixes;
  std::size_t done = 0;
  bool miss = false;
  while (done < blocks.size() && !miss) {
    const std::size_t room = std::min(hashes.size(), blocks.size() - done);
    std::size_t n = 0;
    // A block of another size holds other tokens, whatever its name.
    for (; n < room && blocks[done + n].block_size() == options_.block_size; ++n) {
      hashes[n] = blocks[done + n].sequence_hash();
      prefixes[n] = prefix_of(blocks[done + n]);
    }
    if (n == 0) break;
    PrefetchingLookup candidates(index_, slots_, {hashes.data(), n});
    const PrefetchingLookup::Batch& batch = candidates.next();
    const std::size_t hits = match_run({hashes.data(), n}, {prefixes.data(), n}, batch.slots.data(),
                                       found.data(), batch.mixed.data());
    used({batch.mixed.data(), hits}, found.data(), elsewhere);
    hand_over(done, {found.data(), hits}, emit);
    done += hits;
    miss = hits < room;
  }
  match_requested_.add(blocks.size());
  match_returned_.add(done);
  return done;
}

template <class Visit>
void BlockStore::match_each(std::span<const tokens::SequenceHash> hashes, const TinyLfu* tracker,
                            Visit&& visit) {
  PrefetchingLookup candidates(index_, slots_, hashes);
  for (std::size_t done = 0; done < hashes.size();) {
    const PrefetchingLookup::Batch& batch = candidates.next();
    for (std::size_t i = 0; i < batch.size && tracker != nullptr; ++i)
      tracker->prefetch_mixed(batch.mixed[i]);
    for (std::size_t i = 0; i < batch.size; ++i) visit(done + i, batch.mixed[i], batch.slots[i]);
    done += batch.size;
  }
}

std::size_t BlockStore::match_scattered(std::span<const tokens::SequenceHash> hashes, Emitter emit) {
  UsedElsewhere elsewhere(*this);
  std::size_t hits = 0;
  match_each(hashes, registry_.tracker(), [&](std::size_t i, std::uint64_t mixed, std::uint32_t candidate) {
    SlotRef found;
    if (match_run({&hashes[i], 1}, {}, &candidate, &found) == 0) return;
    used({&mixed, 1}, &found, elsewhere);
    hand_over(i, {&found, 1}, emit);
    ++hits;
  });
  match_requested_.add(hashes.size());
  match_returned_.add(hits);
  return hits;
}

void BlockStore::scan(std::span<const tokens::SequenceHash> hashes, bool touch, Emitter emit) {
  UsedElsewhere elsewhere(*this);
  std::vector<tokens::SequenceHash> distinct(hashes.begin(), hashes.end());
  std::sort(distinct.begin(), distinct.end());
  std::vector<bool> seen(hashes.size(), false);
  std::size_t hits = 0;
  TinyLfu* tracker = touch ? registry_.tracker() : nullptr;
  match_each(hashes, tracker, [&](std::size_t i, std::uint64_t mixed, std::uint32_t candidate) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), hashes[i]) - distinct.begin();
    if (seen[static_cast<std::size_t>(at)]) return;
    seen[static_cast<std::size_t>(at)] = true;
    SlotRef found;
    if (match_run({&hashes[i], 1}, {}, &candidate, &found) == 0) return;
    if (touch) used({&mixed, 1}, &found, elsewhere);
    hand_over(i, {&found, 1}, emit);
    ++hits;
  });
  scan_requested_.add(hashes.size());
  scan_returned_.add(hits);
}

std::optional<SlotRef> BlockStore::upgrade(const WeakSlot& weak) {
  std::atomic<std::uint64_t>& word = slots_.word(weak.id);
  std::uint64_t seen = word.load(kOrderMatch);
  // As in try_acquire(): the name of the life that was seen is compared before each exchange.
  while (SlotWord::refs(seen) != 0 && SlotWord::refs(seen) < kMaxReferences &&
         (SlotWord::state(seen) == BlockState::kPrimary || SlotWord::state(seen) == BlockState::kDuplicate) &&
         slots_.is_named(weak.id, weak.hash, weak.prefix) &&
         // relaxed: the word published it.
         (slots_.flags(weak.id).load(std::memory_order_relaxed) & SlotTable::kWithdrawn) == 0) {
    if (word.compare_exchange_weak(seen, seen + SlotWord::kOneRef, kOrderMatch)) {
      return ref(weak.id, seen);
    }
  }
  interleaving_point("upgrade.before_lock");
  const Operation operation(*this);
  if (closed_) return std::nullopt;
  return acquire_locked(weak.hash, weak.prefix, weak.id);
}

// A block that became a duplicate after the match no longer has an entry of its own. The hash stays
// registered, and keeps its entry, while one of its blocks has a reference; a withdrawn block keeps the entry
// itself, unless it was implied.
Entry& BlockStore::entry_of(std::uint32_t slot) noexcept {
  if (Entry* const entry = slots_.entry(slot); entry != nullptr) [[likely]]
    return *entry;
  const MutexLock lock(mu_);
  const std::uint32_t holder = is_withdrawn_locked(slot) ? slot : find_confirmed(slots_.hash(slot));
  Entry* const entry = slots_.entry(holder);
  return entry != nullptr ? *entry : *implied_entries.of(0);
}

void BlockStore::used(std::span<const std::uint64_t> mixed, const SlotRef* found,
                      UsedElsewhere& elsewhere) noexcept {
  if (mixed.empty()) return;
  if (TinyLfu* tracker = registry_.tracker()) tracker->touch_mixed(mixed);
  if (facts_->keeps_hits()) {
    for (std::size_t i = 0; i < mixed.size(); ++i) facts_->set_hit(BlockId(found[i].id));
  }
  if (options_.accesses) {
    options_.accesses->note(tier_, mixed.size(), [&](std::size_t i) { return slots_.hash(found[i].id); });
  }
  if (registry_.has_several_sources()) elsewhere.note({found, mixed.size()});
  if (!registry_.has_touch_callbacks()) return;
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    Entry& entry = entry_of(found[i].id);
    if (!is_implied(&entry)) registry_.run_touch_callbacks(entry);
  }
}

}  // namespace ashlar::block::detail
