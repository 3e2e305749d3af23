// rounds(): how often a loop over seeds or turns goes round. All of it in a plain build and where
// ASHLAR_TEST_SECONDS asks for long tests; a part under a sanitizer, which makes every turn some ten times as
// dear and finds what it finds in the first ones. all_rounds(): whether it is all of it. few_shapes(): under
// ThreadSanitizer a part of the layouts and sizes will do, since races do not depend on them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "support/sanitizers.h"

namespace ashlar::testing {

inline constexpr std::uint64_t kSanitizedPart = 16;

inline bool all_rounds() {
  return !kSanitized ||
         std::getenv("ASHLAR_TEST_SECONDS") != nullptr;  // NOLINT(concurrency-mt-unsafe): nothing sets it
}

inline std::uint64_t rounds(std::uint64_t all) {
  return all_rounds() ? all : std::max<std::uint64_t>(1, all / kSanitizedPart);
}

inline bool few_shapes() {
  return kThreadSanitizer && !all_rounds();
}

}  // namespace ashlar::testing
