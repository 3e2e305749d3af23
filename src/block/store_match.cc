// Matching: from hashes to references.
//
// Hashes are taken in chunks so that the cache misses of one chunk overlap: first all index buckets, then all slots.
// A block in use is taken without the lock: probe the index, look at the word, count one reference with a
// compare-exchange, confirm the hash. Anything else the probe meets (nobody refers to the block, the slot has moved on
// to another life, two hashes with one tag) is settled under the lock, which sees the truth. An index without an entry
// is a miss: entries never move, so a hash that is there is never overlooked.
#include <algorithm>

#include "ashlar/base/interleaving.h"
#include "block/block_store.h"

namespace ashlar::block::detail {

std::optional<std::uint64_t> BlockStore::try_acquire(std::uint32_t slot, const tokens::SequenceHash& hash) noexcept {
  std::atomic<std::uint64_t>& word = slots_.word(slot);
  std::uint64_t seen = word.load(kOrderProbe);
  do {
    if (SlotWord::state(seen) != BlockState::kPrimary || SlotWord::refs(seen) == 0) return std::nullopt;
    if (slots_.hash(slot) != hash) return std::nullopt;
  } while (!word.compare_exchange_weak(seen, seen + SlotWord::kOneRef, kOrderMatch, kOrderProbe));
  // The slot may have changed lives between the look at its hash and the count; now it cannot.
  if (slots_.hash(slot) == hash) return seen + SlotWord::kOneRef;
  const SlotRef wrong = ref(slot, seen);
  drop_references({&wrong, 1});
  return std::nullopt;
}

std::uint64_t BlockStore::add_reference_locked(std::uint32_t slot) {
  std::atomic<std::uint64_t>& word = slots_.word(slot);
  std::uint64_t seen = word.load(kOrderProbe);
  while (!word.compare_exchange_weak(seen, seen + SlotWord::kOneRef, kOrderRevive, kOrderProbe)) {
  }
  if (SlotWord::refs(seen) == 0) {
    // Nobody referred to it; if its last drop has been settled it is in a pool, else that drop will find it in use.
    switch (slots_.listing[slot]) {
      case Listing::kInactive:
        inactive_->remove(BlockId(slot));
        ++counters_.revivals;
        break;
      case Listing::kPinnedAside:
        --pinned_aside_;
        ++counters_.revivals;
        break;
      case Listing::kNone: break;
    }
    slots_.listing[slot] = Listing::kNone;
  }
  return seen + SlotWord::kOneRef;
}

std::optional<SlotRef> BlockStore::acquire_locked(const tokens::SequenceHash& hash) {
  const std::uint32_t slot = find_confirmed(hash);
  if (slot == kNone) return std::nullopt;
  return ref(slot, add_reference_locked(slot));
}

std::size_t BlockStore::match_chunk(std::span<const tokens::SequenceHash> hashes, SlotRef* found) {
  std::array<std::uint32_t, kChunk> candidates;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    candidates[i] = index_.candidate(hashes[i]);
    if (candidates[i] != kNone) slots_.prefetch(candidates[i]);
  }
  std::size_t hits = 0;
  for (; hits < hashes.size(); ++hits) {
    if (candidates[hits] == kNone) return hits;
    const auto word = try_acquire(candidates[hits], hashes[hits]);
    if (!word) break;
    found[hits] = ref(candidates[hits], *word);
  }
  if (hits == hashes.size()) return hits;

  interleaving_point("match.before_lock");
  const Operation operation(*this);
  for (; hits < hashes.size(); ++hits) {
    const std::optional<SlotRef> slot = acquire_locked(hashes[hits]);
    if (!slot) break;
    found[hits] = *slot;
  }
  return hits;
}

std::optional<SlotRef> BlockStore::match_one(const tokens::SequenceHash& hash) {
  SlotRef found;
  return match_chunk({&hash, 1}, &found) == 1 ? std::optional(found) : std::nullopt;
}

std::size_t BlockStore::match_prefix(std::span<const tokens::SequenceHash> hashes, Emitter emit) {
  std::array<SlotRef, kChunk> found;
  for (const auto& hash : hashes.first(std::min(kChunk, hashes.size()))) index_.prefetch(hash);
  std::size_t done = 0;
  while (done < hashes.size()) {
    const std::size_t n = std::min(kChunk, hashes.size() - done);
    const std::size_t ahead = std::min(kChunk, hashes.size() - done - n);
    for (const auto& hash : hashes.subspan(done + n, ahead)) index_.prefetch(hash);
    const std::size_t hits = match_chunk(hashes.subspan(done, n), found.data());
    emit(done, {found.data(), hits});
    run_touch_callbacks({found.data(), hits});
    done += hits;
    if (hits < n) break;
  }
  touched(hashes.first(done));
  match_requested_.add(hashes.size());
  match_returned_.add(done);
  return done;
}

