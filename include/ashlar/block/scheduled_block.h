// ScheduledBlock: its tokens are final for the coming step, the computation has not started. State:
// ReadyForScheduling.
//
//   launch(fence) -> InflightBlock
//   cancel()      -> PartialBlock
//   drop          -> the reset pool
//
// Thread safety: thread-compatible. Size: 16 bytes.
#pragma once

#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/slot_transitions.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/partial_block.h"
#include "ashlar/events/tier.h"

namespace ashlar::block {

template <events::Tier Tier>
class [[nodiscard]] ScheduledBlock {
 public:
  // Holds no block; a place to receive one.
  ScheduledBlock() = default;

  explicit operator bool() const noexcept { return !slot_.empty(); }
  BlockId block_id() const noexcept { return BlockId(slot_.get().id); }
  std::uint32_t block_size() const noexcept { return detail::block_size_of(slot_.get()); }

  // The computation was started; `fence` passes when the device reports its end.
  [[nodiscard]] InflightBlock<Tier> launch(Fence fence) &&;
  [[nodiscard]] PartialBlock<Tier> cancel() && {
    detail::cancel_schedule(slot_.get());
    return PartialBlock<Tier>(std::move(slot_));
  }

 private:
  friend class PartialBlock<Tier>;
  explicit ScheduledBlock(detail::OwnedSlot slot) noexcept : slot_(std::move(slot)) {}

  detail::OwnedSlot slot_;
};

template <events::Tier Tier>
auto PartialBlock<Tier>::schedule() && -> Result<ScheduledBlock<Tier>, Rejected<PartialBlock>> {
  if (auto refused = detail::schedule(slot_.get())) {
    return Unexpected(Rejected<PartialBlock>{*std::move(refused), std::move(*this)});
  }
  return ScheduledBlock<Tier>(std::move(slot_));
}

}  // namespace ashlar::block

#include "ashlar/block/inflight_block.h"  // completes launch()
