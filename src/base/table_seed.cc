#include "base/table_seed.h"

#include <unistd.h>

#include <atomic>
#include <chrono>

namespace ashlar {

std::uint64_t random_word() noexcept {
  std::uint64_t drawn = 0;
  if (::getentropy(&drawn, sizeof drawn) == 0) return drawn;
  // A kernel without entropy: fall back to the clock and the stack address.
  const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return spread_bits(now ^ reinterpret_cast<std::uintptr_t>(&drawn));
}

std::uint64_t draw_seed() noexcept {
  static const std::uint64_t secret = random_word();
  static const std::uint64_t other = random_word();
  static std::atomic<std::uint64_t> drawn{0};
  // relaxed: only the number itself matters.
  return spread_bits(secret + drawn.fetch_add(1, std::memory_order_relaxed) * 0x9E37'79B9'7F4A'7C15u) ^ other;
}

std::uint64_t TableSeed::process_seed() noexcept {
  static const std::uint64_t seed = random_word();
  return seed;
}

}  // namespace ashlar
