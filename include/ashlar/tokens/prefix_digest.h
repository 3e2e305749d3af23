// PrefixDigest: a 128-bit digest of everything that a block's name stands for: the salt, and the content of
// all blocks from the first of the sequence to this one, as the names see it (media in place of their
// placeholders).
//
// Names tell blocks apart where nobody makes collisions on purpose. A digest is made under a secret
// (PrefixKey): for tokens that were chosen without it, the chance that the digests of two different prefixes
// are equal is below 2^-57. So blocks with equal known digests are taken to have the same tokens from
// position 0 on. A digest is not a name: it has no position, and nothing is found by it.
//
// The rule is docs/hashing.md#prefix-digests. Digests made under different keys never agree. A digest gives
// hints about its key: do not show it to those who choose tokens.
//
// Thread safety: immutable value.
#pragma once

#include <cstdint>

namespace ashlar::tokens {

class PrefixDigest {
 public:
  // The digest is not known, as of a block that came by its name alone.
  constexpr PrefixDigest() = default;
  // The known digest of these bits; the highest bit is always set.
  static constexpr PrefixDigest known(std::uint64_t hi, std::uint64_t lo) noexcept {
    return from_bits(hi | kKnown, lo);
  }
  // What hi() and lo() gave.
  static constexpr PrefixDigest from_bits(std::uint64_t hi, std::uint64_t lo) noexcept {
    PrefixDigest digest;
    digest.hi_ = hi;
    digest.lo_ = lo;
    return digest;
  }

  constexpr std::uint64_t hi() const noexcept { return hi_; }
  constexpr std::uint64_t lo() const noexcept { return lo_; }
  constexpr bool is_known() const noexcept { return (hi_ & kKnown) != 0; }
  // False only when both are known and differ: the tokens are not the same.
  constexpr bool agrees_with(const PrefixDigest& other) const noexcept {
    return *this == other || !is_known() || !other.is_known();
  }

  friend constexpr bool operator==(const PrefixDigest&, const PrefixDigest&) = default;

 private:
  static constexpr std::uint64_t kKnown = std::uint64_t{1} << 63;

  std::uint64_t hi_ = 0;
  std::uint64_t lo_ = 0;
};

}  // namespace ashlar::tokens
