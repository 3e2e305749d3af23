// The guards' calls into the store, untyped. The guards add tier and state to the type.
//
// Thread safety: thread-compatible per slot, as the guards are; the store behind them is thread-safe.
// Complexity:    O(1), O(tokens) where tokens are added or read.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/registration_handle.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::block::detail {

// ---- Transitions of uniquely owned slots. A refused transition changes nothing.
// Requires (all): the caller owns the slot, in the state that the section names.

// From Mutable to Complete, or to Partial by init_sequence().
Result<void> complete(const SlotRef& slot, const tokens::TokenBlock& block);
void stage(const SlotRef& slot, const BlockIdentity& identity);
// With tokens that the caller has hashed. Requires: exactly one block of them.
void complete(const SlotRef& slot, const BlockIdentity& identity, std::span<const tokens::Token> tokens);
Result<void> init_sequence(const SlotRef& slot, const SequenceStart& start);

// In Complete. Empty when the store has none: staged by name, or completed with a token block and not kept.
std::span<const tokens::Token> complete_tokens_of(const SlotRef& slot) noexcept;

// In Partial; commit() leads to Complete, schedule() to Scheduled.
Result<void> add_tokens(const SlotRef& slot, std::span<const tokens::Token> tokens);
Result<void> pop_tokens(const SlotRef& slot, std::uint32_t count);
// The next two also in Scheduled and Inflight.
std::span<const tokens::Token> tokens_of(const SlotRef& slot);
std::uint32_t computed_tokens_of(const SlotRef& slot);
// The name of a full block; nullopt for another.
std::optional<tokens::SequenceHash> full_hash_of(const SlotRef& slot);
Result<void> commit(const SlotRef& slot);
Result<void> schedule(const SlotRef& slot);

// From Scheduled, to Inflight and back to Partial.
void launch(const SlotRef& slot, Fence fence);
void cancel_schedule(const SlotRef& slot);

// From Inflight. True when the block is full and thereby complete.
Result<bool> compute_done(const SlotRef& slot);

// From Partial and Complete, to Mutable.
void reset(const SlotRef& slot);

// ---- Registered slots.

// A slot that may be gone: enough to find it again, or its content elsewhere in the same store. The hash
// identifies the content; the slot is where to look first.
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

// A held block. The slot belongs to the block until the hold ends.
struct HoldRef {
  std::weak_ptr<BlockStore> store;
  tokens::SequenceHash hash;
  std::uint32_t slot = 0;
};

// Why there is no hold.
enum class NotHeld : std::uint8_t { kAbsent, kTooOften, kNoMemory };

// Requires (all): the caller holds a reference to the slot.
RegistrationHandle registration_handle_of(const SlotRef& slot);
std::uint32_t use_count_of(const SlotRef& slot) noexcept;
bool is_duplicate(const SlotRef& slot) noexcept;
void set_reset_on_release(const SlotRef& slot, bool reset) noexcept;
void set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept;
// Consumes the reference when the fence passes.
void drop_reference_after(const SlotRef& slot, const Fence& fence);

// A weak slot keeps neither the block nor the store. upgrade() counts one reference for the caller.
WeakSlot downgrade(const SlotRef& slot);
std::optional<SlotRef> upgrade(const WeakSlot& weak);

// Errors: kInvalidArgument for the ttl; kCapacity. unpin() of a pin that has ended does nothing.
Result<PinRef> pin(const SlotRef& slot, Clock::Duration ttl);
void unpin(const PinRef& pin) noexcept;
bool is_pinned(const PinRef& pin) noexcept;

// Once per hold. Safe after the store is closed.
void end_hold(const HoldRef& hold) noexcept;

}  // namespace ashlar::block::detail
