// Tiers by name, as Python gives them: "g1" to "g4" and "remote"; routing says "device", "host", "disk" and
// "external" for the first four. Either name is taken.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "ashlar/events/tier.h"
#include "errors.h"

namespace ashlar::python {

inline constexpr std::array<std::string_view, events::kStorageTiers> kTierNames = {"g1", "g2", "g3", "g4",
                                                                                   "remote"};

inline const char* tier_name(events::TierId tier) noexcept {
  return tier.value() < kTierNames.size() ? kTierNames[tier.value()].data() : "other";
}

// Raises InvalidArgument for a name that no tier has. Call with the GIL held.
inline events::StorageTier tier_of(std::string_view name) {
  for (std::size_t i = 0; i < kTierNames.size(); ++i) {
    const auto tier = static_cast<events::StorageTier>(i);
    if (name == kTierNames[i] || name == to_string(tier)) return tier;
  }
  raise(Error(ErrorCode::kInvalidArgument, "\"" + std::string(name) +
                                               "\" is not a tier: name one of g1, g2, g3, g4, remote, or "
                                               "device, host, disk, external"));
}
inline events::TierId tier_id_of(std::string_view name) {
  return events::TierId(static_cast<std::uint8_t>(tier_of(name)));
}

}  // namespace ashlar::python
