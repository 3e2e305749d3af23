// The widest integer that printf has a conversion for on every platform.
#pragma once

#include <cstdint>

namespace ashlar {

// For "%llu".
constexpr unsigned long long wide(std::uint64_t value) {
  return value;
}

}  // namespace ashlar
