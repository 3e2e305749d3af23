#include "index/table_seed.h"

#include <unistd.h>

#include <chrono>

namespace ashlar::index::detail {

std::uint64_t TableSeed::process_seed() noexcept {
  static const std::uint64_t seed = [] {
    std::uint64_t drawn = 0;
    if (::getentropy(&drawn, sizeof drawn) == 0) return drawn;
    // A kernel without entropy: the clock and the address of the stack are better than nothing.
    const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return now * 0x9E3779B97F4A7C15u ^ reinterpret_cast<std::uintptr_t>(&drawn);
  }();
  return seed;
}

}  // namespace ashlar::index::detail
