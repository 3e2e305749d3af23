// InflightBlock: the device is computing its KV. State: Inflight.
//
//   compute_done() -> PartialBlock (not full) or CompleteBlock (full)
//   drop           -> quarantine until the fence has passed, then the reset pool
//
// Thread safety: thread-compatible. Size: 16 bytes.
#pragma once

#include <utility>
#include <variant>

#include "ashlar/base/result.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/complete_block.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/slot_transitions.h"
#include "ashlar/block/partial_block.h"
#include "ashlar/block/scheduled_block.h"
#include "ashlar/events/tier.h"

namespace ashlar::block {

template <events::Tier Tier>
class [[nodiscard]] InflightBlock {
 public:
  // What a finished computation leaves: a block with room, or a complete one.
  using Done = std::variant<PartialBlock<Tier>, CompleteBlock<Tier>>;

  // Holds no block; a place to receive one.
  InflightBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

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

template <events::Tier Tier>
InflightBlock<Tier> ScheduledBlock<Tier>::launch(Fence fence) && {
  detail::launch(slot_.get(), std::move(fence));
  return InflightBlock<Tier>(std::move(slot_));
}

}  // namespace ashlar::block
