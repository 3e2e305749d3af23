// ImmutableBlock: one shared reference to a registered block. State: Registered.
//
//   copy                  one more reference
//   last drop             a primary goes to the inactive pool (or to the reset pool, set_reset_on_release());
//                         if it has a duplicate, that becomes the primary and this block goes to the reset
//                         pool. A duplicate goes to the reset pool.
//   downgrade()           -> WeakBlock, which does not keep the block
//   pin(ttl)              keeps the block from eviction for a while after the last drop
//   release_after(fence)  drops this reference when the fence passes
//
// A block table reads its ids from these guards: under DuplicatePolicy::kReject the guard names the block
// that is kept, which may differ from the registered candidate.
//
// WeakBlock: remembers a registered block without keeping it. upgrade() finds the block in use, revives it
// from the inactive pool, finds another block of the same hash, or finds nothing. It does not count as a use:
// it adds to no frequency and runs no touch callback. It is safe after the manager is gone.
//
// Thread safety: thread-compatible; different guards of one block may be used by different threads at once.
// Complexity:    O(1). Copy, drop and upgrade() take no lock while the block stays in use. Size of an
//                ImmutableBlock: 16 bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/store_calls.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/pin.h"
#include "ashlar/block/registration_handle.h"
#include "ashlar/block/tier.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

template <events::Tier Tier>
class WeakBlock;
template <events::Tier Tier>
class BlockManager;

template <events::Tier Tier>
class [[nodiscard]] ImmutableBlock {
 public:
  // An empty guard; assign a block to it.
  ImmutableBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }
  tokens::SequenceHash sequence_hash() const noexcept { return detail::hash_of(slot_.get()); }
  // The digest of all tokens up to the block's end; unknown when it was staged by name alone.
  tokens::PrefixDigest prefix_digest() const noexcept { return detail::prefix_of(slot_.get()); }
  // The entry of its hash: attachments, presence in other tiers, touch callbacks.
  RegistrationHandle registration_handle() const { return detail::registration_handle_of(slot_.get()); }

  // References to this block now. A hint under concurrency.
  std::uint32_t use_count() const noexcept { return detail::use_count_of(slot_.get()); }
  // True while another block is the primary of this hash: with kAllow, the one registered last. When that one
  // loses its last reference, this block may become the primary again.
  bool is_duplicate() const noexcept { return detail::is_duplicate(slot_.get()); }

  // Whether the last drop resets the block instead of caching it. Stays with the block while it is
  // registered; the last writer wins. A duplicate is always reset; its flag counts once it has become the
  // primary.
  void set_reset_on_release(bool reset) noexcept { detail::set_reset_on_release(slot_.get(), reset); }

  // The block's retention, for eviction backends that use it (priority order, retention); others ignore it.
  // Stays with the block while it is registered; the last writer wins. Errors: kInvalidArgument for the
  // priority.
  Result<void> set_retention(const BlockRetention& retention) {
    ASHLAR_RETURN_IF_ERROR(retention.validate());
    detail::set_retention(slot_.get(), retention);
    return {};
  }

  // Remembers the block without keeping it. This guard is unchanged.
  [[nodiscard]] WeakBlock<Tier> downgrade() const;
  // A duplicate is not cached: its pin keeps the primary of its hash. Errors: kInvalidArgument for a ttl that
  // is not positive; kCapacity when the manager's pin table is full.
  [[nodiscard]] Result<Pin> pin(Clock::Duration ttl) const {
    return detail::pin(slot_.get(), ttl).transform([](detail::PinRef pin) { return Pin(std::move(pin)); });
  }
  // For work in flight that still reads the block: the reference lives until the fence passes. Without memory
  // for that it throws std::bad_alloc, and this guard keeps the reference.
  void release_after(const Fence& fence) && {
    detail::drop_reference_after(slot_.get(), fence);
    slot_.take();
  }

  // Drops many references of one manager under one hold of its lock, from the last to the first. The guards
  // are empty afterwards.
  static void release(std::span<ImmutableBlock> blocks) noexcept;

 private:
  friend class BlockManager<Tier>;
  friend class WeakBlock<Tier>;
  explicit ImmutableBlock(detail::SharedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::SharedSlot slot_;
};

template <events::Tier Tier>
void ImmutableBlock<Tier>::release(std::span<ImmutableBlock> blocks) noexcept {
  detail::Dropper dropper;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (const detail::SlotRef slot = blocks[i].slot_.detach(); slot.store != nullptr) dropper.drop(slot);
  }
}

template <events::Tier Tier>
class WeakBlock {
 public:
  // Remembers nothing; upgrade() finds nothing.
  WeakBlock() = default;

  // The hash of the remembered block, found or not.
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
