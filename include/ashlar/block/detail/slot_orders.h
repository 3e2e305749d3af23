// Memory orders of the slot word: the one 64-bit atomic {refs, state, generation} each slot has.
//
// The code and the explorer in tests/block/model/ take their orders from here, and an order is changed only
// together with a green run of that explorer. docs/slot_word.md has the transitions and the table of
// partners.
//
// The store mutex orders all that happens under it; these constants say what the lock-free side adds.
// Accesses under the mutex that have no constant here (stores of the hash and of index entries, loads of them
// in the slow path, in register and in evict) are relaxed: the mutex is their partner, and kOrderPublish
// covers the hash.
#pragma once

#include <atomic>

namespace ashlar::block {

// Store of {Primary, refs = 1} or {Duplicate, refs = 1} by register, and the fetch_add that makes a duplicate
// the primary again when the primary gives way; all under the mutex.
// release: pairs with kOrderMatch; what the registrant wrote before (payload, hash) is seen by whoever
// matches. The hash is stored before the word. The fetch_add goes on with what register published; its
// release spares a match the mutex, which would otherwise tell it the registry entry.
inline constexpr std::memory_order kOrderPublish = std::memory_order_release;

// Load of the word in match and in weak upgrade, without the mutex, and the compare-exchange refs n -> n + 1
// (n >= 1) that follows it, whether it succeeds or fails.
// acquire: pairs with kOrderPublish, through any number of counts between the two (they are
// read-modify-writes, so the release sequence goes on). The hash read after it is that of the life the word
// belongs to.
// The load and the exchange that fails need it, for the comparison that follows. The exchange that succeeds
// goes on with a life that is acquired already and could be relaxed alone; with the acquire only there the
// payload would be ordered and the comparison not. In weak upgrade it serves handles that came without
// synchronisation; whoever got one with it comes after the publication anyway.
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
