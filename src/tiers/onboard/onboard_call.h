// OnboardCall: one request for blocks in G1, shared by the onboarder and its handles.
//
// Thread safety: thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/tiers/onboard_handle.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token_block.h"
#include "tiers/pool/move_control.h"

namespace ashlar::tiers {

class OnboardCall {
 public:
  // `layers`: of a block.
  OnboardCall(std::span<const tokens::SequenceHash> wanted, const OnboardOptions& how, bool only_to_g2,
              std::uint32_t layers, Clock& clock)
      : options(how), to_g2(only_to_g2), block_layers_(layers), clock_(clock) {
    want(wanted, options.prefixes, options.salt);
  }

  // Constant while the call runs, but for on_done: finish() drops it, since what it holds may in turn hold
  // the handles of this call, or the manager.
  OnboardOptions options;
  const bool to_g2;  // a prefetch: no further than G2
  MoveControl control;
  // Set before the call runs, for a call without blocks: calls want() on the call's thread. Volumes are asked
  // by it alone. What it keeps is dropped when it returns.
  std::function<void(OnboardCall&)> choose = {};

  // The token blocks of its hashes, one each, whose tokens G1 is to have; or none. Set before the call runs.
  std::vector<tokens::TokenBlock> text = {};

  // Whether its blocks were all in G1 and G2 when it was queued. Set before that.
  bool in_memory = false;

  // Before the call runs, or by `choose`.
  void want(std::span<const tokens::SequenceHash> wanted, std::span<const tokens::PrefixDigest> prefixes,
            tokens::SaltFingerprint salt) {
    ASHLAR_CHECK(prefixes.empty() || prefixes.size() == wanted.size(),
                 "%zu digests for %zu hashes; give one each, or none", prefixes.size(), wanted.size());
    ASHLAR_DCHECK(hashes_.empty(), "a call for %zu blocks chooses others", hashes_.size());
    hashes_.assign(wanted.begin(), wanted.end());
    salt_ = salt;
    for (std::size_t i = 0; i < prefixes.size(); ++i) prefixes_.emplace(hashes_[i], prefixes[i]);
    const MutexLock lock(mu_);
    blocks_.resize(hashes_.size());
  }
  // For the call's thread.
  std::span<const tokens::SequenceHash> hashes() const { return hashes_; }
  tokens::SaltFingerprint salt() const { return salt_; }

  // Unknown when the caller gave none.
  tokens::PrefixDigest prefix_of(const tokens::SequenceHash& hash) const {
    const auto found = prefixes_.find(hash);
    return found == prefixes_.end() ? tokens::PrefixDigest() : found->second;
  }
  bool stopped() const { return control.cancelled(); }
  bool late() const { return options.deadline && clock_.now() >= *options.deadline; }

  // ---- for the onboarder

  void hit(std::size_t block) {
    const MutexLock lock(mu_);
    ASHLAR_DCHECK(blocks_[block].state == OnboardState::kPending, "block %zu of a request ends twice", block);
    blocks_[block].state = OnboardState::kHit;
  }
  void found_in(std::size_t block, events::TierId tier) {
    const MutexLock lock(mu_);
    blocks_[block].tier = tier;
  }
  // Marks the blocks from `first` on as misses: the first for this reason, the later ones because of it.
  void miss(std::size_t first, Miss why) {
    const MutexLock lock(mu_);
    for (std::size_t i = first; i < blocks_.size(); ++i) {
      blocks_[i].state = OnboardState::kMiss;
      if (blocks_[i].miss == Miss::kNone) blocks_[i].miss = i == first ? why : Miss::kBehind;
    }
  }
  void miss_range(std::size_t first, std::size_t end, Miss why) {
    const MutexLock lock(mu_);
    for (std::size_t i = first; i < end; ++i) {
      blocks_[i].state = OnboardState::kMiss;
      blocks_[i].miss = why;
    }
  }
  // The blocks in the table so far, plus those of the next move.
  void places(std::vector<block::BlockId> ids) {
    const MutexLock lock(mu_);
    ids_ = std::move(ids);
  }
  void failed(const Error& error) {
    const MutexLock lock(mu_);
    if (!error_) error_ = error;
  }
  void layer_arrived(std::uint32_t layer) {
    const MutexLock lock(mu_);
    ASHLAR_CHECK(layer == layers_, "layer %u arrives after %u layers", layer, layers_);
    layers_ = layer + 1;
    changed_.notify_all();
  }
  // Ends the call. A cancelled call drops its blocks before it is done.
  void finish(OnboardTable table) {
    end(std::move(table));
    if (const std::function<void()> on_done = std::exchange(options.on_done, {})) on_done();
  }
  void end(OnboardTable table) {
    {
      const MutexLock lock(mu_);
      ASHLAR_CHECK(!done_, "an onboard request is finished twice");
      ASHLAR_DCHECK(to_g2 || static_cast<std::size_t>(std::ranges::count(
                                 blocks_, OnboardState::kHit, &BlockOutcome::state)) == table.size(),
                    "%zu blocks are handed over, and others are hits", table.size());
      if (!stopped()) {
        ids_.clear();
        for (const auto& block : table) ids_.push_back(block.block_id());
        table_ = std::move(table);
        done_ = true;
        changed_.notify_all();
        return;
      }
    }
    table.clear();
    const MutexLock lock(mu_);
    for (BlockOutcome& block : blocks_) block = {OnboardState::kMiss, Miss::kCancelled, block.tier};
    done_ = true;
    changed_.notify_all();
  }

