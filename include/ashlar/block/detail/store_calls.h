// The transitions of uniquely owned slots, untyped. The guards call these and put the state into the type.
//
// Each returns the error of a refusal, or nothing; a refused transition changes nothing.
// Requires (all): the caller owns the slot, in the state that the name of the section says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ashlar/base/error.h"
#include "ashlar/base/result.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/sequence_start.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::block::detail {

// From Mutable.
std::optional<Error> complete(const SlotRef& slot, const tokens::TokenBlock& block);
void stage(const SlotRef& slot, const BlockIdentity& identity);
// With tokens that the caller has hashed. Requires: as many as a block has.
void complete(const SlotRef& slot, const BlockIdentity& identity, std::span<const tokens::Token> tokens);
std::optional<Error> init_sequence(const SlotRef& slot, const SequenceStart& start);

// In Partial.
std::optional<Error> add_tokens(const SlotRef& slot, std::span<const tokens::Token> tokens);
std::optional<Error> pop_tokens(const SlotRef& slot, std::uint32_t count);
std::span<const tokens::Token> tokens_of(const SlotRef& slot);
std::uint32_t computed_tokens_of(const SlotRef& slot);
std::optional<Error> commit(const SlotRef& slot);
std::optional<Error> schedule(const SlotRef& slot);

// From Scheduled.
void launch(const SlotRef& slot, Fence fence);
void cancel_schedule(const SlotRef& slot);

// From Inflight. True when the block is full and thereby complete.
Result<bool> compute_done(const SlotRef& slot);

// From Partial and Complete, to Mutable.
void reset(const SlotRef& slot);

}  // namespace ashlar::block::detail
