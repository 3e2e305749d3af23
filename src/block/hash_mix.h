// HashMix: 64 well-spread bits of a sequence hash, computed once for all tables that look it up.
//
// The chain hash is a good hash already, but names given by others may not be. The index takes its bucket from the low
// bits and its tag from the high 32; the frequency sketch takes its word from the high 32 and its counters from the low.
#pragma once

#include <cstdint>

#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

struct HashMix {
  static std::uint64_t of(const tokens::SequenceHash& hash) noexcept {
    const std::uint64_t z = (hash.lo() ^ (hash.hi() * 0x9E3779B97F4A7C15u)) * 0xD6E8FEB86659FD93u;
    return z ^ (z >> 32);
  }
};

}  // namespace ashlar::block
