// OnboardHandle: follows the blocks that a request wants in G1.
//
// Each block is a hit, pending, or a miss with a reason. Blocks arrive as references that pin them in G1;
// wait() hands these references over. cancel() releases what was reserved and what has arrived.
//
// Copies of a handle refer to the same call. Dropping all of them does not cancel it.
//
// Thread safety: thread-safe.
// Invariant:     hits of onboard_async() form a prefix of the request; the first miss ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_list.h"
#include "ashlar/block/immutable_block.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/salt.h"

namespace ashlar::tiers {

// The blocks of a prefix that are in G1, pinned there by this table.
using OnboardTable = block::BlockList<block::ImmutableBlock<events::G1>>;

// Consecutive blocks of a prefix, and the fastest tier that has them.
struct TierRun {
  events::TierId tier;
  std::size_t first = 0;
  std::size_t count = 0;
  double seconds = 0;  // estimated time to bring them into G1; 0 before the first measurement

  // Compares the blocks, not the estimate.
  friend bool operator==(const TierRun& a, const TierRun& b) noexcept {
    return a.tier == b.tier && a.first == b.first && a.count == b.count;
  }
};

enum class OnboardState : std::uint8_t { kHit, kPending, kMiss };

// Why a block was not brought into G1.
enum class Miss : std::uint8_t {
  kNone,
  kUnknown,       // no tier has it
  kBehind,        // a block before it is missing
  kDeclined,      // recomputing it is faster
  kNoRoom,        // G1 is full, or G2 on the way up
  kGone,          // evicted before it could be read
  kDamaged,       // its bytes do not match their checksum
  kFailed,        // it could not be read
  kSaltMismatch,  // its hash matches, its salt does not
  kOtherTokens,   // its hash matches, its prefix digest does not
  kOtherShards,   // volumes or peers have it in parts of other ranks, which do not make one of this rank
  kCancelled,
  kLate,         // the deadline passed first
  kRefused,      // the peer that has it lets this node have no more now
  kUnreachable,  // the peer that had it does not answer
  kUnwritten,    // it is in a tier, and the precondition of its registration there has not passed
};
inline constexpr std::size_t kMisses = 16;
std::string_view to_string(Miss miss) noexcept;

struct BlockOutcome {
  OnboardState state = OnboardState::kPending;
  Miss miss = Miss::kNone;
  std::optional<events::TierId> tier = {};  // the tier that had the block when it was looked up

  friend bool operator==(const BlockOutcome&, const BlockOutcome&) = default;
};

struct OnboardOptions {
  // How fast the caller computes. Blocks that take longer to bring up than to recompute are declined. Empty:
  // none is declined.
  std::optional<double> compute_tokens_per_second = {};
  std::optional<Clock::TimePoint> deadline = {};
  // Fills G1 layer by layer, over all blocks, so that computing can start with the first layer: see
  // wait_layer().
  bool by_layer = false;
  // The prefix digests of the hashes, one each: a block with another known digest is a miss. Empty: names are
  // trusted. Of token blocks: TokenBlock::prefix_digest(), under KvBlockManager::hasher().
  std::vector<tokens::PrefixDigest> prefixes = {};
  // Salt of the request; a block with another salt is a miss. Zero: not compared.
  tokens::SaltFingerprint salt = {};
  // For the events of blocks that are found on volumes and at peers, and for RemoteDirectory: the hashes of
  // their own tokens, one each or none; and for hashes from the middle of a sequence, the block before the
  // first one and the first of the sequence.
  std::vector<tokens::LocalHash> locals = {};
  std::optional<tokens::SequenceHash> parent = {};
  std::optional<tokens::SequenceHash> root = {};
  // Agents (HOST:PORT) that are asked first for blocks that no tier is known to have, or only one below G2
  // that is not measured to be faster than Remote.
  std::vector<std::string> sources = {};
  // Of onboard(): a stop request cancels it, and its table is empty. Handles have cancel().
  std::stop_token stop = {};
  // Called once when the call has ended, however it ended, on the thread that ended it. It must not throw,
  // nor wait for other calls of the manager.
  std::function<void()> on_done = {};
};

class OnboardCall;

class OnboardHandle {
 public:
  // Made by the library.
  explicit OnboardHandle(std::shared_ptr<OnboardCall> call) noexcept : call_(std::move(call)) {}

  // One outcome per requested hash, in order.
  std::vector<BlockOutcome> blocks() const;
  bool done() const;
  // Waits for the end. Returns the prefix that is in G1; a second call returns an empty table.
  // Errors: kCancelled.
  Result<OnboardTable> wait() const;
  // The same, but no longer than until `when`. Errors: also kTimeout; the copies go on.
  Result<OnboardTable> wait_until(Clock::TimePoint when) const;
  // Waits until `layer` of every arriving block is in G1. Returns these blocks of G1 in order; they must not
  // be written to. Errors: kInvalidArgument: OnboardOptions::by_layer is off, or there is no such layer;
  // kCancelled; kTimeout: `until` passed first, the copies go on; those of the copy, after which none of
  // these blocks may be used.
  Result<std::vector<block::BlockId>> wait_layer(std::uint32_t layer,
                                                 std::optional<Clock::TimePoint> until = {}) const;
  // Stops the copies and releases every block of the call. No effect once it is done and handed over.
  void cancel() const;

 private:
  std::shared_ptr<OnboardCall> call_;
};

}  // namespace ashlar::tiers
