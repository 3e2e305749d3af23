// MutableBlock: a block that is the caller's alone and empty. State: Reset, taken out of its pool.
//
//   init_sequence(start)          -> PartialBlock    tokens are built on the block
//   complete(token_block, ready)  -> CompleteBlock   the tokens are known
//   stage(identity, ready)        -> CompleteBlock   only the name is known, and trusted
//   drop                          -> the reset pool
//
// Transitions consume the guard and cannot be called on an lvalue. A refusal hands the guard back. C++ cannot
// forbid the use of a moved-from guard; it stops the process with a sentence.
//
// Thread safety: thread-compatible. Size: 16 bytes.
#pragma once

#include "ashlar/base/result.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/complete_block.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/slot_transitions.h"
#include "ashlar/block/kv_ready.h"
#include "ashlar/block/sequence_start.h"
#include "ashlar/events/tier.h"

namespace ashlar::block {

template <events::Tier Tier>
class PartialBlock;
template <events::Tier Tier>
class BlockManager;

template <events::Tier Tier>
class [[nodiscard]] MutableBlock {
 public:
  // Holds no block; a place to receive one.
  MutableBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  // Errors: kInvalidArgument when the token block's size is not the manager's block size.
  [[nodiscard]] auto complete(const tokens::TokenBlock& tokens,
                              KvReady) && -> Result<CompleteBlock<Tier>, Rejected<MutableBlock>> {
    if (auto refused = detail::complete(slot_.get(), tokens)) {
      return Unexpected(Rejected<MutableBlock>{*std::move(refused), std::move(*this)});
    }
    return CompleteBlock<Tier>(std::move(slot_));
  }

  // The name is trusted: a wrong one poisons the cache for everyone who shares it.
  [[nodiscard]] CompleteBlock<Tier> stage(const BlockIdentity& identity, KvReady) && {
    detail::stage(slot_.get(), identity);
    return CompleteBlock<Tier>(std::move(slot_));
  }
  [[nodiscard]] CompleteBlock<Tier> stage(const tokens::SequenceHash& hash, KvReady ready) && {
    return std::move(*this).stage(BlockIdentity{hash, std::nullopt, std::nullopt}, ready);
  }

  // Errors: kInvalidArgument when the parent's position is the last one there is, and when the parent's name
  // is keyed and the hash scheme is not, or the other way round.
  [[nodiscard]] auto init_sequence(
      const SequenceStart& start) && -> Result<PartialBlock<Tier>, Rejected<MutableBlock>>;

 private:
  friend class BlockManager<Tier>;
  friend class PartialBlock<Tier>;
  friend class CompleteBlock<Tier>;
  explicit MutableBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

template <events::Tier Tier>
MutableBlock<Tier> CompleteBlock<Tier>::reset() && {
  detail::reset(slot_.get());
  return MutableBlock<Tier>(std::move(slot_));
}

}  // namespace ashlar::block

#include "ashlar/block/partial_block.h"  // completes init_sequence()
