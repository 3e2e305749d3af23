// Memory orders of the reclamation protocol (era_domain.h) and of the links that its readers follow.
//
// The code and the explorer in tests/index/model take their orders from here, and an order is changed only
// together with a green run of that explorer.
#pragma once

#include <atomic>

namespace ashlar::index::detail {

// Store of a link to an object, by the writer. release: pairs with kOrderFollow; the object is complete, and
// its birth era has begun for whoever sees the link.
inline constexpr std::memory_order kOrderLink = std::memory_order_release;

// Load of a link, by a reader that means to follow it. acquire: pairs with kOrderLink.
inline constexpr std::memory_order kOrderFollow = std::memory_order_acquire;

// Load of the era after kOrderFollow. relaxed: the acquire before it has seen the birth era of the object,
// and a load of the era behind it cannot see an older one.
inline constexpr std::memory_order kOrderStill = std::memory_order_relaxed;

// The era that a reader is about to announce. relaxed: kOrderConfirm looks again.
inline constexpr std::memory_order kOrderGuess = std::memory_order_relaxed;

// Store of the announced era, and the load of the era that confirms it; store of the next era, and the loads
// of the announced eras behind it. seq_cst, all four: either the scan sees the announcement, or the reader
// the era of the scan. kOrderConfirm also acquires kOrderAdvance: links that were gone when the era began are
// gone for the reader.
inline constexpr std::memory_order kOrderAnnounce = std::memory_order_seq_cst;
inline constexpr std::memory_order kOrderConfirm = std::memory_order_seq_cst;
inline constexpr std::memory_order kOrderAdvance = std::memory_order_seq_cst;
inline constexpr std::memory_order kOrderScan = std::memory_order_seq_cst;

// Store of 0 into a reader's line. release: pairs with kOrderScan; what the reader looked at is freed after
// it looked.
inline constexpr std::memory_order kOrderLeave = std::memory_order_release;

// How many lines there are to scan: raised by a reader before it announces itself in a new line, read by a
// scan before the lines. seq_cst: a scan that misses the line is one whose era the reader sees, as above.
inline constexpr std::memory_order kOrderLines = std::memory_order_seq_cst;

}  // namespace ashlar::index::detail
