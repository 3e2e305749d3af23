// The tiers by their numbers.
#pragma once

#include "ashlar/events/tier.h"

namespace ashlar::tiers {

inline constexpr events::TierId kG1 = events::kTierId<events::G1>;
inline constexpr events::TierId kG2 = events::kTierId<events::G2>;
inline constexpr events::TierId kG3 = events::kTierId<events::G3>;
inline constexpr events::TierId kG4 = events::kTierId<events::G4>;

}  // namespace ashlar::tiers
