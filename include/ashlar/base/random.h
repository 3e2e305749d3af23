// Random: a seeded generator, reproducible on every machine, for property tests and workloads.
//
// xoshiro256++ (Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators"), its state filled from
// the seed by SplitMix64. Not for secrets. The standard library's distributions differ between
// implementations, so none is used: one seed replays one run everywhere.
//
// Thread safety: thread-compatible. Give each thread its own, by fork().
// Complexity:    every function is O(1) and allocates nothing; shuffle() is O(size).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "ashlar/base/check.h"

namespace ashlar {

// Mixes 64 bits: every bit of the input changes about half of the output. A bijection without a secret: the
// finaliser of splitmix64.
constexpr std::uint64_t spread_bits(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9u;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EBu;
  return x ^ (x >> 31);
}

class Random {
 public:
  // One seed gives one sequence of numbers, on every machine.
  explicit constexpr Random(std::uint64_t seed) noexcept {
    for (std::uint64_t& word : state_) word = split_mix(seed);
  }

  // The next 64 bits.
  constexpr std::uint64_t next() noexcept {
    const std::uint64_t result = rotate_left(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate_left(state_[3], 45);
    return result;
  }

  // A number from 0 to n - 1, each equally likely. Requires: n > 0.
  constexpr std::uint64_t below(std::uint64_t n) {
    ASHLAR_CHECK(n > 0, "below(0) has no value to return");
    // Values under 2^64 mod n would favour small remainders; draw again.
    const std::uint64_t refused = (0 - n) % n;
    std::uint64_t drawn = next();
    while (drawn < refused) drawn = next();
    return drawn % n;
  }

  // A number from low to high, both included, each equally likely. Requires: low <= high.
  template <std::integral T>
  constexpr T between(T low, std::type_identity_t<T> high) {
    ASHLAR_CHECK(low <= high, "between() was given a range that ends before it starts");
    const std::uint64_t width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    const std::uint64_t offset = width == UINT64_MAX ? next() : below(width + 1);
    return static_cast<T>(static_cast<std::uint64_t>(low) + offset);
  }

  // True with the given probability; never for 0 and below, always for 1 and above.
  constexpr bool chance(double probability) noexcept {
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
  }

  // Shuffles the elements; every order is equally likely.
  template <std::ranges::random_access_range Range>
    requires std::ranges::sized_range<Range>
  constexpr void shuffle(Range&& range) {
    const auto first = std::ranges::begin(range);
    using Difference = std::ranges::range_difference_t<Range>;
    for (std::uint64_t left = std::ranges::size(range); left > 1; --left) {
      std::ranges::iter_swap(first + static_cast<Difference>(left - 1),
                             first + static_cast<Difference>(below(left)));
    }
  }

  // A generator with an independent stream, for another thread or part of a test. Advances this one by a
  // step.
  constexpr Random fork() noexcept { return Random(next()); }

 private:
  static constexpr std::uint64_t rotate_left(std::uint64_t value, int by) noexcept {
    return (value << by) | (value >> (64 - by));
  }
  static constexpr std::uint64_t split_mix(std::uint64_t& state) noexcept {
    state += 0x9e3779b97f4a7c15U;
    return spread_bits(state);
  }

  std::uint64_t state_[4] = {};
};

}  // namespace ashlar
