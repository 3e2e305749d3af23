// A worker by its numbers.
#pragma once

#include <cstdint>

#include "ashlar/events/index_sink.h"

namespace ashlar::index {

inline events::Worker worker(std::uint64_t id, std::uint32_t rank = 0) {
  return {events::WorkerId(id), rank};
}

}  // namespace ashlar::index
