// Tier: where a block lives. A tier is an empty tag type with an index and a name, so that guards of
// different tiers are different types; TierId is the same thing as a value, for events, presence and tables.
//
// Thread safety: immutable values.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "ashlar/base/strong_id.h"

namespace ashlar::events {

// Index of a tier, below kMaxTiers.
using TierId = StrongId<struct TierTagId, std::uint8_t>;
inline constexpr std::uint8_t kMaxTiers = 8;

// A tag type that names a tier. Own tiers may use the indexes 5 to 7.
template <class T>
concept Tier = std::is_empty_v<T> && requires {
  { T::kIndex } -> std::convertible_to<std::uint8_t>;
  { T::kName } -> std::convertible_to<std::string_view>;
} && (T::kIndex < kMaxTiers);

template <Tier T>
inline constexpr TierId kTierId{T::kIndex};

struct G1 {  // GPU memory
  static constexpr std::uint8_t kIndex = 0;
  static constexpr std::string_view kName = "g1";
};
struct G2 {  // host memory
  static constexpr std::uint8_t kIndex = 1;
  static constexpr std::string_view kName = "g2";
};
struct G3 {  // local SSD
  static constexpr std::uint8_t kIndex = 2;
  static constexpr std::string_view kName = "g3";
};
struct G4 {  // remote storage
  static constexpr std::uint8_t kIndex = 3;
  static constexpr std::string_view kName = "g4";
};
struct Remote {  // another node's host memory
  static constexpr std::uint8_t kIndex = 4;
  static constexpr std::string_view kName = "remote";
};

static_assert(Tier<G1> && Tier<G2> && Tier<G3> && Tier<G4> && Tier<Remote>);

}  // namespace ashlar::events
