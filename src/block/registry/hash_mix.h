// HashMix: 64 well-spread bits of a sequence hash, computed once for all tables that look it up.
//
// The chain hash is already a good hash, but external names may not be. The index takes its bucket from the
// low bits and its tag from the high 32; the frequency sketch takes its word from the high 32 and its
// counters from the low.
#pragma once

#include <cstdint>

#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

struct HashMix {
  static std::uint64_t of(const tokens::SequenceHash& hash) noexcept {
    __extension__ using Wide = unsigned __int128;
    // The high half brings down a name's top bits, which a product alone leaves in place: chain hashes that
    // are small numbers differ only there.
    const Wide product =
        static_cast<Wide>(hash.lo() ^ 0xD6E8FEB86659FD93u) * (hash.hi() ^ 0x9E3779B97F4A7C15u);
    return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  }
};

}  // namespace ashlar::block
