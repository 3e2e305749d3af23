// SlotTable: the state of each slot, as parallel arrays.
//
// Three kinds of columns, by the threads that may touch them:
//   atomic      word, hash, prefix, flags, entry: any thread, with the orders of slot_ref.h
//   the owner   tokens, ancestry, partial: the only owner of the slot, or (reading) a holder of a reference
//   the lock    next_twin, previous_twin, listing, pins, holds: under the store's lock
//
// A sequence has neighbouring ids, so the words of its slots share cache lines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/fence.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"
#include "base/large_array.h"
#include "block/registry/registry_entries.h"
#include "block/store/slot_word.h"

namespace ashlar::block::detail {

// The tokens of a Partial block and the work in flight on them.
struct PartialState {
  SequenceStart start;
  std::vector<tokens::Token> tokens;
  std::uint32_t computed = 0;
  std::uint32_t generation = 0;  // of the life that the tokens belong to
  std::optional<Fence> fence;    // while in flight
};

// What listeners hear of a block besides its hash.
struct Ancestry {
  tokens::SequenceHash parent;
  tokens::SequenceHash root;
  tokens::SaltFingerprint salt;
  std::uint64_t local = 0;
  std::uint32_t metadata = 0;  // of a registered block: any thread, by load_metadata() and store_metadata()
  std::uint16_t location = 0;
  std::uint16_t group = 0;
  bool has_parent = false;
  bool has_root = false;
  bool has_local = false;

  // relaxed: the number stands for itself.
  std::uint32_t load_metadata() const noexcept {
    return std::atomic_ref(const_cast<std::uint32_t&>(metadata)).load(std::memory_order_relaxed);
  }
  void store_metadata(std::uint32_t value) noexcept {
    std::atomic_ref(metadata).store(value, std::memory_order_relaxed);
  }
};

// Where an unreferenced primary is.
enum class Listing : std::uint8_t { kNone, kInactive, kPinnedAside, kHeldAside };

class SlotTable {
 public:
  // Bits of flags().
  static constexpr std::uint8_t kResetOnRelease = 1;
  static constexpr std::uint8_t kWithdrawn = 2;  // registered, and lost its name while in use

  SlotTable(std::uint32_t slots, std::uint32_t block_size, bool keep_tokens, bool keep_ancestry)
      : next_twin(slots, 0),
        previous_twin(slots, 0),
        listing(slots, Listing::kNone),
        pins(slots, 0),
        holds(slots, 0),
        partial(slots),
        ancestry(keep_ancestry ? slots : 0),
        words_(slots),
        hashes_(slots),
        flags_(slots),
        entries_(slots),
        has_tokens_(keep_tokens ? slots : 0, 0),
        tokens_(keep_tokens ? std::size_t{slots} * block_size : 0, LargeArray<tokens::Token>::kUntouched),
        block_size_(block_size) {}

  std::atomic<std::uint64_t>& word(std::uint32_t slot) noexcept { return words_[slot]; }
  const std::atomic<std::uint64_t>& word(std::uint32_t slot) const noexcept { return words_[slot]; }
  std::atomic<std::uint8_t>& flags(std::uint32_t slot) noexcept { return flags_[slot]; }

  // The registry entry of a primary, implied until requested; null in every other state. acquire, release: an
  // entry may be materialised while others refer to the block, and the hash is stored before it.
  Entry* entry(std::uint32_t slot) const noexcept { return entries_[slot].load(std::memory_order_acquire); }
  void set_entry(std::uint32_t slot, Entry* entry) noexcept {
    entries_[slot].store(entry, std::memory_order_release);
  }

  tokens::SequenceHash hash(std::uint32_t slot) const noexcept {
    return tokens::SequenceHash::from_bits(hashes_[slot].hi.load(kOrderProbe),
                                           hashes_[slot].lo.load(kOrderProbe));
  }
  // The digest of all tokens that the hash stands for; unknown when the block was registered by name alone.
  tokens::PrefixDigest prefix(std::uint32_t slot) const noexcept {
    return tokens::PrefixDigest::from_bits(hashes_[slot].prefix_hi.load(kOrderProbe),
                                           hashes_[slot].prefix_lo.load(kOrderProbe));
  }
  void set_hash(std::uint32_t slot, const tokens::SequenceHash& hash,
                const tokens::PrefixDigest& prefix) noexcept {
    hashes_[slot].hi.store(hash.hi(), kOrderProbe);
    hashes_[slot].lo.store(hash.lo(), kOrderProbe);
    hashes_[slot].prefix_hi.store(prefix.hi(), kOrderProbe);
    hashes_[slot].prefix_lo.store(prefix.lo(), kOrderProbe);
  }
  // Whether there is such a slot, and it seems to be the primary of this hash: a hint, as the index gives.
  bool has_primary(std::uint32_t slot, const tokens::SequenceHash& wanted) const noexcept {
    return slot < hashes_.size() && hash(slot) == wanted &&
           SlotWord::state(words_[slot].load(kOrderProbe)) == BlockState::kPrimary;
  }
  // Whether the slot has this hash, with no known difference in tokens.
  bool is_named(std::uint32_t slot, const tokens::SequenceHash& hash_wanted,
                const tokens::PrefixDigest& prefix_wanted) const noexcept {
    return hash(slot) == hash_wanted && prefix(slot).agrees_with(prefix_wanted);
  }
  void prefetch(std::uint32_t slot) const noexcept {
    __builtin_prefetch(&words_[slot], 1);
    __builtin_prefetch(&hashes_[slot]);
  }

