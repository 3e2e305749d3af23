// PrefixDigest: a 128-bit digest of everything that a block's name stands for: the salt, and the content of
// all blocks from the first of the sequence to this one, as the names see it (media in place of their
// placeholders).
//
// Names tell blocks apart where no client crafts collisions. A digest is made under a secret
// (PrefixKey): for tokens that were chosen without it, the chance that the digests of two different prefixes
// are equal is below 2^-57. So blocks with equal known digests are taken to have the same tokens from
// position 0 on. A digest is not a name: it has no position, and nothing is found by it.
//
// The rule is docs/hashing.md#prefix-digests. Digests made under different keys never agree. A digest gives
// hints about its key: do not show it to those who choose tokens.
//
// PrefixKey: the secret under which prefix digests are made. Digests can be compared where their keys are
// equal. Inside one process the key of the process serves everyone. Processes that exchange digests, or keep
// them across restarts, are given one key. Nothing prints a key.
//
// Thread safety: immutable values.
// Complexity:    O(1). Copying a key copies a pointer; making one takes microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

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
static_assert(!PrefixDigest().is_known() && PrefixDigest::known(0, 0).is_known(),
              "no known digest looks like the unknown one");

struct PrefixSecret;

class PrefixKey {
 public:
  static constexpr std::size_t kSize = 16;
  using Bytes = std::array<std::uint8_t, kSize>;

  // 16 bytes from a cryptographic source.
  explicit PrefixKey(const Bytes& bytes);
  // Drawn from the operating system when it is first asked for; the same for the life of the process.
  static const PrefixKey& of_process();

  const Bytes& bytes() const noexcept { return bytes_; }
  // What is derived from it, for the hasher.
  const PrefixSecret& secret() const noexcept { return *secret_; }

  friend bool operator==(const PrefixKey& a, const PrefixKey& b) noexcept { return a.bytes_ == b.bytes_; }

 private:
  Bytes bytes_;
  std::shared_ptr<const PrefixSecret> secret_;
};

}  // namespace ashlar::tokens
