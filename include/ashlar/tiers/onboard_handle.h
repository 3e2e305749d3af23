// OnboardHandle: what becomes of the blocks that a request wants in G1.
//
// Every block is a hit, pending, or a miss with a reason. Blocks arrive as references that keep them in G1;
// wait() hands them over. cancel() gives back what was reserved and what has arrived.
//
// Thread safety: thread-safe; copies speak of the same call. Dropping all of them changes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_list.h"
#include "ashlar/block/immutable_block.h"
#include "ashlar/events/tier.h"
#include "ashlar/tiers/block_record.h"

namespace ashlar::tiers {

using OnboardTable = block::BlockList<block::ImmutableBlock<events::G1>>;

enum class BlockState : std::uint8_t { kHit, kPending, kMiss };

// Why a block was not brought up.
enum class Miss : std::uint8_t {
  kNone,
  kUnknown,   // no tier has it
  kBehind,    // one before it is missing
  kDeclined,  // computing it again is faster
  kNoRoom,    // G1, or G2 on the way, has no room
  kGone,      // it was evicted before it could be read
  kDamaged,   // its bytes do not agree with their checksum
  kFailed,    // it could not be read
  kForeign,   // it has the name, but another salt
  kCancelled,
  kLate,  // the deadline came first
};
inline constexpr std::size_t kMisses = 11;
std::string_view to_string(Miss miss) noexcept;

struct BlockOutcome {
  BlockState state = BlockState::kPending;
  Miss miss = Miss::kNone;
  std::optional<events::TierId> tier = {};  // that had it when it was looked for

  friend bool operator==(const BlockOutcome&, const BlockOutcome&) = default;
};

struct OnboardOptions {
  // How fast the caller computes. Hits that take longer than that are declined. Nothing: none is.
  std::optional<double> compute_tokens_per_second = {};
  std::optional<Clock::TimePoint> deadline = {};
  // G1 gets layer after layer of all blocks, so that computing can start with the first: see wait_layer().
  bool by_layer = false;
  // Of the request; a block with another one is a miss. Zero: not compared.
  SaltFingerprint salt = {};
};

class OnboardCall;

class OnboardHandle {
 public:
  explicit OnboardHandle(std::shared_ptr<OnboardCall> call) noexcept : call_(std::move(call)) {}

  // One for each hash that was asked for.
  std::vector<BlockOutcome> blocks() const;
  bool done() const;
  // Waits for the end; the blocks that are in G1 now, from the first on. Handed over once, empty after that.
  // Errors: kCancelled.
  Result<OnboardTable> wait() const;
  // The same, no longer than until `when`. Errors: also kTimeout; the blocks go on.
  Result<OnboardTable> wait_until(Clock::TimePoint when) const;
  // Waits until a layer of every block that is going to be there is in G1, and says which blocks of G1 they
  // are, in order. They are not to be written to. Errors: kCancelled; those of the copy, after which nothing
  // of these blocks may be used. Requires: by_layer was asked for.
  Result<std::vector<block::BlockId>> wait_layer(std::uint32_t layer) const;
  void cancel() const;

 private:
  std::shared_ptr<OnboardCall> call_;
};

}  // namespace ashlar::tiers