std::size_t BlockStore::match_verified(std::span<const tokens::TokenBlock> blocks, Emitter emit) {
  std::array<SlotRef, kChunk> found;
  std::array<tokens::SequenceHash, kChunk> hashes;
  std::size_t done = 0;
  bool miss = false;
  while (done < blocks.size() && !miss) {
    const std::size_t n = std::min(kChunk, blocks.size() - done);
    for (std::size_t i = 0; i < n; ++i) {
      hashes[i] = blocks[done + i].sequence_hash();
      index_.prefetch(hashes[i]);
    }
    const std::size_t hits = match_chunk({hashes.data(), n}, found.data());
    std::size_t agreed = 0;
    while (agreed < hits && blocks[done + agreed].block_size() == options_.block_size &&
           slots_.tokens_agree(found[agreed].id, blocks[done + agreed].tokens())) {
      ++agreed;
    }
    drop_references({found.data() + agreed, hits - agreed});
    emit(done, {found.data(), agreed});
    run_touch_callbacks({found.data(), agreed});
    touched({hashes.data(), agreed});
    done += agreed;
    miss = agreed < n;
  }
  match_requested_.add(blocks.size());
  match_returned_.add(done);
  return done;
}

std::size_t BlockStore::match_scattered(std::span<const tokens::SequenceHash> hashes, Emitter emit) {
  std::size_t hits = 0;
  for (std::size_t first = 0; first < hashes.size(); first += kChunk) {
    const auto chunk = hashes.subspan(first, std::min(kChunk, hashes.size() - first));
    for (const auto& hash : chunk) index_.prefetch(hash);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const std::optional<SlotRef> slot = match_one(chunk[i]);
      if (!slot) continue;
      emit(first + i, {&*slot, 1});
      run_touch_callbacks({&*slot, 1});
      touched({&chunk[i], 1});
      ++hits;
    }
  }
  match_requested_.add(hashes.size());
  match_returned_.add(hits);
  return hits;
}

void BlockStore::scan(std::span<const tokens::SequenceHash> hashes, bool touch, Emitter emit) {
  std::vector<tokens::SequenceHash> distinct(hashes.begin(), hashes.end());
  std::sort(distinct.begin(), distinct.end());
  std::vector<bool> seen(hashes.size(), false);
  std::size_t hits = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), hashes[i]) - distinct.begin();
    if (seen[static_cast<std::size_t>(at)]) continue;
    seen[static_cast<std::size_t>(at)] = true;
    const std::optional<SlotRef> slot = match_one(hashes[i]);
    if (!slot) continue;
    emit(i, {&*slot, 1});
    if (touch) {
      run_touch_callbacks({&*slot, 1});
      touched({&hashes[i], 1});
    }
    ++hits;
  }
  scan_requested_.add(hashes.size());
  scan_returned_.add(hits);
}

std::optional<SlotRef> BlockStore::upgrade(const WeakSlot& weak) {
  std::atomic<std::uint64_t>& word = slots_.word(weak.id);
  std::uint64_t seen = word.load(kOrderProbe);
  // The generation is the slot's identity: the same life, the same hash.
  while (SlotWord::generation(seen) == weak.generation && SlotWord::refs(seen) != 0 &&
         (SlotWord::state(seen) == BlockState::kPrimary || SlotWord::state(seen) == BlockState::kDuplicate)) {
    if (word.compare_exchange_weak(seen, seen + SlotWord::kOneRef, kOrderMatch, kOrderProbe)) {
      return ref(weak.id, seen);
    }
  }
  interleaving_point("upgrade.before_lock");
  const Operation operation(*this);
  if (closed_) return std::nullopt;
  return acquire_locked(weak.hash);
}

void BlockStore::touched(std::span<const tokens::SequenceHash> hashes) {
  if (TinyLfu* tracker = registry_.tracker(); tracker != nullptr && !hashes.empty()) tracker->touch_all(hashes);
}

void BlockStore::run_touch_callbacks(std::span<const SlotRef> slots) {
  if (!registry_.has_touch_callbacks()) return;
  for (const SlotRef& slot : slots) registry_.run_touch_callbacks(*slots_.entry[slot.id]);
}

}  // namespace ashlar::block::detail
