// BlockMover: moves blocks between tiers such that a tier never shows a wrong block.
//
// A block that is still being written in its source does not move. The source is held until the copy has
// ended. The destination is registered after every byte has arrived
// and, for bytes from a disk, matches its checksum. A mismatching block is left out and removed from its
// source. A block's checksum is computed in host memory when it first goes from there to a disk, and travels
// with it from then on.
//
// Moves that need checking go in chunks: one is checked while the next is copied.
//
// Thread safety: thread-safe.
// Invariant:     a block is registered below only after its last byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/pin.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/transfer/executor.h"
#include "tiers/pool/late_values.h"
#include "tiers/pool/move_control.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

// The outcome of moving one block.
enum class Moved : std::uint8_t {
  kArrived,
  kPresent,      // the destination had it already
  kGone,         // the source no longer had it
  kDamaged,      // its bytes did not match their checksum; removed from the source
  kFailed,       // see the error
  kStopped,      // by the control, or at the deadline
  kOtherShards,  // a volume or peers have it in parts of other ranks, which do not make one of this rank
  kRefused,      // the peer that has it lets this node have no more now
  kUnreachable,  // the peer that had it does not answer
  kUnwritten,    // the precondition of its registration in the source has not passed
  kNoRoom,       // the destination had none
};

struct MoveReport {
  std::vector<Moved> blocks;  // in the order of the request
  std::optional<Error> error;
  std::uint64_t bytes = 0;       // that arrived
  Clock::Duration copying = {};  // time spent copying: see block_mover.cc

  std::size_t count(Moved what) const noexcept;
};

struct MoveOptions {
  std::optional<Clock::TimePoint> deadline = {};
  MoveControl* control = nullptr;
  // Copies layer by layer, and reports each layer once it has arrived for all moving blocks. Reports the
  // destinations first: the block of each hold, in order; empty for one that does not move.
  bool by_layer = false;
  std::function<void(std::span<const std::optional<block::BlockId>>)> on_reserved = {};
  std::function<void(std::uint32_t layer)> on_layer = {};
  // Pins blocks that have arrived until the move is destroyed, so that they are not evicted before the caller
  // takes them.
  bool keep = false;
};

class BlockMover {
 public:
  struct Options {
    tokens::NamespaceFingerprint keys = {};  // the namespace, part of every checksum
    // Computes checksums as soon as a block arrives in host memory: a block overwritten there by mistake is
    // then detected when it returns from a disk.
    bool checksum_on_arrival = false;
    // Reads blocks written to a disk back and compares them before registering them.
    bool read_back_after_write = false;
    Clock* clock = nullptr;
    // Told of copies that have arrived; may be null. Outlives the mover.
    LateValues* values = nullptr;
  };
  // The executor outlives the mover.
  BlockMover(transfer::Executor& executor, const Options& options);

  // Moves the held blocks; the holds are dropped when the copy has ended. Waits for the end; a deadline or a
  // cancel stops it between operations.
  MoveReport move(BytePool& from, BytePool& to, std::vector<block::Hold> holds,
                  const MoveOptions& options = {});
  // The same by hash.
  MoveReport move(BytePool& from, BytePool& to, std::span<const tokens::SequenceHash> hashes,
                  const MoveOptions& options = {});

  // A move whose copies are in flight. Finish several in the order in which they began.
  class Running;
  // Starts the copies; finish() waits for them, checks and registers. So the next move can copy while this
  // one finishes.
  std::unique_ptr<Running> begin(BytePool& from, BytePool& to, std::vector<block::Hold> holds,
                                 const MoveOptions& options = {});

 private:
  struct Batch;
  struct Chunk;
  std::vector<Chunk> chunks_of(const Running& move, bool checked) const;
  Result<transfer::Transfer> start(const Running& move, const Chunk& chunk,
                                   const transfer::PlanSelection& selection);
  // Copies a chunk layer by layer.
  Result<transfer::TransferDone> copy_layers(const Running& move, const Chunk& chunk);
  // Waits for all chunks; blocks that have not arrived keep an empty record. Returns a proof when any have.
  std::optional<transfer::TransferDone> wait(Running& move);
  void finish(Running& move);
  // Computes the checksum of a source that has none yet.
  void learn_checksum(BytePool& from, const block::Hold& hold) const;
  // Checks a block that has arrived; a damaged one is marked, and its record emptied. Errors: it cannot be
  // checked.
  Result<void> inspect(BytePool& from, BytePool& to, Batch& batch, std::size_t i) const;
  // Drops blocks that the disk does not return as written. Errors: the first reason; the other blocks are
  // unchanged.
  Result<void> read_back(BytePool& to, Batch& batch) const;
  // Reads the blocks of a part into separate memory.
  Result<std::shared_ptr<const transfer::BlockSet>> read_part(BytePool& to, std::uint32_t part,
                                                              const Batch& batch,
                                                              std::span<const std::size_t> members) const;

  transfer::Executor& executor_;
  const Options options_;
  Clock& clock_;
};

class BlockMover::Running {
 public:
  Running(BlockMover& mover, BytePool& from, BytePool& to, const MoveOptions& options);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // The outcome of each block; waits for the copies. Idempotent.
  const MoveReport& finish();

 private:
  friend class BlockMover;
  BlockMover& mover_;
  BytePool& from_;
  BytePool& to_;
  const MoveOptions options_;
  const bool check_arrivals_;
  std::shared_ptr<Batch> batch_;
  std::vector<Chunk> chunks_;
  std::vector<Result<transfer::Transfer>> transfers_;  // one per chunk, unless copied layer by layer
  std::unique_ptr<Reservation> kept_;
  MoveReport report_;
  Clock::TimePoint begun_ = {};
  Clock::Duration copied_ = {};  // sum over the transfers
  bool finished_ = false;
};

}  // namespace ashlar::tiers
