// What the tests of the block layer share: registries, managers, token sequences and short ways through a
// life.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/tokens/token_sequence.h"

namespace ashlar::block::support {

using events::G1;
using events::G2;
using tokens::SequenceHash;
using tokens::Token;
using tokens::TokenBlock;
using tokens::TokenSequence;

using Manager = BlockManager<G1>;
using Mutable = MutableBlock<G1>;
using Partial = PartialBlock<G1>;
using Complete = CompleteBlock<G1>;
using Immutable = ImmutableBlock<G1>;
using Blocks = BlockList<Immutable>;
using Reason = AllocationRefusal::Reason;

inline constexpr std::uint32_t kBlockSize = 4;
inline constexpr KvReady kReady = KvReady::asserted_by_caller();

// The value of a Result; a test that meets an error here cannot go on.
template <class T, class E>
T value_of(Result<T, E> result) {
  EXPECT_TRUE(result.has_value()) << "the operation was refused";
  return *std::move(result);
}

inline BlockRegistry make_registry() {
  return value_of(BlockRegistry::create());
}
// With a frequency tracker that is large enough to be exact in a small test, and never decays.
inline BlockRegistry make_counting_registry() {
  RegistryOptions options;
  options.frequency = TinyLfuOptions{1 << 16, TinyLfuOptions::kNever};
  return value_of(BlockRegistry::create(options));
}

template <events::Tier Tier = G1>
BlockManagerBuilder<Tier> builder_of(std::uint32_t blocks, BlockRegistry registry = make_registry()) {
  auto builder = BlockManager<Tier>::builder();
  builder.block_count(blocks).block_size(kBlockSize).registry(std::move(registry));
  return builder;
}
template <events::Tier Tier = G1>
BlockManager<Tier> manager_of(std::uint32_t blocks, BlockRegistry registry = make_registry()) {
  return value_of(builder_of<Tier>(blocks, std::move(registry)).build());
}

// first, first + 1, …
inline std::vector<Token> tokens_from(std::uint32_t first, std::size_t count) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.emplace_back(first + static_cast<std::uint32_t>(i));
  return tokens;
}
// A sequence of full blocks whose tokens start at `first`: another first, another sequence.
inline TokenSequence sequence_of(std::size_t blocks, std::uint32_t first = 0,
                                 std::uint32_t block_size = kBlockSize) {
  return value_of(
      TokenSequence::create(std::span<const Token>(tokens_from(first, blocks * block_size)), block_size));
}
// A name without tokens behind it.
inline SequenceHash name_of(std::uint32_t position, std::uint64_t chain) {
  return value_of(SequenceHash::make(position, chain, chain ^ 0x5555));
}
inline std::vector<SequenceHash> names_from(std::uint64_t first_chain, std::size_t count) {
  std::vector<SequenceHash> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(name_of(static_cast<std::uint32_t>(i), first_chain + i * 0x9E3779B97F4A7C15u));
  }
  return names;
}

template <events::Tier Tier>
MutableBlock<Tier> take_one(BlockManager<Tier>& manager) {
  return value_of(manager.allocate_blocks(1)).take_back();
}
template <events::Tier Tier>
CompleteBlock<Tier> complete_one(BlockManager<Tier>& manager, const TokenBlock& tokens) {
  return value_of(take_one(manager).complete(tokens, kReady));
}
template <events::Tier Tier>
CompleteBlock<Tier> stage_one(BlockManager<Tier>& manager, const SequenceHash& hash) {
  return take_one(manager).stage(hash, kReady);
}
template <events::Tier Tier>
ImmutableBlock<Tier> store_one(BlockManager<Tier>& manager, const TokenBlock& tokens) {
  return value_of(manager.register_block(complete_one(manager, tokens)));
}
template <events::Tier Tier>
ImmutableBlock<Tier> store_name(BlockManager<Tier>& manager, const SequenceHash& hash) {
  return value_of(manager.register_block(stage_one(manager, hash)));
}
// The whole sequence, in use while the list lives.
template <events::Tier Tier>
BlockList<ImmutableBlock<Tier>> store_all(BlockManager<Tier>& manager, const TokenSequence& sequence) {
  BlockList<CompleteBlock<Tier>> complete;
  auto blocks = value_of(manager.allocate_blocks(sequence.blocks().size()));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    complete.push_back(value_of(std::move(blocks[i]).complete(sequence.blocks()[i], kReady)));
  }
  return value_of(manager.register_blocks(std::move(complete)));
}
template <events::Tier Tier>
BlockList<ImmutableBlock<Tier>> store_names(BlockManager<Tier>& manager,
                                            std::span<const SequenceHash> names) {
  BlockList<CompleteBlock<Tier>> complete;
  auto blocks = value_of(manager.allocate_blocks(names.size()));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    complete.push_back(std::move(blocks[i]).stage(names[i], kReady));
  }
  return value_of(manager.register_blocks(std::move(complete)));
}

template <class Guards>
std::vector<std::uint32_t> ids_of(const Guards& guards) {
  std::vector<std::uint32_t> ids;
  for (const auto& guard : guards) ids.push_back(guard.block_id().value());
  return ids;
}

// Where the blocks are, as (reset, inactive, pinned, held, active, owned, quarantined).
struct Places {
  std::size_t reset = 0;
  std::size_t inactive = 0;
  std::size_t pinned = 0;
  std::size_t held = 0;
  std::size_t active = 0;
  std::size_t owned = 0;
  std::size_t quarantined = 0;

  friend bool operator==(const Places&, const Places&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Places& at) {
    return out << "reset " << at.reset << ", inactive " << at.inactive << ", pinned " << at.pinned
               << ", held " << at.held << ", active " << at.active << ", owned " << at.owned
               << ", quarantined " << at.quarantined;
  }
};
// Also proves the invariants, and that the numbers add up.
template <events::Tier Tier>
Places places(const BlockManager<Tier>& manager) {
  manager.check_invariants();
  const PoolStatus status = manager.status();
  const Places at{status.reset,  status.inactive, status.pinned_inactive, status.held_inactive,
                  status.active, status.owned,    status.quarantined};
  EXPECT_EQ(at.reset + at.inactive + at.pinned + at.held + at.active + at.owned + at.quarantined,
            manager.total_blocks());
  EXPECT_EQ(status.available(), at.reset + at.inactive);
  EXPECT_EQ(manager.available_blocks(), status.available());
  return at;
}

}  // namespace ashlar::block::support
