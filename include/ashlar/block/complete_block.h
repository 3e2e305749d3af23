// CompleteBlock: full, its KV exists, its name is known, and nobody else can see it yet. State: Complete.
//
//   BlockManager::register_block(block) -> ImmutableBlock
//   reset()                             -> MutableBlock
//   drop                                -> the reset pool
//
// Thread safety: thread-compatible. Size: 16 bytes.
#pragma once

#include <utility>

#include "ashlar/block/block_id.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

template <events::Tier Tier>
class MutableBlock;
template <events::Tier Tier>
class PartialBlock;
template <events::Tier Tier>
class InflightBlock;
template <events::Tier Tier>
class BlockManager;

template <events::Tier Tier>
class [[nodiscard]] CompleteBlock {
 public:
  // Holds no block; a place to receive one.
  CompleteBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }
  tokens::SequenceHash sequence_hash() const noexcept { return detail::hash_of(slot_.get()); }
  // Of all tokens up to the block's end; not known when it was staged by its name alone.
  tokens::PrefixDigest prefix_digest() const noexcept { return detail::prefix_of(slot_.get()); }

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

}  // namespace ashlar::block
