// WeakBlock: remembers a registered block without keeping it.
//
// upgrade() finds the block alive, or revives it from the inactive pool, or finds another block of the same
// hash, or nothing. It is not a use: it counts no frequency and calls no touch callback. It is safe after the
// manager is gone.
//
// Thread safety: thread-compatible. Complexity: upgrade() is O(1), without a lock while the block is in use.
#pragma once

#include <optional>
#include <utility>

#include "ashlar/block/detail/registered.h"
#include "ashlar/block/immutable_block.h"
#include "ashlar/events/tier.h"

namespace ashlar::block {

template <events::Tier Tier>
class WeakBlock {
 public:
  // Remembers nothing; upgrade() finds nothing.
  WeakBlock() = default;

  tokens::SequenceHash sequence_hash() const noexcept { return weak_.hash; }
  [[nodiscard]] std::optional<ImmutableBlock<Tier>> upgrade() const {
    if (const auto slot = detail::upgrade(weak_)) return ImmutableBlock<Tier>(detail::SharedSlot(*slot));
    return std::nullopt;
  }

 private:
  friend class ImmutableBlock<Tier>;
  explicit WeakBlock(detail::WeakSlot weak) : weak_(std::move(weak)) {}

  detail::WeakSlot weak_;
};

template <events::Tier Tier>
WeakBlock<Tier> ImmutableBlock<Tier>::downgrade() const {
  return WeakBlock<Tier>(detail::downgrade(slot_.get()));
}

}  // namespace ashlar::block
