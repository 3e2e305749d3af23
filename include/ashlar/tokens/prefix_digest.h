// PrefixDigest: a 128-bit digest of everything that a block's name stands for: the salt, and the content of
// all blocks from the first of the sequence to this one, as the names see it (media in place of their
// placeholders).
//
// Names tell blocks apart if no client crafts collisions. A digest is computed under a secret (PrefixKey):
// for tokens chosen without it, two different prefixes have equal digests with a chance below 2^-57. So
// blocks with equal known digests are taken to have the same tokens from position 0 on. A digest is not a
// name: it has no position, and it is never a look-up key.
//
// The rule is docs/hashing.md#prefix-digests. Digests under different keys never agree. A digest leaks hints
// about its key: do not show it to clients that choose tokens.
//
// PrefixKey: the secret of prefix digests. Digests are comparable only under equal keys. Within one process,
// the process's key suffices. Processes that exchange digests, or keep them across restarts, must be given
// one key. Nothing prints a key.
//
// Thread safety: immutable values.
// Complexity:    O(1). Copying a key copies a pointer; creating one takes microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ashlar/tokens/namespace_fingerprint.h"

namespace ashlar::tokens {

class PrefixDigest {
 public:
  // An unknown digest, as for a block known by name alone.
  constexpr PrefixDigest() = default;
  // The known digest with these bits; the highest bit is always set.
  static constexpr PrefixDigest known(std::uint64_t hi, std::uint64_t lo) noexcept {
    return from_bits(hi | kKnown, lo);
  }
  // From the values of hi() and lo().
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
  // Drawn from the operating system on first use; the same for the life of the process.
  static const PrefixKey& of_process();

  // The same for the same namespace in every process, and no secret: it tells apart what collides by
  // accident, not what a client makes collide.
  static PrefixKey of_namespace(const NamespaceFingerprint& keys);

  const Bytes& bytes() const noexcept { return bytes_; }
  // Names the key without revealing it: two stores of digests can be compared only if these are equal.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  // Its expanded form, for the hasher.
  const PrefixSecret& secret() const noexcept { return *secret_; }

  friend bool operator==(const PrefixKey& a, const PrefixKey& b) noexcept { return a.bytes_ == b.bytes_; }

 private:
  Bytes bytes_;
  std::uint64_t fingerprint_ = 0;
  std::shared_ptr<const PrefixSecret> secret_;
};

}  // namespace ashlar::tokens