  // Keeps the tokens of a completed block, if the table keeps any.
  void set_tokens(std::uint32_t slot, std::span<const tokens::Token> tokens) noexcept {
    if (tokens_.empty()) return;
    std::memcpy(&tokens_[std::size_t{slot} * block_size_], tokens.data(), tokens.size_bytes());
    has_tokens_[slot] = 1;
  }
  void forget_tokens(std::uint32_t slot) noexcept {
    if (!tokens_.empty()) has_tokens_[slot] = 0;
  }
  // Requires: has_tokens(slot).
  std::span<const tokens::Token> tokens(std::uint32_t slot) const noexcept {
    return {&tokens_[std::size_t{slot} * block_size_], block_size_};
  }
  bool has_tokens(std::uint32_t slot) const noexcept { return !tokens_.empty() && has_tokens_[slot] != 0; }

  // `to` has the content of `from`: copies the tokens and prefix that `to` lacks. Requires: no thread reads
  // the tokens of `to`.
  void hand_on_tokens(std::uint32_t from, std::uint32_t to) noexcept {
    if (has_tokens(from) && !has_tokens(to)) set_tokens(to, tokens(from));
    if (!prefix(to).is_known()) set_hash(to, hash(to), prefix(from));
  }

  // Salts are known where ancestry is kept.
  bool has_salt(std::uint32_t slot) const noexcept {
    return !ancestry.empty() && ancestry[slot].salt != tokens::SaltFingerprint();
  }
  bool have_other_salts(std::uint32_t a, std::uint32_t b) const noexcept {
    return has_salt(a) && has_salt(b) && ancestry[a].salt != ancestry[b].salt;
  }

  // `to` has the content of `from`: copies what `to` lacks of its ancestry. Requires: no thread reads that of
  // `to`.
  void hand_on_ancestry(std::uint32_t from, std::uint32_t to) noexcept {
    if (ancestry.empty()) return;
    const Ancestry& known = ancestry[from];
    Ancestry& lacking = ancestry[to];
    if (known.has_parent && !lacking.has_parent) lacking.parent = known.parent;
    if (known.has_root && !lacking.has_root) lacking.root = known.root;
    if (known.has_local && !lacking.has_local) lacking.local = known.local;
    lacking.has_parent |= known.has_parent;
    lacking.has_root |= known.has_root;
    lacking.has_local |= known.has_local;
    if (lacking.salt == tokens::SaltFingerprint()) lacking.salt = known.salt;
    if (lacking.load_metadata() == 0) lacking.store_metadata(known.load_metadata());
  }

  // The blocks of one hash form a ring: the primary, then its duplicates in registration order. A primary
  // without duplicates is in no ring, and neither is a withdrawn block: its next_twin is kNoTwin, and its
  // previous_twin is meaningless. In
  // unregistered slots next_twin is scratch space of the transitions.
  static constexpr std::uint32_t kNoTwin = 0xFFFF'FFFFu;
  std::vector<std::uint32_t> next_twin;
  std::vector<std::uint32_t> previous_twin;
  std::vector<Listing> listing;
  std::vector<std::uint16_t> pins;
  std::vector<std::uint16_t> holds;
  std::vector<std::unique_ptr<PartialState>>
      partial;                     // created on first use, then kept for the slot's next life
  std::vector<Ancestry> ancestry;  // empty without listeners

 private:
  struct HashCell {
    std::atomic<std::uint64_t> hi{0};
    std::atomic<std::uint64_t> lo{0};
    std::atomic<std::uint64_t> prefix_hi{0};
    std::atomic<std::uint64_t> prefix_lo{0};
  };
  LargeArray<std::atomic<std::uint64_t>> words_;
  LargeArray<HashCell> hashes_;
  LargeArray<std::atomic<std::uint8_t>> flags_;
  LargeArray<std::atomic<Entry*>> entries_;
  std::vector<std::uint8_t> has_tokens_;
  LargeArray<tokens::Token> tokens_;
  std::uint32_t block_size_;
};

}  // namespace ashlar::block::detail
