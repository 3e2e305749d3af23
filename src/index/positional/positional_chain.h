// Chain: identifies a block's content by 128 bits over the local hashes of its path; and the key of its
// entry.
//
// Two lanes of 64 bits, each one multiplication per block folded to its low half. The lanes mix the local
// hash in differently, so that a collision in one is none in the other. Contents with equal chains are
// treated as one.
//
// Thread safety: immutable values.
#pragma once

#include <bit>
#include <cstdint>

#include "ashlar/tokens/token.h"
#include "base/table_seed.h"

namespace ashlar::index::detail {

struct Chain {
  std::uint64_t a = 0x2545'F491'4F6C'DD1Du;  // the empty path
  std::uint64_t b = 0x8E9D'5AF3'1B64'C8A7u;

  friend bool operator==(const Chain&, const Chain&) = default;
};

// Both halves of x * y and `also`, xored. The low half is ready first, so `also` costs no time.
inline std::uint64_t folded_product(std::uint64_t x, std::uint64_t y, std::uint64_t also) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{x} * y;
  return (static_cast<std::uint64_t>(product) ^ also) ^ static_cast<std::uint64_t>(product >> 64);
}

// The chain of the path one block longer. Terms that depend only on the local hash are off the critical path.
inline Chain extended(const Chain& chain, tokens::LocalHash local) noexcept {
  const std::uint64_t x = local.value();
  const std::uint64_t y = (x ^ x >> 32) * 0xD6E8'FEB8'6659'FD93u;
  return {folded_product(chain.a ^ x, 0x9E37'79B9'7F4A'7C15u, std::rotl(y, 17)),
          folded_product(chain.b ^ y, 0xC2B2'AE3D'27D4'EB4Fu, std::rotl(x, 41))};
}

// Key of an entry, under the seed of the index: all bits are well mixed. Keys of different (position, local
// hash) may collide: the entry then has both contents, told apart by their chains.
inline std::uint64_t entry_key(std::uint32_t position, tokens::LocalHash local, std::uint64_t seed) noexcept {
  const std::uint64_t hash = seeded_hash(local.value(), position, seed);
  return hash ^ hash >> 32;
}

}  // namespace ashlar::index::detail
