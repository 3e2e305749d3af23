// Translates the vocabulary of engines: media to tiers, kinds of cache groups, and the owner of blocks.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "ashlar/events/tier.h"

namespace ashlar::feed {

// An engine that names no medium means its device.
inline std::optional<events::TierId> tier_of_medium(std::string_view medium) noexcept {
  using Entry = std::pair<std::string_view, events::TierId>;
  constexpr events::TierId kDevice = events::kTierId<events::G1>;
  constexpr events::TierId kHost = events::kTierId<events::G2>;
  constexpr events::TierId kDisk = events::kTierId<events::G3>;
  constexpr events::TierId kExternal = events::kTierId<events::G4>;
  constexpr events::TierId kRemote = events::kTierId<events::Remote>;
  static constexpr std::array<Entry, 18> kMedia = {{
      {"", kDevice},
      {"GPU", kDevice},
      {"DEVICE", kDevice},
      {"HBM", kDevice},
      {"CPU", kHost},
      {"CPU_PINNED", kHost},
      {"CPU_TIER1", kHost},
      {"CPU_TIER2", kHost},
      {"HOST", kHost},
      {"HOST_PINNED", kHost},
      {"DRAM", kHost},
      {"DISK", kDisk},
      {"SSD", kDisk},
      {"NVME", kDisk},
      {"FS", kDisk},
      {"STORAGE", kExternal},
      {"EXTERNAL", kExternal},
      {"REMOTE", kRemote},
  }};
  if (medium == "GPU") return kDevice;  // of most events
  for (const Entry& entry : kMedia) {
    if (entry.first.size() != medium.size()) continue;
    bool same = true;
    for (std::size_t i = 0; same && i < medium.size(); ++i) {
      const char c = medium[i];
      same = (c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c) == entry.first[i];
    }
    if (same) return entry.second;
  }
  return std::nullopt;
}

// A block of such a group is useful only with all blocks before it: what a prefix index counts.
inline bool needs_whole_prefix(std::string_view spec_kind) noexcept {
  return spec_kind == "full_attention" || spec_kind == "mla_attention" || spec_kind == "sink_full_attention";
}

// The engine's own, local blocks.
inline bool is_own(std::string_view locality, std::string_view ownership) noexcept {
  return (locality.empty() || locality == "LOCAL" || locality == "local") &&
         (ownership.empty() || ownership == "engine" || ownership == "ENGINE");
}

}  // namespace ashlar::feed
