// The guards of a block that has one owner: MutableBlock, PartialBlock, ScheduledBlock, InflightBlock and
// CompleteBlock, one type per state of docs/block_lifecycle.md.
//
//   MutableBlock -> PartialBlock -> ScheduledBlock -> InflightBlock -> CompleteBlock
//
// Transitions consume the guard and cannot be called on an lvalue. A refusal hands the guard back. C++ cannot
// forbid the use of a moved-from guard; doing so stops the process with a message. Dropping a guard returns
// its block. A default-constructed guard is empty; assign a block to it.
//
// Thread safety: thread-compatible. Size: 16 bytes each.
// Complexity:    O(1), O(tokens) where tokens are added; a drop takes the store's lock.
// Invariant:     a block has at most one guard of these types, and then no ImmutableBlock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/store_calls.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/tier.h"
#include "ashlar/tokens/token.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::block {

template <events::Tier Tier>
class BlockManager;
template <events::Tier Tier>
class PartialBlock;
template <events::Tier Tier>
class ScheduledBlock;
template <events::Tier Tier>
class InflightBlock;
template <events::Tier Tier>
class CompleteBlock;

// An empty block that the caller owns alone. State: Reset, taken out of its pool.
//
//   init_sequence(start)          -> PartialBlock    tokens are built on the block
//   complete(token_block, ready)  -> CompleteBlock   the tokens are known
//   stage(identity, ready)        -> CompleteBlock   only the name is known, and trusted
//   drop                          -> the reset pool
template <events::Tier Tier>
class [[nodiscard]] MutableBlock {
 public:
  // An empty guard; assign a block to it.
  MutableBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  // Errors: kInvalidArgument when the token block's size is not the manager's block size.
  // A digest under another key than ManagerOptions::prefix_key counts as unknown.
  [[nodiscard]] auto complete(const tokens::TokenBlock& tokens,
                              KvReady) && -> Result<CompleteBlock<Tier>, Rejected<MutableBlock>> {
    if (auto done = detail::complete(slot_.get(), tokens); !done) {
      return Unexpected(Rejected<MutableBlock>{std::move(done).error(), std::move(*this)});
    }
    return CompleteBlock<Tier>(std::move(slot_));
  }

  // The name is trusted: a wrong one poisons the cache for every sequence that shares it.
  [[nodiscard]] CompleteBlock<Tier> stage(const BlockIdentity& identity, KvReady) && {
    detail::stage(slot_.get(), identity);
    return CompleteBlock<Tier>(std::move(slot_));
  }
  [[nodiscard]] CompleteBlock<Tier> stage(const tokens::SequenceHash& hash, KvReady ready) && {
    return std::move(*this).stage(BlockIdentity{hash, std::nullopt, std::nullopt}, ready);
  }

  // Errors: kInvalidArgument when the parent is at the last position, and when only one of the parent's name
  // and the hash scheme is keyed.
  [[nodiscard]] auto init_sequence(
      const SequenceStart& start) && -> Result<PartialBlock<Tier>, Rejected<MutableBlock>>;

 private:
  friend class BlockManager<Tier>;
  friend class PartialBlock<Tier>;
  friend class CompleteBlock<Tier>;
  explicit MutableBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

// Tokens are being added to it. State: Partial.
//
//   add_token(s), pop_token(s)   stay Partial
//   schedule()                   -> ScheduledBlock   there are tokens whose KV is to be computed
//   commit(ready)                -> CompleteBlock    full, and the caller has the proof of its KV
//   reset()                      -> MutableBlock
//   drop                         -> the reset pool
//
// Adding a token allocates nothing once the slot has been used.
template <events::Tier Tier>
class [[nodiscard]] PartialBlock {
 public:
  // An empty guard; assign a block to it.
  PartialBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  // Valid until tokens are added or popped.
  std::span<const tokens::Token> tokens() const { return detail::tokens_of(slot_.get()); }
  // Leading tokens whose KV a finished computation has produced.
  std::uint32_t computed_tokens() const { return detail::computed_tokens_of(slot_.get()); }
  // Tokens that still fit.
  std::uint32_t remaining() const { return block_size() - static_cast<std::uint32_t>(tokens().size()); }
  bool is_full() const { return remaining() == 0; }
  // The name that commit() will give the block; nullopt unless it is full. O(block size).
  std::optional<tokens::SequenceHash> sequence_hash() const { return detail::full_hash_of(slot_.get()); }

  // All or nothing. Errors: kCapacity when the block has no room for them.
  Result<void> add_token(tokens::Token token) { return add_tokens({&token, 1}); }
  Result<void> add_tokens(std::span<const tokens::Token> tokens) {
    return detail::add_tokens(slot_.get(), tokens);
  }
  // Takes tokens off the end; their KV no longer counts as computed. Errors: kInvalidArgument when there are
  // fewer.
  Result<void> pop_token() { return pop_tokens(1); }
  Result<void> pop_tokens(std::uint32_t count) { return detail::pop_tokens(slot_.get(), count); }

