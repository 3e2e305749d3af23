// walked_steps: how many entries this thread's walks over whole tables and lists have looked at. Tests pin
// costs by it; searches for one key are not counted.
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
