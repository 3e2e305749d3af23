// The blocks of the chain benchmarks, and the messages of an engine that stores and evicts them.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/tokens/token.h"

namespace ashlar::bench {

using Message = std::vector<std::byte>;

inline constexpr std::size_t kSequence = 64;  // blocks of one sequence
inline constexpr std::size_t kRun = 16;       // blocks of one store
inline constexpr std::uint32_t kTokens = 16;  // of a block

inline std::uint64_t number(std::uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15u ^ i >> 3;
}

inline std::vector<tokens::Token> tokens_of(std::size_t block) {
  std::vector<tokens::Token> text;
  for (std::uint32_t t = 0; t < kTokens; ++t)
    text.push_back(tokens::Token(static_cast<std::uint32_t>(number(block) >> 32) ^ t));
  return text;
}

// The message of an engine that stores blocks [first, first + kRun).
inline Message engine_message(std::size_t first) {
  events::EngineBatch batch;
  events::EngineEvent event;
  event.kind = events::EngineEventKind::kStored;
  event.block_size = kTokens;
  event.medium = "GPU";
  event.names = {0, kRun};
  event.tokens = {0, kRun * kTokens};
  if (first % kSequence != 0) event.parent = events::BlockName(number(first - 1));
  for (std::size_t i = first; i < first + kRun; ++i) {
    batch.names.push_back(events::BlockName(number(i)));
    const std::vector<tokens::Token> text = tokens_of(i);
    batch.tokens.insert(batch.tokens.end(), text.begin(), text.end());
  }
  batch.events.push_back(event);
  Message out;
  events::encode_engine_batch(batch, out);
  return out;
}

// The message of an engine that evicts as many, with the names of the sequence of `first` from its end on.
inline Message removal_message(std::size_t first) {
  events::EngineBatch batch;
  events::EngineEvent event;
  event.kind = events::EngineEventKind::kRemoved;
  event.medium = "GPU";
  event.names = {0, kRun};
  const std::size_t last = 2 * (first / kSequence * kSequence) + kSequence - 1 - first;
  for (std::size_t i = 0; i < kRun; ++i) batch.names.push_back(events::BlockName(number(last - i)));
  batch.events.push_back(event);
  Message out;
  events::encode_engine_batch(batch, out);
  return out;
}

}  // namespace ashlar::bench
