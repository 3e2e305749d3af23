// counting_allocator: the usable bytes of everything allocated by operator new and not yet freed, while counting is on.
// A program that links counting_allocator.cc has its operators new and delete replaced.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>

namespace ashlar::bench {

// Counts from here on.
void start_counting_bytes() noexcept;
// Below zero when memory from before was freed.
std::int64_t live_bytes() noexcept;

}  // namespace ashlar::bench
