// What the tests of sequences share: a manager of few blocks, sequences over it, and what can be seen of
// them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_manager.h"
#include "support/block_fixture.h"

namespace ashlar::block::support {

using Sequences = SequenceManager<G1>;
using Request = RequestSequence<G1>;
using Ids = std::vector<std::uint32_t>;
using Why = SequenceError::Reason;

inline Ids ids(std::span<const BlockId> table) {
  Ids numbers;
  for (const BlockId id : table) numbers.push_back(id.value());
  return numbers;
}

// `head` and then `tail`.
inline std::vector<Token> joined(std::vector<Token> head, const std::vector<Token>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

// The names of the full blocks of these tokens.
inline std::vector<SequenceHash> names_of(const std::vector<Token>& tokens,
                                          std::uint32_t block_size = kBlockSize,
                                          const tokens::SequenceHasher& hasher = {}) {
  return value_of(TokenSequence::create(std::span<const Token>(tokens), block_size, hasher))
      .sequence_hashes();
}

// A sequence whose prompt is allocated, and computed if asked for.
inline Sequence<G1> started(const Sequences& sequences, std::vector<Token> prompt) {
  auto sequence = value_of(sequences.make_sequence(std::move(prompt)));
  const auto cached = sequences.allocate(sequence);
  EXPECT_TRUE(cached.has_value()) << cached.error().to_error();
  return sequence;
}
inline Sequence<G1> computed(const Sequences& sequences, std::vector<Token> prompt) {
  auto sequence = started(sequences, std::move(prompt));
  const auto registered = sequences.computed(sequence, sequence.size());
  EXPECT_TRUE(registered.has_value()) << registered.error().to_error();
  return sequence;
}

// A request whose whole prompt is computed in one step and has yielded a token.
inline Request prefilled(Manager& manager, std::vector<Token> prompt, RequestOptions options = {},
                         std::uint32_t next = 900) {
  auto request = value_of(Request::create(manager, std::move(prompt), std::move(options)));
  EXPECT_TRUE(request.match_prefix().has_value());
  EXPECT_TRUE(request.schedule_prefill(request.tokens_to_compute()).has_value());
  EXPECT_TRUE(request.apply_prefill(Token(next)).has_value());
  return request;
}

// The positions of the next victims: 2 1 0 for a prompt of three blocks.
inline Ids victim_positions(const Manager& manager) {
  Ids positions;
  for (const SequenceHash& hash : manager.eviction_candidates(manager.total_blocks())) {
    positions.push_back(hash.position());
  }
  return positions;
}

// How many of these names the manager has, counted from the first, without a use of any.
inline std::size_t present(const Manager& manager, const std::vector<SequenceHash>& names) {
  std::size_t found = 0;
  for (const bool here : manager.block_registry().check_presence<G1>(names)) {
    if (!here) break;
    ++found;
  }
  return found;
}

}  // namespace ashlar::block::support
