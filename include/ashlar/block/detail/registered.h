// What registered guards ask of the store, untyped.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/registration_handle.h"

namespace ashlar::block::detail {

// A slot that may be gone: enough to find it again, or its content elsewhere in the same store. The hash says
// what the block is; the slot is where to look first.
struct WeakSlot {
  std::weak_ptr<BlockStore> store;
  tokens::SequenceHash hash;
  tokens::PrefixDigest prefix;
  std::uint32_t id = 0;
};

// One entry of the pin table; a pin that has expired no longer matches its serial.
struct PinRef {
  std::weak_ptr<BlockStore> store;
  std::uint32_t record = 0;
  std::uint64_t serial = 0;
};

// A block that is held. Its slot stays the block's until the hold ends.
struct HoldRef {
  std::weak_ptr<BlockStore> store;
  tokens::SequenceHash hash;
  std::uint32_t slot = 0;
};

RegistrationHandle registration_handle_of(const SlotRef& slot);
std::uint32_t use_count_of(const SlotRef& slot) noexcept;
bool is_duplicate(const SlotRef& slot) noexcept;
void set_reset_on_release(const SlotRef& slot, bool reset) noexcept;
void set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept;
// Consumes the reference when the fence passes.
void drop_reference_after(const SlotRef& slot, const Fence& fence);

WeakSlot downgrade(const SlotRef& slot);
std::optional<SlotRef> upgrade(const WeakSlot& weak);

Result<PinRef> pin(const SlotRef& slot, Clock::Duration ttl);
void unpin(const PinRef& pin) noexcept;
bool is_pinned(const PinRef& pin) noexcept;

void end_hold(const HoldRef& hold) noexcept;

}  // namespace ashlar::block::detail
