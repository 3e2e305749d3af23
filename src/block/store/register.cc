// Registration: complete blocks become findable.
//
// A batch is checked as a whole before any of it is registered, under one hold of the lock, so a refusal
// changes nothing. The check notes in the candidate's scratch column which block its hash already has. Two
// blocks of one batch can share a hash only when positions do not rise; only then are the notes looked up
// again.
//
// Then all new hashes enter the registry and the index, which may need memory and can be undone: the owners
// still own the words, so a match that finds a slot too early takes the lock. The words change last and need
// no memory.
#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "base/interleaving.h"
#include "block/store/block_store.h"
#include "block/store/thread_scratch.h"

namespace ashlar::block::detail {
namespace {

Error collision_error(const tokens::SequenceHash& hash) {
  return make_error(
      ErrorCode::kCorruption,
      "hash %s is registered with other tokens: a hash collision. The block was not registered; use the "
      "keyed 128-bit hash scheme where tenants may choose tokens to collide",
      hash.to_string().c_str());
}

Error other_salt_error(const tokens::SequenceHash& hash) {
  return make_error(
      ErrorCode::kCorruption,
      "hash %s is registered with another salt: two hashes collide. The block was not registered",
      hash.to_string().c_str());
}

Error crowded_error(const tokens::SequenceHash& hash) {
  return make_error(ErrorCode::kCapacity,
                    "the block of hash %s has %u references, as many as a block may have; drop some of them",
                    hash.to_string().c_str(), kMaxReferences);
}

}  // namespace

Result<void> BlockStore::check_candidates_locked(std::size_t n, Filler fill, bool& ascending) {
  SlotBuffer<kChunk> chunk;
  ascending = true;
  std::int64_t position = -1;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::span<SlotRef> slots = chunk.first(std::min(kChunk, n - first));
    fill(first, slots);
    std::array<std::uint64_t, kChunk> mixed;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const SlotRef& slot = slots[i];
      if (slot.store != this) {
        return make_error(ErrorCode::kInvalidArgument,
                          "block %u belongs to another %s manager; register it there", slot.id,
                          tier_name_.c_str());
      }
      mixed[i] = HashMix::of(slots_.hash(slot.id));
      index_.prefetch(mixed[i]);
      if (registry_.tracker() != nullptr) registry_.tracker()->prefetch_mixed(mixed[i]);
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const SlotRef& slot = slots[i];
      const tokens::SequenceHash hash = slots_.hash(slot.id);
      ascending = ascending && std::int64_t{hash.position()} > position;
      position = hash.position();
      const std::uint32_t existing = find_confirmed(mixed[i], hash);
      slots_.next_twin[slot.id] = existing;
      if (existing != kNone && !slots_.prefix(existing).agrees_with(slots_.prefix(slot.id))) {
        return collision_error(hash);
      }
      if (existing != kNone && slots_.have_other_salts(existing, slot.id)) return other_salt_error(hash);
      // Replacing a candidate by its twin adds a reference, and every block of the batch might be replaced.
      if (existing != kNone && options_.duplicates == DuplicatePolicy::kReject &&
          !has_room_for_references(existing, n)) {
        return crowded_error(hash);
      }
    }
  }
  return {};
}

Result<void> BlockStore::check_twins_locked(std::size_t n, Filler fill) {
  SlotBuffer<kChunk> chunk;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::span<SlotRef> slots = chunk.first(std::min(kChunk, n - first));
    fill(first, slots);
    for (std::size_t i = 0; i < slots.size(); ++i) sorted_[first + i] = slots[i].id;
  }
  std::uint32_t* const ids = &sorted_[0];
  std::sort(ids, ids + n, [&](std::uint32_t x, std::uint32_t y) { return slots_.hash(x) < slots_.hash(y); });
  // Among twins, the first known prefix and salt decide for all; unknown ones agree with any.
  std::uint32_t speaker = ids[0];
  for (std::size_t i = 1; i < n; ++i) {
    if (slots_.hash(speaker) != slots_.hash(ids[i]) || !slots_.prefix(speaker).is_known()) {
      speaker = ids[i];
    } else if (!slots_.prefix(speaker).agrees_with(slots_.prefix(ids[i]))) {
      return collision_error(slots_.hash(ids[i]));
    }
  }
  speaker = ids[0];
  for (std::size_t i = 1; i < n; ++i) {
    if (slots_.hash(speaker) != slots_.hash(ids[i]) || !slots_.has_salt(speaker)) {
      speaker = ids[i];
    } else if (slots_.have_other_salts(speaker, ids[i])) {
      return other_salt_error(slots_.hash(ids[i]));
    }
  }
  return {};
}