  // ---- for handles

  std::vector<BlockOutcome> blocks() const {
    const MutexLock lock(mu_);
    return blocks_;
  }
  bool done() const {
    const MutexLock lock(mu_);
    return done_;
  }
  Result<OnboardTable> wait(std::optional<Clock::TimePoint> when) {
    const MutexLock lock(mu_);
    while (!done_)
      if (!wait_for_change_locked(when))
        return make_error(ErrorCode::kTimeout, "the blocks are still in flight");
    if (stopped()) return make_error(ErrorCode::kCancelled, "the onboard request was cancelled");
    return std::exchange(table_, OnboardTable());
  }
  Result<std::vector<block::BlockId>> wait_layer(std::uint32_t layer, std::optional<Clock::TimePoint> until) {
    if (!options.by_layer)
      return make_error(ErrorCode::kInvalidArgument,
                        "layer %u of a request without by_layer; set OnboardOptions::by_layer", layer);
    if (layer >= block_layers_)
      return make_error(ErrorCode::kInvalidArgument, "layer %u of blocks with %u layers, counted from 0",
                        layer, block_layers_);
    const MutexLock lock(mu_);
    const std::size_t promised = ids_.size();
    while (!done_ && layers_ <= layer)
      if (!wait_for_change_locked(until))
        return make_error(ErrorCode::kTimeout, "layer %u of the blocks is still in flight", layer);
    if (stopped()) return make_error(ErrorCode::kCancelled, "the onboard request was cancelled");
    const std::size_t most = std::max(promised, told_);
    if (done_ && most > ids_.size() && error_) return *error_;
    if (done_ && most > ids_.size())
      return make_error(ErrorCode::kIo, "%zu of %zu blocks did not arrive", most - ids_.size(), most);
    told_ = ids_.size();
    return ids_;
  }
  // Blocks that have arrived are returned once the onboarder notices.
  void cancel() {
    control.cancel();
    OnboardTable dropped;
    const MutexLock lock(mu_);
    dropped = std::exchange(table_, OnboardTable());
  }

 private:
  // False: `until` has passed.
  bool wait_for_change_locked(std::optional<Clock::TimePoint> until) ASHLAR_REQUIRES(mu_) {
    if (!until) {
      changed_.wait(mu_);
      return true;
    }
    if (clock_.now() >= *until) return false;
    clock_.wait_until(changed_, mu_, *until);
    return true;
  }

  const std::uint32_t block_layers_;
  std::vector<tokens::SequenceHash> hashes_;
  tokens::SaltFingerprint salt_ = {};
  std::unordered_map<tokens::SequenceHash, tokens::PrefixDigest> prefixes_;
  Clock& clock_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<BlockOutcome> blocks_ ASHLAR_GUARDED_BY(mu_);
  std::vector<block::BlockId> ids_ ASHLAR_GUARDED_BY(mu_);
  std::uint32_t layers_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::size_t told_ ASHLAR_GUARDED_BY(mu_) = 0;  // blocks reported by wait_layer()
  bool done_ ASHLAR_GUARDED_BY(mu_) = false;
  OnboardTable table_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Error> error_ ASHLAR_GUARDED_BY(mu_);  // the first error of a copy into G1
};

}  // namespace ashlar::tiers
