// Tier: where a block lives.
//
//   G1, G2, ...   empty tag types with an index and a name: guards of different tiers are different types
//   TierId        the same as a value, for events, presence and tables
//   StorageTier   what routing distinguishes: device, host, disk, external (volumes) and remote (memory of
//                 another node), by the numbers of G1 to G4 and Remote
//
// Thread safety: immutable values.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "ashlar/base/strong_id.h"

namespace ashlar::events {

// Index of a tier, below kMaxTiers.
using TierId = StrongId<struct TierTagId, std::uint8_t>;
inline constexpr std::uint8_t kMaxTiers = 8;

// A tag type that names a tier. User-defined tiers may use the indexes 5 to 7.
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

// A tier as routing sees it. The numbers are those of the tiers: TierId(n) is StorageTier(n).
enum class StorageTier : std::uint8_t {
  kDevice = G1::kIndex,
  kHost = G2::kIndex,
  kDisk = G3::kIndex,
  kExternal = G4::kIndex,
  kRemote = Remote::kIndex,
};

inline constexpr std::size_t kStorageTiers = 5;
// From the fastest to the slowest: another node's memory is read faster than a local disk. A block in several
// tiers counts in the first of them.
inline constexpr std::array<StorageTier, kStorageTiers> kAllStorageTiers = {
    StorageTier::kDevice, StorageTier::kHost, StorageTier::kRemote, StorageTier::kDisk,
    StorageTier::kExternal};
static_assert(Remote::kIndex + 1 == kStorageTiers, "every tier of the library is one that routing knows");

// False for untrusted numbers that name no tier.
constexpr bool is_known(StorageTier tier) noexcept {
  return static_cast<std::size_t>(tier) < kStorageTiers;
}

constexpr std::string_view to_string(StorageTier tier) noexcept {
  constexpr std::array<std::string_view, kStorageTiers> kNames = {"device", "host", "disk", "external",
                                                                  "remote"};
  const auto i = static_cast<std::size_t>(tier);
  return i < kStorageTiers ? kNames[i] : "unknown";
}

}  // namespace ashlar::events
