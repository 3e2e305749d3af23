// walked_steps: counts the entries that this thread's walks over whole tables and lists visit. Tests pin
// costs by it; look-ups of one key are not counted.
//
// Thread safety: each thread has its own count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar {

inline thread_local std::uint64_t walked_steps = 0;

inline void count_steps(std::size_t steps) noexcept {
  walked_steps += steps;
}

}  // namespace ashlar