void BlockStore::enter_locked(std::size_t n, Filler fill, bool ascending, RetiredExtensions& retired) {
  RegistryEntries::Cursor cursor;
  SlotBuffer<kChunk> in;
  std::array<std::uint64_t, kChunk> created;
  std::size_t entered = 0;
  try {
    while (entered < n) {
      const std::span<SlotRef> slots = in.first(std::min(kChunk, n - entered));
      fill(entered, slots);
      std::size_t fresh = 0;
      for (const SlotRef& candidate : slots) {
        const std::uint32_t slot = candidate.id;
        const tokens::SequenceHash hash = slots_.hash(slot);
        if (!ascending) slots_.next_twin[slot] = find_confirmed(hash);
        if (slots_.next_twin[slot] == kNone) {
          const std::uint64_t mixed = HashMix::of(hash);
          const auto [entry, is_new] = registry_.acquire_block(cursor, hash, tier_, *this);
          slots_.set_entry(slot, entry);
          index_.insert(mixed, slot);
          if (is_new) created[fresh++] = mixed;
        }
        ++entered;
      }
      if (TinyLfu* tracker = registry_.tracker(); tracker != nullptr && fresh != 0) {
        tracker->touch_mixed({created.data(), fresh});
      }
    }
  } catch (...) {
    for (std::size_t first = 0; first < entered; first += kChunk) {
      const std::span<SlotRef> slots = in.first(std::min(kChunk, entered - first));
      fill(first, slots);
      for (const SlotRef& slot : slots) {
        if (slots_.next_twin[slot.id] == kNone)
          leave_locked(slot.id, HashMix::of(slots_.hash(slot.id)), cursor, retired);
      }
    }
    throw;
  }
}

Result<void> BlockStore::register_unobserved(std::size_t n, Filler fill, Emitter emit, bool tentative,
                                             OnTwin on_twin, Writers* writers) {
  interleaving_point("register.before_lock");
  Operation operation(*this);
  bool ascending = true;
  Result<void> checked = check_candidates_locked(n, fill, ascending);
  if (checked && !ascending && n > 1) checked = check_twins_locked(n, fill);
  if (!checked) {
    if (checked.error().code() == ErrorCode::kCorruption && !tentative) ++counters_.collisions;
    return checked;
  }
  enter_locked(n, fill, ascending, operation.retired);
  SlotBuffer<kChunk> in;
  SlotBuffer<kChunk> out;
  std::array<std::uint32_t, kChunk> primaries;
  RegistryEntries::Cursor cursor;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t count = std::min(kChunk, n - first);
    fill(first, in.first(count));
    std::size_t firsts = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t slot = in[i].id;
      if (std::uint32_t existing = slots_.next_twin[slot]; existing != kNone) {
        if (!ascending) {
          // The block of the hash may belong to this batch, and may have been replaced since.
          existing = find_confirmed(slots_.hash(slot));
          cursor.release();
          if (follows_registrations_) announce_locked(std::span(primaries).first(std::exchange(firsts, 0)));
        }
        const bool written = writers != nullptr && writers->write(first + i);
        out[i] = register_twin_locked(in[i], existing, on_twin, written, cursor);
        continue;
      }
      primaries[firsts++] = slot;
      // After the index: a caller that gets the block from a match can find it again.
      slots_.word(slot).store(SlotWord::make(BlockState::kPrimary, 1, in[i].generation), kOrderPublish);
      if (options_.events) options_.events->append(event_locked(events::KvEventKind::kStored, slot));
      out[i] = in[i];
    }
    if (follows_registrations_) {
      cursor.release();  // user-supplied code runs under the store's lock alone
      announce_locked(std::span(primaries).first(firsts));
    }
    for (std::size_t i = 0; writers != nullptr && i < count; ++i) {
      if (!writers->write(first + i)) continue;
      if (out[i].id == in[i].id) add_reference(in[i]);  // else the candidate is in quarantine
      writers->add(first + i, in[i]);
    }
    emit(first, {out.data(), count});
  }
  owned_ -= n;
  counters_.registrations += n;
  return {};
}

