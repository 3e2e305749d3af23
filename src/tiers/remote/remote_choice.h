// RemotePool::Choice: whom the blocks of one call are read from.
//
// Preferred are, in this order: who owes no answer; who has all but one of the blocks that the best of the
// fast ones has; who is due to be measured, for one chunk, where another is measured; and who would be done
// first, were all its bytes on loan and on their way to be read at the speed that was measured. Peers that
// are not much slower than the fastest count as equally fast: they share by load.
//
// Thread safety: confined.
// Complexity:    O(sources) per chunk, and sorting them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tiers/remote/remote_pool.h"

namespace ashlar::tiers {

class RemotePool::Choice {
 public:
  static constexpr std::size_t kChunkBlocks = 16;

  // `tries`: also those are preferred who are due to be measured.
  Choice(RemotePool& pool, bool tries)
      : pool_(pool), tries_(tries), chunk_bytes_(kChunkBlocks * pool.block_bytes()) {}

  // `blocks` that these sources have.
  void add(const Sources& sources, std::size_t blocks = 1);
  // After the last add().
  void compare();
  // The parts of the next chunk, which these sources have. Errors: as recipe().
  Result<std::vector<Part>> take(Sources sources);

 private:
  struct Candidate {
    std::size_t blocks = 0;
    double slowness = 1;
    bool due = false;
    std::uint64_t planned = 0;  // bytes, by this call
  };
  RemotePool& pool_;
  const bool tries_;
  const std::uint64_t chunk_bytes_;
  std::map<std::shared_ptr<Source>, Candidate> candidates_;
  std::size_t best_ = 0;  // blocks
};

}  // namespace ashlar::tiers
