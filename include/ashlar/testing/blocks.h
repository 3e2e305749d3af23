// Blocks in a given state, in one call each.
//
//   auto block = registered(manager, numbered_hash(1));      // allocated, staged and registered
//   auto table = fill(manager, prompt);                      // every full block of a prompt
//
// A refusal prints its error and stops the process. The guards are the manager's own; dropping them returns
// the blocks as usual.
//
// Thread safety: thread-safe, as the manager is.
// Complexity:    O(blocks); one visit to the manager's lock per block, one for each registered list.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

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
  return manager.allocate_blocks(1).value().take_back();
}

// One complete, unregistered block: of these tokens, or of this name alone.
template <events::Tier Tier>
block::CompleteBlock<Tier> completed(block::BlockManager<Tier>& manager, const tokens::TokenBlock& tokens) {
  return allocate_one(manager).complete(tokens, block::KvReady::asserted_by_caller()).value();
}
template <events::Tier Tier>
block::CompleteBlock<Tier> staged(block::BlockManager<Tier>& manager, const tokens::SequenceHash& hash) {
  return allocate_one(manager).stage(hash, block::KvReady::asserted_by_caller());
}

// Registers one block. The manager's policy may return it as a duplicate.
template <events::Tier Tier>
block::ImmutableBlock<Tier> register_one(block::BlockManager<Tier>& manager,
                                         block::CompleteBlock<Tier> block) {
  return manager.register_block(std::move(block)).value();
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
  return manager.register_blocks(std::move(complete)).value();
}
template <events::Tier Tier>
block::BlockList<block::ImmutableBlock<Tier>> fill(block::BlockManager<Tier>& manager,
                                                   std::span<const tokens::SequenceHash> hashes) {
  block::BlockList<block::CompleteBlock<Tier>> complete;
  for (const tokens::SequenceHash& hash : hashes) complete.push_back(staged(manager, hash));
  return manager.register_blocks(std::move(complete)).value();
}

// The block of a hash; an empty guard if it is not registered.
template <events::Tier Tier>
block::ImmutableBlock<Tier> match_one(block::BlockManager<Tier>& manager, const tokens::SequenceHash& hash) {
  auto found = manager.match_blocks(std::span(&hash, 1));
  return found.empty() ? block::ImmutableBlock<Tier>() : found.take_back();
}

}  // namespace ashlar::testing
