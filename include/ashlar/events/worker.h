// Worker: who holds blocks. An inference process has one worker id; each of its data-parallel ranks has a
// cache of its own, so (id, rank) is the unit of ownership everywhere in routing.
//
// Thread safety: immutable values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "ashlar/base/strong_id.h"

namespace ashlar::events {

using WorkerId = StrongId<struct WorkerIdTag, std::uint64_t>;

struct Worker {
  WorkerId id;
  std::uint32_t rank = 0;  // data-parallel rank

  friend auto operator<=>(const Worker&, const Worker&) = default;
};

}  // namespace ashlar::events

template <>
struct std::hash<ashlar::events::Worker> {
  std::size_t operator()(const ashlar::events::Worker& worker) const noexcept {
    return static_cast<std::size_t>((worker.id.value() ^ (std::uint64_t{worker.rank} << 32)) *
                                    0x9E3779B97F4A7C15u);
  }
};