Result<void> BlockStore::register_slots(std::size_t n, Filler fill, Emitter emit, Describe describe,
                                        bool tentative, OnTwin on_twin, Writers* writers) {
  if (writers != nullptr && writers->empty()) writers = nullptr;
  if (!is_observed()) {
    ASHLAR_RETURN_IF_ERROR(register_unobserved(n, fill, emit, tentative, on_twin, writers));
    if (writers != nullptr) writers->keep();
    return {};
  }
  ThreadScratch<RegisteredBlock> scratch;
  std::vector<RegisteredBlock>& blocks = *scratch;
  describe_candidates(n, fill, describe, blocks);
  for (BlockObserver* const observer : observers_) observer->registering(blocks);
  ASHLAR_RETURN_IF_ERROR(register_unobserved(
      n, fill,
      [&](std::size_t first, std::span<const SlotRef> slots) {
        for (std::size_t i = 0; i < slots.size(); ++i) {
          ASHLAR_DCHECK(slots_.hash(slots[i].id) == blocks[first + i].identity.hash,
                        "block %u was announced under another hash than it has", slots[i].id);
          blocks[first + i].id = BlockId(slots[i].id);
        }
        emit(first, slots);
      },
      tentative, on_twin, writers));
  for (BlockObserver* const observer : observers_) observer->registered(blocks);
  if (writers != nullptr) writers->keep();
  return {};
}

// The caller owns the slots.
void BlockStore::annotate(std::size_t n, Filler fill, const RegistrationOptions& options) {
  std::optional<tokens::SequenceHash> before = options.parent;
  SlotBuffer<kChunk> chunk;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::span<SlotRef> slots = chunk.first(std::min(kChunk, n - first));
    fill(first, slots);
    for (const SlotRef& slot : slots) {
      if (slot.store != this) return;  // the registration is refused
      const tokens::SequenceHash hash = slots_.hash(slot.id);
      Ancestry& ancestry = slots_.ancestry[slot.id];
      if (!ancestry.has_parent && before && before->can_precede(hash)) {
        ancestry.has_parent = true;
        ancestry.parent = *before;
        facts_->set_parent(BlockId(slot.id), before);
      }
      if (ancestry.salt == tokens::SaltFingerprint()) ancestry.salt = options.salt;
      if (ancestry.metadata == 0) ancestry.metadata = options.metadata;
      before = hash;
    }
  }
}

Result<void> BlockStore::register_blocks(std::size_t n, Filler fill, Emitter emit,
                                         const RegistrationOptions& options) {
  if (options.after.size() > 1 && options.after.size() != n)
    return make_error(ErrorCode::kInvalidArgument, "%zu preconditions for %zu blocks; give one, or one each",
                      options.after.size(), n);
  ASHLAR_RETURN_IF_ERROR(options.retention.validate());
  return unless_out_of_memory([&] {
    if (!slots_.ancestry.empty()) annotate(n, fill, options);
    const bool keeps = options.retention != BlockRetention() && facts_->keeps_retentions();
    const auto emit_kept = [&](std::size_t first, std::span<const SlotRef> slots) {
      if (keeps)
        for (const SlotRef& slot : slots) facts_->set_retention(BlockId(slot.id), options.retention);
      emit(first, slots);
    };
    Writers writers(*this, n);
    for (std::size_t i = 0; i < options.after.size(); ++i)
      writers.expect(i, options.after.size() == 1 ? n : 1, options.after[i]);
    const auto describe = [&](std::size_t i, RegisteredBlock& block) {
      block.retention = options.retention;
      if (!options.after.empty()) block.after = options.after[options.after.size() == 1 ? 0 : i];
      block.copied = options.copied;
    };
    return register_slots(n, fill, emit_kept, describe, false, OnTwin::kFollowPolicy, &writers);
  });
}

