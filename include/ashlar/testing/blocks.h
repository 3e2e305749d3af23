// Blocks in the state a test wants them in. What a manager refuses stops the process with its sentence.
//
// Thread safety: thread-safe, as the manager is.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/block/block_list.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/block/fence.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token_block.h"
#include "ashlar/tokens/token_sequence.h"

namespace ashlar::testing {

// One empty block.
template <events::Tier Tier>
block::MutableBlock<Tier> allocate_one(block::BlockManager<Tier>& manager) {
  auto blocks = manager.allocate_blocks(1);
  ASHLAR_CHECK(blocks.has_value(), "no block: %s", blocks.error().to_error().to_string().c_str());
  return blocks->take_back();
}

// One complete block, not registered: of these tokens, or of this name alone.
template <events::Tier Tier>
block::CompleteBlock<Tier> completed(block::BlockManager<Tier>& manager, const tokens::TokenBlock& tokens) {
  auto complete = allocate_one(manager).complete(tokens, block::KvReady::asserted_by_caller());
  ASHLAR_CHECK(complete.has_value(), "not completed: %s", complete.error().error.to_string().c_str());
  return *std::move(complete);
}
template <events::Tier Tier>
block::CompleteBlock<Tier> staged(block::BlockManager<Tier>& manager, const tokens::SequenceHash& hash) {
  return allocate_one(manager).stage(hash, block::KvReady::asserted_by_caller());
}

template <events::Tier Tier>
block::ImmutableBlock<Tier> register_one(block::BlockManager<Tier>& manager,
                                         block::CompleteBlock<Tier> block) {
  auto registered = manager.register_block(std::move(block));
  ASHLAR_CHECK(registered.has_value(), "not registered: %s", registered.error().error.to_string().c_str());
  return *std::move(registered);
}

// A registered block of this name.
template <events::Tier Tier>
block::ImmutableBlock<Tier> registered(block::BlockManager<Tier>& manager, const tokens::SequenceHash& hash) {
  return register_one(manager, staged(manager, hash));
}

// Registered blocks for all full blocks of the sequence, or for all names.
template <events::Tier Tier>
block::BlockList<block::ImmutableBlock<Tier>> fill(block::BlockManager<Tier>& manager,
                                                   const tokens::TokenSequence& sequence) {
  block::BlockList<block::CompleteBlock<Tier>> complete;
  for (const tokens::TokenBlock& tokens : sequence.blocks()) complete.push_back(completed(manager, tokens));
  auto registered = manager.register_blocks(std::move(complete));
  ASHLAR_CHECK(registered.has_value(), "not registered: %s", registered.error().error.to_string().c_str());
  return *std::move(registered);
}
template <events::Tier Tier>
block::BlockList<block::ImmutableBlock<Tier>> fill(block::BlockManager<Tier>& manager,
                                                   std::span<const tokens::SequenceHash> hashes) {
  block::BlockList<block::CompleteBlock<Tier>> complete;
  for (const tokens::SequenceHash& hash : hashes) complete.push_back(staged(manager, hash));
  auto registered = manager.register_blocks(std::move(complete));
  ASHLAR_CHECK(registered.has_value(), "not registered: %s", registered.error().error.to_string().c_str());
  return *std::move(registered);
}

// The block of a hash; an empty guard when it is not there.
template <events::Tier Tier>
block::ImmutableBlock<Tier> match_one(block::BlockManager<Tier>& manager, const tokens::SequenceHash& hash) {
  auto found = manager.match_blocks(std::span(&hash, 1));
  return found.empty() ? block::ImmutableBlock<Tier>() : found.take_back();
}

}  // namespace ashlar::testing
