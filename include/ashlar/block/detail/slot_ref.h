// What the guards are made of: a reference to a slot, and two holders that return it when destroyed.
//
// Guards are these holders plus a tier and a state in their type. Everything here calls into the store's
// compiled code; library users do not call it.
//
// Thread safety: thread-compatible, as the guards are. The store behind them is thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

// Memory orders of the slot word: the one 64-bit atomic {refs, state, generation} each slot has.
//
// The code and the explorer in tests/block/model/ take their orders from here, and an order is changed only
// together with a green run of that explorer. docs/slot_word.md has the transitions and the table of
// partners.
//
// The store mutex orders everything under it; these constants say what the lock-free side adds. Accesses
// under the mutex without a constant here (stores of the hash and of index entries, loads of them in the slow
// path, in register and in evict) are relaxed: the mutex is their partner, and kOrderPublish covers the hash.

// Store of {Primary, refs = 1} or {Duplicate, refs = 1} by register, and the fetch_add that makes a duplicate
// the primary again when the primary gives way; all under the mutex.
// release: pairs with kOrderMatch; what the registrant wrote before (payload, hash) is seen by a thread that
// matches. The hash is stored before the word. The fetch_add goes on with what register published; its
// release spares a match the mutex, which would otherwise tell it the registry entry.
inline constexpr std::memory_order kOrderPublish = std::memory_order_release;

// Load of the word in match and in weak upgrade, without the mutex, and the compare-exchange refs n -> n + 1
// (n >= 1) that follows it, whether it succeeds or fails.
// acquire: pairs with kOrderPublish, through any number of counts between the two (they are
// read-modify-writes, so the release sequence goes on). The hash read after it is that of the life the word
// belongs to.
// The load, and the exchange when it fails, need acquire: the hash comparison follows. A successful exchange
// could be relaxed, since the load already acquired that life. In weak upgrade the acquire serves handles
// passed without synchronization.
inline constexpr std::memory_order kOrderMatch = std::memory_order_acquire;

// The fetch_sub of drop.
// release: pairs with kOrderSettle; the dropper's reads of the payload come before the next owner's writes.
inline constexpr std::memory_order kOrderDrop = std::memory_order_release;

// Load of the word under the mutex by settle, which lists a slot whose count is zero as inactive.
// acquire: pairs with kOrderDrop of every dropper, not only of the last.
inline constexpr std::memory_order kOrderSettle = std::memory_order_acquire;

// The fetch_add refs n -> n + 1 (n >= 0) in the slow path of match, and the fetch_sub that makes a primary a
// duplicate, both under the mutex.
// relaxed: the registrant published under the same mutex.
inline constexpr std::memory_order kOrderRevive = std::memory_order_relaxed;

// The fetch_add of copy.
// relaxed: the copier holds a reference already, and passes on only what it has itself.
inline constexpr std::memory_order kOrderCopy = std::memory_order_relaxed;

// Store of {Mutable, generation + 1} by evict, under the mutex.
// relaxed: it publishes nothing; a reader that sees it turns to the slow path.
inline constexpr std::memory_order kOrderEvict = std::memory_order_relaxed;

// Index entries and hashes, loaded and stored; the word where it is only looked at.
// relaxed: an index entry is a hint, and a hash counts only together with the word (kOrderMatch) or the
// mutex.
inline constexpr std::memory_order kOrderProbe = std::memory_order_relaxed;

}  // namespace ashlar::block

