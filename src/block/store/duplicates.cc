// Duplicates: several blocks of one hash.
//
// The primary is the block that the hash finds: the one registered last. A duplicate serves only the holders
// of its references, so a hash has several blocks only while several are in use:
//   - a candidate takes the primary's place; the old primary becomes a duplicate, or is emptied if it was
//     inactive;
//   - a primary without references gives way to the duplicate before it, and is emptied;
//   - a duplicate without references is emptied.
// Pins and holds are promises about one block: while one lasts, its block stays primary, and gives way when
// it ends. A candidate whose KV is still to be written stays behind a primary in use. A candidate that is
// replaced while its step still writes it is in quarantine until that has ended (writers.h).
//
// The primary changes under the store's lock. A lock-free reader sees the index lead to one of the two slots;
// if that slot is not a primary in use, it retries under the lock. The hash stays present: no event is
// published.
#include <utility>

#include "ashlar/base/check.h"
#include "block/store/block_store.h"

namespace ashlar::block::detail {

SlotRef BlockStore::register_twin_locked(const SlotRef& candidate, std::uint32_t primary, OnTwin on_twin,
                                         bool written, RegistryEntries::Cursor& cursor) {
  const std::uint32_t slot = candidate.id;
  cursor.release();  // user-supplied code runs under the store's lock alone
  if (options_.duplicates == DuplicatePolicy::kReject && on_twin == OnTwin::kFollowPolicy) {
    const std::uint64_t primary_word = add_reference_locked(primary);
    ++counters_.deduplications;
    if (written) {
      slots_.word(slot).store(SlotWord::make(BlockState::kQuarantined, 0, candidate.generation), kOrderEvict);
      ++quarantined_;
      ++counters_.quarantines;
    } else {
      to_reset_pool_locked(slot);
    }
    return ref(primary, primary_word);
  }
  ++counters_.duplicates;
  // A match compares the tokens of the block it finds, and events say its ancestry; a candidate registered by
  // name alone gets both here.
  slots_.hand_on_tokens(primary, slot);
  slots_.hand_on_ancestry(primary, slot);
  std::atomic<std::uint64_t>& word = slots_.word(slot);
  const bool inactive = slots_.listing[primary] == Listing::kInactive;
  const bool promised = slots_.pins[primary] != 0 || slots_.holds[primary] != 0;
  if (promised || (on_twin == OnTwin::kKeepOwn && !inactive)) {
    join_twins_locked(primary, slot);
    word.store(SlotWord::make(BlockState::kDuplicate, 1, candidate.generation), kOrderPublish);
    return candidate;
  }
  if (inactive) {
    inactive_->remove(BlockId(primary));
    slots_.listing[primary] = Listing::kNone;
    slots_.next_twin[slot] = SlotTable::kNoTwin;
  } else {
    join_twins_locked(primary, slot);
  }
  pass_place_locked(primary, slot, cursor);
  word.store(SlotWord::make(BlockState::kPrimary, 1, candidate.generation), kOrderPublish);
  if (inactive) {
    to_reset_pool_locked(primary);
  } else {
    // If its last drop is not settled yet, settling will find a duplicate.
    slots_.word(primary).fetch_sub(SlotWord::kBecomePrimary, kOrderRevive);
  }
  return candidate;
}

void BlockStore::join_twins_locked(std::uint32_t primary, std::uint32_t duplicate) noexcept {
  const std::uint32_t last = has_duplicates_locked(primary) ? slots_.previous_twin[primary] : primary;
  slots_.next_twin[last] = duplicate;
  slots_.previous_twin[duplicate] = last;
  slots_.next_twin[duplicate] = primary;
  slots_.previous_twin[primary] = duplicate;
}

void BlockStore::leave_twins_locked(std::uint32_t slot) noexcept {
  const std::uint32_t next = slots_.next_twin[slot];
  const std::uint32_t previous = slots_.previous_twin[slot];
  slots_.next_twin[previous] = next == previous ? SlotTable::kNoTwin : next;
  slots_.previous_twin[next] = previous;
}

void BlockStore::pass_place_locked(std::uint32_t from, std::uint32_t to, RegistryEntries::Cursor& cursor) {
  const tokens::SequenceHash hash = slots_.hash(from);
  facts_->pass_on(BlockId(from), BlockId(to));
  registry_.pass_block(cursor, hash, [&] {
    index_.replace(HashMix::of(hash), from, to);
    slots_.set_entry(to, slots_.entry(from));
    slots_.set_entry(from, nullptr);
  });
  cursor.release();  // user-supplied code runs under the store's lock alone
  if (!follows_registrations_) return;
  inactive_->registered(BlockId(to), hash);
  inactive_->unregistered(BlockId(from));
}

// Metadata is set by hash, hence of the primary.
void BlockStore::pass_metadata_locked(std::uint32_t from, std::uint32_t to) noexcept {
  if (!slots_.ancestry.empty()) slots_.ancestry[to].store_metadata(slots_.ancestry[from].load_metadata());
}

void BlockStore::give_way_locked(std::uint32_t primary, RegistryEntries::Cursor& cursor) {
  const std::uint32_t heir = slots_.next_twin[primary];
  leave_twins_locked(primary);
  pass_place_locked(primary, heir, cursor);
  pass_metadata_locked(primary, heir);
  // If the heir's own last drop is not settled yet, settling will find a primary.
  slots_.word(heir).fetch_add(SlotWord::kBecomePrimary, kOrderPublish);
  to_reset_pool_locked(primary);
}

std::size_t BlockStore::check_twins_of_locked(std::uint32_t primary) const {
  std::size_t count = 0;
  std::uint32_t before = primary;
  for (std::uint32_t slot = slots_.next_twin[primary]; slot != SlotTable::kNoTwin && slot != primary;
       ++count) {
    ASHLAR_CHECK(SlotWord::state(slots_.word(slot).load(kOrderProbe)) == BlockState::kDuplicate &&
                     slots_.hash(slot) == slots_.hash(primary) && slots_.previous_twin[slot] == before,
                 "slot %u is not a duplicate of slot %u", slot, primary);
    before = std::exchange(slot, slots_.next_twin[slot]);
  }
  return count;
}

void BlockStore::drop_duplicate_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor) {
  cursor.release();
  leave_twins_locked(slot);
  // The hash was in use until now.
  const std::uint32_t primary = find_confirmed(slots_.hash(slot));
  if (slots_.listing[primary] == Listing::kInactive) inactive_->touch(BlockId(primary));
  to_reset_pool_locked(slot);
}

}  // namespace ashlar::block::detail
