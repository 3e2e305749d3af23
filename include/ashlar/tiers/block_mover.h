// BlockMover: moves blocks from one tier to another so that nothing wrong is ever found there.
//
// The source is held until the copy has ended. The destination is registered when every byte has arrived and, where bytes
// come from a disk, agree with their checksum; a block that does not is left out, and removed from where it came from. The
// checksum of a block is computed when it first arrives in host memory and goes along from then on.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/hold.h"
#include "ashlar/tiers/tier_pool.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::tiers {

// What became of one block.
enum class Moved : std::uint8_t {
  kArrived,
  kThere,    // the destination had it already
  kGone,     // the source had it no more
  kDamaged,  // its bytes did not agree with their checksum; the source has it no more
  kFailed,   // the batch failed; see the error
};

struct MoveReport {
  std::vector<Moved> blocks;  // in the order of the request
  std::optional<Error> error;
  std::uint64_t bytes = 0;  // that arrived

  std::size_t count(Moved what) const noexcept;
};

class BlockMover {
 public:
  // `keys`: the namespace, part of every checksum. The executor outlives the mover.
  BlockMover(transfer::Executor& executor, const tokens::NamespaceFingerprint& keys)
      : executor_(executor), keys_(keys) {}

  // Moves what is held; the holds are dropped when the copy has ended. Waits for the end; a deadline makes it give up
  // between operations.
  MoveReport move(TierPool& from, TierPool& to, std::vector<block::Hold> holds,
                  std::optional<Clock::TimePoint> deadline = {});
  // The same by name.
  MoveReport move(TierPool& from, TierPool& to, std::span<const tokens::SequenceHash> hashes,
                  std::optional<Clock::TimePoint> deadline = {});

 private:
  struct Batch;
  // The arrivals of a batch whose bytes are there; a zero hash for one that is damaged.
  Result<std::vector<Arrival>> inspect(TierPool& from, TierPool& to, const Batch& batch);

  transfer::Executor& executor_;
  const tokens::NamespaceFingerprint keys_;
};

}  // namespace ashlar::tiers