void BlockStore::announce_locked(std::span<const std::uint32_t> slots) {
  for (const std::uint32_t slot : slots) inactive_->registered(BlockId(slot), slots_.hash(slot));
}

events::KvEvent BlockStore::event_locked(events::KvEventKind kind, std::uint32_t slot) const {
  const Ancestry& ancestry = slots_.ancestry[slot];
  events::KvEvent event;
  event.kind = kind;
  event.tier = tier_;
  event.hash = slots_.hash(slot);
  event.block = slot;
  event.bytes = options_.block_bytes;
  event.location = ancestry.location;
  event.group = ancestry.group;
  event.metadata = ancestry.metadata;
  // The true parent, whether or not this tier holds it: a listener needs it to place the block.
  if (ancestry.has_parent) event.set_parent(ancestry.parent);
  if (ancestry.has_root) event.set_prefix_group(ancestry.root);
  if (ancestry.has_local) event.set_local(tokens::LocalHash(ancestry.local));
  return event;
}

// Of a registered block tokens are read and written under the lock alone.
void BlockStore::restore_tokens(std::span<const SlotRef> slots,
                                std::span<const tokens::PrefixDigest> prefixes,
                                std::span<const tokens::Token> tokens) {
  const std::size_t size = options_.block_size;
  ASHLAR_DCHECK(prefixes.size() == slots.size() && tokens.size() == slots.size() * size,
                "%zu digests and %zu tokens for %zu blocks", prefixes.size(), tokens.size(), slots.size());
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::uint32_t slot = slots[i].id;
    if (slots_.has_tokens(slot) || !prefixes[i].is_known() || slots_.prefix(slot) != prefixes[i]) continue;
    slots_.set_tokens(slot, tokens.subspan(i * size, size));
  }
}

void BlockStore::restore_tokens(std::span<const tokens::TokenBlock> blocks) {
  if (!options_.keep_tokens) return;
  const MutexLock lock(mu_);
  for (const tokens::TokenBlock& block : blocks) {
    const std::uint32_t slot = find_confirmed(block.sequence_hash());
    const tokens::PrefixDigest prefix = prefix_of(block);
    if (slot == kNone || slots_.has_tokens(slot) || block.tokens().size() != options_.block_size) continue;
    if (prefix.is_known() && slots_.prefix(slot) == prefix) slots_.set_tokens(slot, block.tokens());
  }
}

std::optional<std::vector<tokens::Token>> BlockStore::tokens_of(const tokens::SequenceHash& hash) {
  const MutexLock lock(mu_);
  const std::uint32_t slot = find_confirmed(hash);
  if (slot == kNone || !slots_.has_tokens(slot)) return std::nullopt;
  const std::span<const tokens::Token> tokens = slots_.tokens(slot);
  return std::vector<tokens::Token>(tokens.begin(), tokens.end());
}

std::uint64_t BlockStore::list_stored(std::vector<events::KvEvent>& out) {
  ASHLAR_CHECK(options_.events != nullptr, "a manager without an event log keeps nothing to list");
  const std::size_t before = out.size();
  std::uint64_t next = 0;
  try {
    const MutexLock lock(mu_);
    next = options_.events->next_sequence();
    for (std::uint32_t slot = 0; slot < options_.block_count; ++slot) {
      if (SlotWord::state(slots_.word(slot).load(kOrderProbe)) == BlockState::kPrimary)
        out.push_back(event_locked(events::KvEventKind::kStored, slot));
    }
  } catch (...) {
    out.resize(before);
    throw;
  }
  // Parents stand before their children.
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(),
            [](const events::KvEvent& x, const events::KvEvent& y) { return x.hash < y.hash; });
  return next;
}

void BlockStore::publish_removed_locked(std::uint32_t slot) {
  options_.events->append(event_locked(events::KvEventKind::kRemoved, slot));
}

}  // namespace ashlar::block::detail
