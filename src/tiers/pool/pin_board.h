// PinBoard: pins by hash over all tiers. A request names hashes and a time; every tier pins the blocks
// of them that it has, and those that it gets while the request lasts.
//
// A request is on the board before the tiers are asked for its blocks, and a tier reports a block after it
// can be found there: so each block is found by one of the two, or by both, and then pinned once.
//
// Thread safety: thread-safe. Holds a lock only to look at its own tables: pins begin and end outside.
// Complexity:    an arrival costs one atomic load while nothing is requested.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_observer.h"
#include "ashlar/block/pin.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

class PinBoard;

// The pins of one KvPin.
class PinRequest {
 public:
  PinRequest(std::weak_ptr<PinBoard> board, std::vector<tokens::SequenceHash> hashes, Clock::TimePoint end)
      : hashes_(std::move(hashes)), end_(end), board_(std::move(board)) {}

  // True until it is ended, or its time is over, or the board is gone.
  bool active() const;
  std::size_t pinned() const;
  std::size_t refused() const;
  void end() noexcept;

 private:
  friend class PinBoard;
  using Key = std::pair<tokens::SequenceHash, events::TierId>;
  using Pins = std::map<Key, block::Pin>;

  // Pins the block of a hash in a tier, if the tier has it. Errors: kCapacity.
  Result<void> pin(TierPool& pool, const tokens::SequenceHash& hash, Clock::TimePoint now);

  const std::vector<tokens::SequenceHash> hashes_;
  const Clock::TimePoint end_;
  const std::weak_ptr<PinBoard> board_;
  mutable Mutex mu_;  // a leaf
  Pins pins_ ASHLAR_GUARDED_BY(mu_);
  std::set<tokens::SequenceHash> forgotten_ ASHLAR_GUARDED_BY(mu_);
  std::size_t refused_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool ended_ ASHLAR_GUARDED_BY(mu_) = false;
};

class PinBoard : public std::enable_shared_from_this<PinBoard> {
 public:
  explicit PinBoard(Clock& clock) : clock_(clock) {}

  // Errors: kInvalidArgument: the time is not positive; kCapacity: a tier has no pin left; then nothing is
  // pinned.
  Result<std::shared_ptr<PinRequest>> pin(std::span<const tokens::SequenceHash> hashes, Clock::Duration ttl,
                                          std::span<TierPool* const> pools);
  // Blocks can be found in a tier. Their registration still refers to them.
  void arrived(TierPool& pool, std::span<const block::RegisteredBlock> blocks) noexcept;
  // Ends the pins of these hashes; the requests no longer name them.
  void forget(std::span<const tokens::SequenceHash> hashes);
  // A tier gives up its blocks of these hashes: ends their pins there. A block that arrives later is pinned
  // again.
  void removed(events::TierId tier, std::span<const tokens::SequenceHash> hashes) noexcept;
  // Ends the pins that one tier has now.
  void forget_in(events::TierId tier);
  // Requests that name the hash and are not over.
  std::size_t requests_for(const tokens::SequenceHash& hash) const;

 private:
  friend class PinRequest;
  void take_off(PinRequest& request) noexcept;
  Clock::TimePoint now() const { return clock_.now(); }

  Clock& clock_;
  mutable Mutex mu_;  // a leaf
  std::unordered_multimap<tokens::SequenceHash, std::shared_ptr<PinRequest>> wanted_ ASHLAR_GUARDED_BY(mu_);
  // Of wanted_. relaxed: a store's lock orders an arrival with a request that did not find the block.
  std::atomic<std::size_t> count_{0};
};

}  // namespace ashlar::tiers
