// counting_allocator: the bytes asked for by operator new and not yet freed, while counting is on. A program
// that links counting_allocator.cc has its operators new and delete replaced.
//
// Thread safety: thread-safe.
// Complexity:    a load per call while it is off; a lock and a hash table while it is on.
#pragma once

#include <cstdint>

namespace ashlar::bench {

// Counts what is allocated from here on.
void start_counting_bytes() noexcept;
std::int64_t live_bytes() noexcept;

}  // namespace ashlar::bench
