// SequenceHash: the name of a block by all tokens up to its end. 128 bits, one value for every tier and every
// wire.
//
//   chained (modes 0..2), most significant bit first:
//     mode (2) | position (8, 16 or 24) | chain hash (64) | parent fragment (54, 46 or 38)
//   keyed (mode 3):
//     mode (2) | position (24) | keyed digest (102)
//
// The position is the block's index in its sequence; the mode is the smallest that holds it. The parent
// fragment is the low bits of the parent's chain hash, 0 at position 0. Keyed hashes carry no parent
// fragment.
//
// Order: position, then chain hash, then the raw bits. Text: "position:chain[:parent fragment]", the position
// in decimal, the rest in hex of fixed width (16 digits, then 14, 12 or 10); keyed: "position:digest" with 26
// digits. Serialised as 16 bytes, big-endian, equal to the 128-bit identifiers of the systems in the field.
//
// Thread safety: immutable value. Nothing allocates but to_string().
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"

namespace ashlar::tokens {

class SequenceHash {
 public:
  static constexpr std::uint32_t kMaxPosition = (1u << 24) - 1;

  // All zero bits: position 0, chain hash 0. A value to overwrite, not a name.
  constexpr SequenceHash() = default;

  // The first block of a sequence.
  static constexpr SequenceHash root(std::uint64_t chain) noexcept { return chained(0, chain, 0); }
  // A block at `position` whose parent has `parent_chain` (ignored at position 0).
  // Errors: kInvalidArgument when the position exceeds kMaxPosition.
  static Result<SequenceHash> make(std::uint64_t position, std::uint64_t chain, std::uint64_t parent_chain);
  // A keyed name; only the low 102 bits of (digest_hi, digest_lo) enter. Errors: as make().
  static Result<SequenceHash> make_keyed(std::uint64_t position, std::uint64_t digest_hi,
                                         std::uint64_t digest_lo);
  // The next block of the same sequence. Errors: kInvalidArgument past kMaxPosition, or when this is a keyed
  // name.
  Result<SequenceHash> child(std::uint64_t chain) const;

  static constexpr SequenceHash from_bits(std::uint64_t hi, std::uint64_t lo) noexcept {
    SequenceHash hash;
    hash.hi_ = hi;
    hash.lo_ = lo;
    return hash;
  }
  static SequenceHash from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept;
  std::array<std::uint8_t, 16> to_bytes() const noexcept;

  constexpr std::uint64_t hi() const noexcept { return hi_; }
  constexpr std::uint64_t lo() const noexcept { return lo_; }
  constexpr unsigned mode() const noexcept { return static_cast<unsigned>(hi_ >> 62); }
  constexpr bool is_keyed() const noexcept { return mode() == 3; }
  constexpr std::uint32_t position() const noexcept {
    const unsigned m = mode();
    const unsigned bits = m == 0 ? 8 : m == 1 ? 16 : 24;
    return static_cast<std::uint32_t>((hi_ << 2) >> (64 - bits));
  }
  // The 64-bit chain hash; for keyed names the low 64 bits of the digest.
  constexpr std::uint64_t chain() const noexcept {
    const unsigned m = mode();
    if (m == 3) return lo_;
    const unsigned high = m == 0 ? 54 : m == 1 ? 46 : 38;  // bits of the chain hash that stand in hi_
    return (hi_ << (64 - high)) | (lo_ >> high);
  }
  constexpr std::uint64_t parent_fragment() const noexcept {
    const unsigned m = mode();
    if (m == 3) return 0;
    return lo_ & fragment_mask(m);
  }
  // The parent fragment of a child at position() + 1. nullopt for keyed names and at kMaxPosition.
  std::optional<std::uint64_t> fragment_for_child() const noexcept;
  // Whether this can be the block before `child`: by their positions, and by the fragment where it has one.
  bool can_precede(const SequenceHash& child) const noexcept;

  // The name of the same tokens in another group of layers: a bijection per group, which keeps the position
  // and the relation of parent and child. Group 0 has the plain name.
  SequenceHash in_group(std::uint32_t group) const noexcept;

  std::string to_string() const;
  // Parses the output of to_string(). Errors: kInvalidArgument for any other text.
  static Result<SequenceHash> parse(std::string_view text);

  friend constexpr bool operator==(const SequenceHash&, const SequenceHash&) = default;
  friend constexpr std::strong_ordering operator<=>(const SequenceHash& a, const SequenceHash& b) noexcept {
    if (const auto by = a.position() <=> b.position(); by != 0) return by;
    if (const auto by = a.chain() <=> b.chain(); by != 0) return by;
    if (const auto by = a.hi_ <=> b.hi_; by != 0) return by;
    return a.lo_ <=> b.lo_;
  }

 private:
  static constexpr std::uint64_t fragment_mask(unsigned mode) noexcept {
    return (std::uint64_t{1} << (mode == 0 ? 54 : mode == 1 ? 46 : 38)) - 1;
  }
  // Requires: position <= kMaxPosition.
  static constexpr SequenceHash chained(std::uint32_t position, std::uint64_t chain,
                                        std::uint64_t parent) noexcept {
    const unsigned m = position < (1u << 8) ? 0 : position < (1u << 16) ? 1 : 2;
    const unsigned bits = m == 0 ? 8 : m == 1 ? 16 : 24;
    const unsigned high = 62 - bits;  // 54, 46, 38: chain bits in hi_, and the width of the fragment
    SequenceHash hash;
    hash.hi_ = (std::uint64_t{m} << 62) | (std::uint64_t{position} << high) | (chain >> (64 - high));
    hash.lo_ = (chain << high) | (position == 0 ? 0 : parent & fragment_mask(m));
    return hash;
  }

  std::uint64_t hi_ = 0;
  std::uint64_t lo_ = 0;
};

static_assert(sizeof(SequenceHash) == 16, "names are kept by the million, and travel as 16 bytes");

std::ostream& operator<<(std::ostream& out, const SequenceHash& hash);

}  // namespace ashlar::tokens

template <>
struct std::hash<ashlar::tokens::SequenceHash> {
  std::size_t operator()(const ashlar::tokens::SequenceHash& name) const noexcept {
    return static_cast<std::size_t>((name.hi() * 0x9E3779B97F4A7C15u) ^ name.lo());
  }
};
