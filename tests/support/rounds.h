// rounds(): how often a loop over seeds or turns goes round. All of it in a plain build and where
// ASHLAR_TEST_SECONDS asks for long tests; a part under a sanitizer, which makes every turn some ten times as
// dear and finds what it finds in the first ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "support/sanitizers.h"

namespace ashlar::testing {

inline constexpr std::uint64_t kSanitizedPart = 8;

inline std::uint64_t rounds(std::uint64_t all) {
  const bool is_long =
      std::getenv("ASHLAR_TEST_SECONDS") != nullptr;  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return kSanitized && !is_long ? std::max<std::uint64_t>(1, all / kSanitizedPart) : all;
}

}  // namespace ashlar::testing
