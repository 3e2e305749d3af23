#include "index/seeded_hash.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <random>

namespace ashlar::index::detail {

std::uint64_t random_word() noexcept {
  try {
    std::random_device source;
    return std::uint64_t{source()} << 32 ^ source();
  } catch (const std::exception&) {
    // Where the system has no source: the time, and where it put this variable.
    const int here = 0;
    return spread_bits(
        static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
        reinterpret_cast<std::uintptr_t>(&here));
  }
}

std::uint64_t draw_seed() noexcept {
  static const std::uint64_t secret = random_word();
  static const std::uint64_t other = random_word();
  static std::atomic<std::uint64_t> drawn{0};
  // relaxed: only the number itself matters.
  return spread_bits(secret + drawn.fetch_add(1, std::memory_order_relaxed) * 0x9E37'79B9'7F4A'7C15u) ^ other;
}

}  // namespace ashlar::index::detail
