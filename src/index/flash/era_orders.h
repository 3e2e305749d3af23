// Memory orders of the reclamation protocol (era_domain.h) and of the links its readers follow.
//
// The code and the explorer in tests/index/model take their orders from here; change an order only together
// with a passing run of that explorer.
#pragma once

#include <atomic>

namespace ashlar::index::detail {

// The writer's store of a link. release: pairs with kOrderFollow; a reader that sees the link sees a complete
// object whose birth era has begun.
inline constexpr std::memory_order kOrderLink = std::memory_order_release;

// A reader's load of a link that it will follow. acquire: pairs with kOrderLink.
inline constexpr std::memory_order kOrderFollow = std::memory_order_acquire;

// Load of the era after kOrderFollow. relaxed: the preceding acquire has seen the object's birth era, and a
// later load of the era cannot return an older one.
inline constexpr std::memory_order kOrderStill = std::memory_order_relaxed;

// The era that a reader is about to announce. relaxed: kOrderConfirm checks it.
inline constexpr std::memory_order kOrderGuess = std::memory_order_relaxed;

// Store of the announced era and the load of the era that confirms it; store of the next era and the
// following loads of the announced eras. All four seq_cst: either the scan sees the announcement, or the
// reader sees the era of the scan. kOrderConfirm also acquires kOrderAdvance: links gone when the era began
// are gone for the reader.
inline constexpr std::memory_order kOrderAnnounce = std::memory_order_seq_cst;
inline constexpr std::memory_order kOrderConfirm = std::memory_order_seq_cst;
inline constexpr std::memory_order kOrderAdvance = std::memory_order_seq_cst;
inline constexpr std::memory_order kOrderScan = std::memory_order_seq_cst;

// Store of 0 into a reader's line. release: pairs with kOrderScan; objects are freed only after the reader's
// last load of them.
inline constexpr std::memory_order kOrderLeave = std::memory_order_release;

// The number of lines to scan: raised by a reader before it announces in a new line, loaded by a scan before
// the lines. seq_cst: if a scan misses the line, the reader sees the scan's era, as above.
inline constexpr std::memory_order kOrderLines = std::memory_order_seq_cst;

}  // namespace ashlar::index::detail
