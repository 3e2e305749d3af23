// The bytes of a block that enter a hash: 4-byte tokens, 8-byte integers, or 13-byte frames
// (multimodal_run.h). Each function hands the bytes to sink(const void*, std::size_t) in pieces and allocates
// nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

static_assert(std::endian::native == std::endian::little,
              "hashes read tokens and integers as little-endian memory");

inline constexpr std::size_t kFrameSize = 13;
inline constexpr std::size_t kSlotsPerPiece = 64;

template <class Sink>
void encode_int64(std::span<const Token> tokens, Sink&& sink) {
  std::array<std::int64_t, kSlotsPerPiece> piece;
  while (!tokens.empty()) {
    const std::size_t count = std::min(tokens.size(), piece.size());
    for (std::size_t i = 0; i < count; ++i) piece[i] = tokens[i].value();
    sink(static_cast<const void*>(piece.data()), count * sizeof(std::int64_t));
    tokens = tokens.subspan(count);
  }
}

// `offset` is the position of the first token in the sequence; `runs` are those that touch the block.
template <class Sink>
void encode_frames(std::span<const Token> tokens, std::uint64_t offset, std::span<const MultimodalRun> runs,
                   Sink&& sink) {
  std::array<std::uint8_t, kSlotsPerPiece * kFrameSize> piece;
  std::size_t filled = 0;
  std::size_t run = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint64_t at = offset + i;
    while (run < runs.size() && runs[run].offset + runs[run].length <= at) ++run;
    const bool in_run = run < runs.size() && runs[run].offset <= at;
    const std::uint32_t low = in_run ? static_cast<std::uint32_t>(at - runs[run].offset) : tokens[i].value();
    const std::uint64_t high = in_run ? runs[run].mm_hash : 0;
    std::uint8_t* const frame = piece.data() + filled;
    frame[0] = in_run ? 1 : 0;
    std::memcpy(frame + 1, &low, sizeof(low));
    std::memcpy(frame + 5, &high, sizeof(high));
    filled += kFrameSize;
    if (filled == piece.size()) {
      sink(static_cast<const void*>(piece.data()), filled);
      filled = 0;
    }
  }
  if (filled != 0) sink(static_cast<const void*>(piece.data()), filled);
}

}  // namespace ashlar::tokens
