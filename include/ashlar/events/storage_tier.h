// StorageTier: where a worker holds a block, as routing sees it, from the fastest to the slowest.
//
// Thread safety: immutable values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar::events {

enum class StorageTier : std::uint8_t { kDevice, kHost, kDisk, kExternal };

inline constexpr std::size_t kStorageTiers = 4;
inline constexpr std::array<StorageTier, kStorageTiers> kAllStorageTiers = {
    StorageTier::kDevice, StorageTier::kHost, StorageTier::kDisk, StorageTier::kExternal};

// False for numbers that name no tier; those come from outside.
constexpr bool is_known(StorageTier tier) noexcept {
  return static_cast<std::size_t>(tier) < kStorageTiers;
}

constexpr std::string_view to_string(StorageTier tier) noexcept {
  constexpr std::array<std::string_view, kStorageTiers> kNames = {"device", "host", "disk", "external"};
  const auto i = static_cast<std::size_t>(tier);
  return i < kStorageTiers ? kNames[i] : "unknown";
}

}  // namespace ashlar::events
