// replay_real(): as simulate(), but each worker is a KvBlockManager with bytes: G1 and G2 in host memory, G3
// in a file.
//
// Every block that is computed gets bytes of its own, and every block that is found is compared with them, in
// whatever tiers it was meanwhile. What a request computed is stored a batch of offloads at a time, and each
// is waited for, so that a run does not depend on time and has the hits of the simulation, block for block.
//
// Thread safety: functions.
// Complexity:    O(blocks) copies; memory and disk: the blocks of all workers.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/replay/simulate.h"

namespace ashlar::replay {

struct RealOptions {
  // In which the files of G3 get a folder of their own, "ashlar_replay_XXXXXX", which is removed at the end;
  // must exist. Empty: the system's temporary one.
  std::string folder = {};
  std::uint32_t block_bytes = 4'096;  // that a block has here, whatever the model's would have

  // Errors: kInvalidArgument: not a multiple of 4,096, or 0.
  Result<void> validate() const;
};

// `log` as in simulate().
// Errors: those of simulate() and KvBlockManager; kCorruption: a block that was found has other bytes than it
// was stored with.
Result<ReplayOutcome> replay_real(const TraceTable& trace, const ReplayConfig& config,
                                  const RealOptions& options = {}, const ReplayProgress& progress = {},
                                  service::RouteLog* log = nullptr);

}  // namespace ashlar::replay
