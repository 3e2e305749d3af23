// PartialBlock: tokens are being added to it. State: Partial.
//
//   add_token(s), pop_token(s)   stay Partial
//   schedule()                   -> ScheduledBlock   there are tokens whose KV is to be computed
//   commit(ready)                -> CompleteBlock    full, and the caller has the proof of its KV
//   reset()                      -> MutableBlock
//   drop                         -> the reset pool
//
// Thread safety: thread-compatible. Size: 16 bytes. Adding a token allocates nothing once the slot has been
// used.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/complete_block.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/slot_transitions.h"
#include "ashlar/block/kv_ready.h"
#include "ashlar/block/mutable_block.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block {

template <events::Tier Tier>
class ScheduledBlock;
template <events::Tier Tier>
class InflightBlock;

template <events::Tier Tier>
class [[nodiscard]] PartialBlock {
 public:
  // Holds no block; a place to receive one.
  PartialBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  std::span<const tokens::Token> tokens() const { return detail::tokens_of(slot_.get()); }
  // Leading tokens whose KV a finished computation has produced.
  std::uint32_t computed_tokens() const { return detail::computed_tokens_of(slot_.get()); }
  std::uint32_t remaining() const { return block_size() - static_cast<std::uint32_t>(tokens().size()); }
  bool is_full() const { return remaining() == 0; }

  // All or nothing. Errors: kCapacity when the block has no room for them.
  Result<void> add_token(tokens::Token token) { return add_tokens({&token, 1}); }
  Result<void> add_tokens(std::span<const tokens::Token> tokens) {
    if (auto refused = detail::add_tokens(slot_.get(), tokens)) return *std::move(refused);
    return {};
  }
  // Takes tokens off the end; their KV no longer counts as computed. Errors: kInvalidArgument when there are
  // fewer.
  Result<void> pop_token() { return pop_tokens(1); }
  Result<void> pop_tokens(std::uint32_t count) {
    if (auto refused = detail::pop_tokens(slot_.get(), count)) return *std::move(refused);
    return {};
  }

  // Errors: kNotReady when no token waits for its KV.
  [[nodiscard]] auto schedule() && -> Result<ScheduledBlock<Tier>, Rejected<PartialBlock>>;
  // Errors: kNotReady when the block is not full.
  [[nodiscard]] auto commit(KvReady) && -> Result<CompleteBlock<Tier>, Rejected<PartialBlock>> {
    if (auto refused = detail::commit(slot_.get())) {
      return Unexpected(Rejected<PartialBlock>{*std::move(refused), std::move(*this)});
    }
    return CompleteBlock<Tier>(std::move(slot_));
  }
  // Forgets the tokens.
  [[nodiscard]] MutableBlock<Tier> reset() && {
    detail::reset(slot_.get());
    return MutableBlock<Tier>(std::move(slot_));
  }

 private:
  friend class MutableBlock<Tier>;
  friend class ScheduledBlock<Tier>;
  friend class InflightBlock<Tier>;
  explicit PartialBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

template <events::Tier Tier>
auto MutableBlock<Tier>::init_sequence(
    const SequenceStart& start) && -> Result<PartialBlock<Tier>, Rejected<MutableBlock>> {
  if (auto refused = detail::init_sequence(slot_.get(), start)) {
    return Unexpected(Rejected<MutableBlock>{*std::move(refused), std::move(*this)});
  }
  return PartialBlock<Tier>(std::move(slot_));
}

}  // namespace ashlar::block

#include "ashlar/block/scheduled_block.h"  // completes schedule()