  // Errors: kNotReady when no token waits for its KV.
  [[nodiscard]] auto schedule() && -> Result<ScheduledBlock<Tier>, Rejected<PartialBlock>>;
  // Errors: kNotReady when the block is not full.
  [[nodiscard]] auto commit(KvReady) && -> Result<CompleteBlock<Tier>, Rejected<PartialBlock>> {
    if (auto done = detail::commit(slot_.get()); !done) {
      return Unexpected(Rejected<PartialBlock>{std::move(done).error(), std::move(*this)});
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

// Its tokens are final for the coming step; the computation has not started. State: ReadyForScheduling.
//
//   launch(fence) -> InflightBlock
//   cancel()      -> PartialBlock
//   drop          -> the reset pool
template <events::Tier Tier>
class [[nodiscard]] ScheduledBlock {
 public:
  // An empty guard; assign a block to it.
  ScheduledBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  // Its tokens, and how many of them, from the first on, have their KV.
  std::span<const tokens::Token> tokens() const { return detail::tokens_of(slot_.get()); }
  std::uint32_t computed_tokens() const { return detail::computed_tokens_of(slot_.get()); }

  // The computation has started; `fence` passes when the device reports its end.
  [[nodiscard]] InflightBlock<Tier> launch(Fence fence) &&;
  // The step will not run: tokens may be added and popped again.
  [[nodiscard]] PartialBlock<Tier> cancel() && {
    detail::cancel_schedule(slot_.get());
    return PartialBlock<Tier>(std::move(slot_));
  }

 private:
  friend class PartialBlock<Tier>;
  explicit ScheduledBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

// The device is computing its KV. State: Inflight.
//
//   compute_done() -> PartialBlock (not full) or CompleteBlock (full)
//   drop           -> quarantine until the fence has passed, then the reset pool
template <events::Tier Tier>
class [[nodiscard]] InflightBlock {
 public:
  // The result of a finished computation: a block with room, or a complete one.
  using Done = std::variant<PartialBlock<Tier>, CompleteBlock<Tier>>;

  // An empty guard; assign a block to it.
  InflightBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  // Its tokens, and how many of them, from the first on, have their KV.
  std::span<const tokens::Token> tokens() const { return detail::tokens_of(slot_.get()); }
  std::uint32_t computed_tokens() const { return detail::computed_tokens_of(slot_.get()); }

  // Errors: kNotReady while the fence has not passed.
  [[nodiscard]] auto compute_done() && -> Result<Done, Rejected<InflightBlock>> {
    Result<bool> full = detail::compute_done(slot_.get());
    if (!full) return Unexpected(Rejected<InflightBlock>{std::move(full).error(), std::move(*this)});
    if (*full) return Done(CompleteBlock<Tier>(std::move(slot_)));
    return Done(PartialBlock<Tier>(std::move(slot_)));
  }

 private:
  friend class ScheduledBlock<Tier>;
  explicit InflightBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

// Full, its KV exists, its name is known, and no other caller can find it yet. State: Complete.
//
//   BlockManager::register_block(block) -> ImmutableBlock
//   reset()                             -> MutableBlock
//   drop                                -> the reset pool
template <events::Tier Tier>
class [[nodiscard]] CompleteBlock {
 public:
  // An empty guard; assign a block to it.
  CompleteBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }
  tokens::SequenceHash sequence_hash() const noexcept { return detail::hash_of(slot_.get()); }
  // The digest of all tokens up to the block's end; unknown when it was staged by name alone.
  tokens::PrefixDigest prefix_digest() const noexcept { return detail::prefix_of(slot_.get()); }

  // Its tokens, valid while it is Complete. Empty when it was staged by name, or completed with a TokenBlock
  // in a manager without keep_tokens.
  std::span<const tokens::Token> tokens() const noexcept { return detail::complete_tokens_of(slot_.get()); }

  // Forgets tokens and name.
  [[nodiscard]] MutableBlock<Tier> reset() &&;

 private:
  friend class MutableBlock<Tier>;
  friend class PartialBlock<Tier>;
  friend class InflightBlock<Tier>;
  friend class BlockManager<Tier>;
  explicit CompleteBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

template <events::Tier Tier>
MutableBlock<Tier> CompleteBlock<Tier>::reset() && {
  detail::reset(slot_.get());
  return MutableBlock<Tier>(std::move(slot_));
}

template <events::Tier Tier>
auto MutableBlock<Tier>::init_sequence(
    const SequenceStart& start) && -> Result<PartialBlock<Tier>, Rejected<MutableBlock>> {
  if (auto done = detail::init_sequence(slot_.get(), start); !done) {
    return Unexpected(Rejected<MutableBlock>{std::move(done).error(), std::move(*this)});
  }
  return PartialBlock<Tier>(std::move(slot_));
}

template <events::Tier Tier>
auto PartialBlock<Tier>::schedule() && -> Result<ScheduledBlock<Tier>, Rejected<PartialBlock>> {
  if (auto done = detail::schedule(slot_.get()); !done) {
    return Unexpected(Rejected<PartialBlock>{std::move(done).error(), std::move(*this)});
  }
  return ScheduledBlock<Tier>(std::move(slot_));
}

template <events::Tier Tier>
InflightBlock<Tier> ScheduledBlock<Tier>::launch(Fence fence) && {
  detail::launch(slot_.get(), std::move(fence));
  return InflightBlock<Tier>(std::move(slot_));
}

}  // namespace ashlar::block
