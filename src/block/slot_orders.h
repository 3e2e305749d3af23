// Memory orders of the slot word: the one 64-bit atomic {refs, state, generation} each slot has.
//
// Every access to the word, to the index entry that leads to it, and to the slot's atomic hash takes its
// order from here, and the explorer in tests/block/model/ runs the protocol with the same constants. An order
// here is changed only together with a green run of that explorer.
//
// The store mutex orders all that happens under it; these constants say what the lock-free side adds.
#pragma once

#include <atomic>

namespace ashlar::block {

// Store of {Primary, refs = 1} by register, under the mutex.
// release: pairs with kOrderMatch; what the registrant wrote (payload, hash) is seen by whoever matches it.
inline constexpr std::memory_order kOrderPublish = std::memory_order_release;

// Success of the compare-exchange refs n -> n + 1 (n >= 1) in match and in weak upgrade, without the mutex.
// acquire: pairs with kOrderPublish, through any number of counts between the two (they are
// read-modify-writes, so the release sequence goes on).
inline constexpr std::memory_order kOrderMatch = std::memory_order_acquire;

// The fetch_sub of drop.
// release: pairs with kOrderSettle; the dropper's reads of the payload come before the next owner's writes.
inline constexpr std::memory_order kOrderDrop = std::memory_order_release;

// Load of the word under the mutex by settle, which lists a slot whose count is zero as inactive.
// acquire: pairs with kOrderDrop of every dropper, not only of the last.
inline constexpr std::memory_order kOrderSettle = std::memory_order_acquire;

// Compare-exchange refs n -> n + 1 (n >= 0) in the slow path of match, under the mutex.
// relaxed: the registrant published under the same mutex.
inline constexpr std::memory_order kOrderRevive = std::memory_order_relaxed;

// The fetch_add of copy.
// relaxed: the copier holds a reference already, and passes on only what it has itself.
inline constexpr std::memory_order kOrderCopy = std::memory_order_relaxed;

// Store of {Mutable, generation + 1} by evict, under the mutex.
// relaxed: it publishes nothing; a reader that sees it turns to the slow path.
inline constexpr std::memory_order kOrderEvict = std::memory_order_relaxed;

// Loads of the fast path: index entry, word, hash (before and after the compare-exchange), and the failure
// order of its compare-exchange. relaxed: none is believed before the compare-exchange of kOrderMatch has
// succeeded and the hash compared again.
inline constexpr std::memory_order kOrderProbe = std::memory_order_relaxed;

}  // namespace ashlar::block
