// WorkerCache: the tiers of one worker, as a replay sees them.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/replay/simulate.h"

namespace ashlar::replay {

// A block enters or leaves a tier.
struct BlockMove {
  std::uint32_t block = 0;
  std::uint8_t tier = 0;
  bool is_stored = false;  // false: removed
};

// What one request did to a worker.
struct CacheChange {
  std::array<std::uint32_t, kReplayTiers> hits = {};  // from the start, by fastest tier
  std::vector<BlockMove> moves;                       // in their order; those stored are the request's
  bool is_cut = false;                                // only the head is kept

  void clear() {
    hits = {};
    moves.clear();
    is_cut = false;
  }
  std::uint32_t found() const noexcept { return hits[0] + hits[1] + hits[2]; }
};

// Blocks that a manager copies at a time from one tier to the next: what is held cannot be evicted, so it is
// a sixteenth of each.
constexpr std::uint32_t offload_batch(std::uint32_t from_blocks, std::uint32_t to_blocks) {
  return std::max<std::uint32_t>(1, std::min(from_blocks, to_blocks) / 16);
}

class WorkerCache {
 public:
  virtual ~WorkerCache() = default;
  // Serves a request. Errors: end the replay.
  virtual Result<void> serve(std::span<const std::uint32_t> blocks, CacheChange& change) = 0;
};

}  // namespace ashlar::replay
