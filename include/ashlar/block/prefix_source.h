// PrefixSource: where the sequences of a manager find prefixes that the manager does not hold itself: the
// tiers below it. A manager with a source brings such blocks into its pool when a sequence matches its
// prefix, and offers the blocks of a preempted sequence to the source.
//
// tiers::KvBlockManager is the source of its G1; a user's own source serves any other pool.
//
// Thread safety: thread-safe. Arrival is thread-compatible; its callback runs on a thread of the source.
// Complexity:    has() is a look-up, the others are O(blocks); the source says what bringing costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

// How much a match may bring from below.
struct PrefixBudget {
  std::size_t max_blocks = std::numeric_limits<std::size_t>::max();  // 0: nothing comes from below
  // From the call on. What has not arrived by then is left out. Empty: as long as it takes.
  std::optional<Clock::Duration> time = {};
  // How fast the caller computes: blocks that it recomputes sooner stay below. Empty: all are brought.
  std::optional<double> compute_tokens_per_second = {};
  // Layer by layer over all blocks, so that computing can begin with the first
  // (RequestSequence::wait_layer(), Sequence::wait_layer()).
  bool by_layer = false;
};

// How a match began that does not wait: RequestSequence::begin_match(), SequenceManager::begin_allocate().
struct MatchStart {
  std::size_t cached = 0;  // tokens that the manager has now
  bool pending = false;    // more is on its way: on_ready will be called
};

class PrefixSource {
 public:
  // Blocks to bring, in the order of their need.
  struct Wanted {
    std::span<const tokens::SequenceHash> hashes;
    std::span<const tokens::PrefixDigest> prefixes;  // one per hash: a block with another digest is a miss
    tokens::SaltFingerprint salt = {};
    // For the events of blocks that are found elsewhere, if they are one stretch of a sequence: the block
    // before the first, the first of the sequence, the hashes of their own tokens, their group of layers.
    std::optional<tokens::SequenceHash> parent = {};
    std::optional<tokens::SequenceHash> root = {};
    std::span<const tokens::LocalHash> locals = {};  // one per hash, or none
    std::uint16_t group = 0;
  };
  // Blocks whose choice depends on what the source has: those of several cache groups, or of a window. It
  // owns what it names: the source may keep it, and call it on another thread, one at a time and without
  // locks.
  class Choice {
   public:
    virtual ~Choice() = default;
    // has() will be asked about these blocks: the sequence in order, once per group. Where looking takes
    // time, look first.
    virtual std::span<const Wanted> candidates() const = 0;
    // The blocks to bring, which live as long as the choice; perhaps none. Called once.
    virtual Wanted choose(PrefixSource& source) = 0;
  };
  // Blocks on their way into the pool. Those that have arrived stay there until its end. Destroying it
  // cancels the rest.
  class Arrival {
   public:
    virtual ~Arrival() = default;
    virtual bool done() const = 0;
    // Waits for the end. Returns how many leading blocks are in the pool.
    virtual std::size_t wait() = 0;
    // Waits until a layer of every arriving block is in the pool, and returns these blocks in order. Errors:
    // kInvalidArgument without by_layer, or beyond the layers; kTimeout: `until` passed first, the copies go
    // on; those of the copies.
    virtual Result<std::vector<BlockId>> wait_layer(std::uint32_t layer,
                                                    std::optional<Clock::TimePoint> until) = 0;
  };

  virtual ~PrefixSource() = default;

  // A sequence found these blocks in the pool itself.
  virtual void matched(std::span<const BlockId>) noexcept {}
  // Whether it finds blocks that no tier here knows, and publishes them: it then wants Wanted::locals.
  virtual bool discovers() const noexcept { return false; }
  // Whether some tier seems to have a block: a hint.
  virtual bool has(const tokens::SequenceHash& hash) = 0;
  // Brings the longest prefix of the wanted blocks that the tiers have. Null when that is none. Without
  // `on_done` it has ended. With it, this does not wait; unless it returns null, `on_done` is called once at
  // the end, perhaps before this returns, or after the arrival was destroyed.
  virtual std::unique_ptr<Arrival> bring(const Wanted& wanted, const PrefixBudget& budget,
                                         std::function<void()> on_done) = 0;
  // The same for blocks that depend on what the tiers have. A source whose look-ups take time overrides it:
  // with `on_done` they too must not keep the caller waiting.
  virtual std::unique_ptr<Arrival> bring_chosen(std::unique_ptr<Choice> choice, const PrefixBudget& budget,
                                                std::function<void()> on_done) {
    const Wanted wanted = choice->choose(*this);
    if (wanted.hashes.empty()) return nullptr;
    return bring(wanted, budget, std::move(on_done));
  }
  // A sequence is about to give these blocks of the pool back, and means to return.
  virtual void leaving(std::span<const tokens::SequenceHash> hashes) noexcept = 0;
};

}  // namespace ashlar::block