namespace ashlar::block::detail {

class BlockStore;

// The part of a store that the guards see: the words of its slots. References are counted here, inline.
struct StoreFace {
  std::atomic<std::uint64_t>* words = nullptr;
};

// A slot of a store, in one life of the slot. 16 bytes.
struct SlotRef {
  StoreFace* store = nullptr;
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
};
static_assert(sizeof(SlotRef) == 16);

// Of the slot's manager, and of a slot that is Complete or registered.
std::uint32_t block_size_of(const SlotRef& slot) noexcept;
tokens::SequenceHash hash_of(const SlotRef& slot) noexcept;
tokens::PrefixDigest prefix_of(const SlotRef& slot) noexcept;

// Returns a uniquely owned slot: to the reset pool, or into quarantine when it is in flight.
void drop_owned(const SlotRef& slot) noexcept;
// The counts of these slots, all of one store, reached zero. Lists or resets them in this order.
void settle(std::span<const SlotRef> idle) noexcept;

inline constexpr std::uint64_t kReferenceMask = (std::uint64_t{1} << 28) - 1;
// The maximum references to a slot. At the limit a match misses and a copy stops the process. The headroom
// above it is for copies by other threads that have incremented and are about to stop.
inline constexpr std::uint32_t kMaxReferences = (1u << 28) - (1u << 20);

// Adds a reference to a registered slot.
inline void add_reference(const SlotRef& slot) noexcept {
  const std::uint64_t old = slot.store->words[slot.id].fetch_add(1, kOrderCopy);
  ASHLAR_CHECK((old & kReferenceMask) < kMaxReferences,
               "slot %u has %u references, as many as a block may have; it cannot be copied once more",
               slot.id, kMaxReferences);
  ASHLAR_DCHECK((old & kReferenceMask) != 0 && old >> 32 == slot.generation,
                "slot %u: a copy of a reference that is not there", slot.id);
}
// Drops a reference. True when it was the last: the caller must settle the slot.
inline bool count_down(const SlotRef& slot) noexcept {
  const std::uint64_t old = slot.store->words[slot.id].fetch_sub(1, kOrderDrop);
  ASHLAR_DCHECK((old & kReferenceMask) != 0 && old >> 32 == slot.generation,
                "slot %u: a reference was dropped that is not there", slot.id);
  return (old & kReferenceMask) == 1;
}
inline void drop_reference(const SlotRef& slot) noexcept {
  if (count_down(slot)) settle({&slot, 1});
}

// Drops many references and settles the slots that reach zero with few visits to the store's lock.
class Dropper {
 public:
  Dropper() noexcept {}  // NOLINT(modernize-use-equals-default): idle_ is filled before it is read
  Dropper(const Dropper&) = delete;
  Dropper& operator=(const Dropper&) = delete;
  ~Dropper() { flush(); }

  void drop(const SlotRef& slot) noexcept {
    if (!count_down(slot)) return;
    if (count_ == kRoom || (count_ != 0 && idle_[0].store != slot.store)) flush();
    idle_[count_++] = slot;
  }

 private:
  static constexpr std::size_t kRoom = 64;
  void flush() noexcept {
    if (count_ != 0) settle({idle_, count_});
    count_ = 0;
  }
  union {
    SlotRef idle_[kRoom];
  };
  std::size_t count_ = 0;
};

// Owns a slot alone. A moved-from holder is empty.
class OwnedSlot {
 public:
  OwnedSlot() = default;
  explicit OwnedSlot(SlotRef slot) noexcept : slot_(slot) {}
  OwnedSlot(OwnedSlot&& other) noexcept : slot_(std::exchange(other.slot_, {})) {}
  OwnedSlot& operator=(OwnedSlot&& other) noexcept {
    if (this != &other) {
      drop();
      slot_ = std::exchange(other.slot_, {});
    }
    return *this;
  }
  OwnedSlot(const OwnedSlot&) = delete;
  OwnedSlot& operator=(const OwnedSlot&) = delete;
  ~OwnedSlot() { drop(); }

  // True for a holder that was moved from, or never had a slot.
  bool empty() const noexcept { return slot_.store == nullptr; }
  // Requires: not empty.
  const SlotRef& get() const noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return slot_;
  }
  // Adopts a slot, replacing the one held before.
  void adopt(SlotRef slot) noexcept {
    drop();
    slot_ = slot;
  }
  // Transfers the slot to the caller.
  SlotRef take() noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return std::exchange(slot_, {});
  }

 private:
  void drop() noexcept {
    if (!empty()) drop_owned(std::exchange(slot_, {}));
  }
  SlotRef slot_;
};

// Holds one reference to a registered slot. A moved-from holder is empty.
class SharedSlot {
 public:
  SharedSlot() = default;
  // Adopts a reference that the store already counted.
  explicit SharedSlot(SlotRef slot) noexcept : slot_(slot) {}
  SharedSlot(const SharedSlot& other) noexcept : slot_(other.slot_) {
    if (!empty()) add_reference(slot_);
  }
  SharedSlot(SharedSlot&& other) noexcept : slot_(std::exchange(other.slot_, {})) {}
  SharedSlot& operator=(SharedSlot other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  // Adopts a reference that the store already counted, replacing the one held before.
  void adopt(SlotRef slot) noexcept {
    if (!empty()) drop_reference(slot_);
    slot_ = slot;
  }
  ~SharedSlot() {
    if (!empty()) drop_reference(slot_);
  }

  bool empty() const noexcept { return slot_.store == nullptr; }
  const SlotRef& get() const noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return slot_;
  }
  // Releases the slot without a check; an empty holder stays empty.
  SlotRef detach() noexcept {
    const SlotRef slot = slot_;
    slot_.store = nullptr;
    return slot;
  }
  SlotRef take() noexcept {
    ASHLAR_CHECK(!empty(), "this guard holds no block: it was moved from, or never given one");
    return std::exchange(slot_, {});
  }

 private:
  SlotRef slot_;
};

}  // namespace ashlar::block::detail
