// HashScheme: how tokens become names. A closed set of three, chosen by configuration.
//
//   xxh3_chain   local    = XXH3-64(tokens as little-endian u32, seed = salt seed)
//                chain[0] = local[0]
//                chain[i] = XXH3-64(LE chain[i-1] | LE local[i], seed 1337)
//   xxh64_int64  chain[0] = XXH64([LE salt seed] | tokens as little-endian i64, seed 0)
//                chain[i] = XXH64(LE chain[i-1] | tokens as little-endian i64, seed 0)
//                local    = what chain[0] would be for the same tokens
//                The salt seed stands where the previous hash would, and only when the salt is not empty.
//   keyed128     SipHash-2-4 with 128 bits of output under a secret key, over the salt's strings (each with
//                its length), the 16 bytes of the parent's name and the tokens. Without the key, names can
//                neither be predicted nor be made to collide.
//
// The fingerprint identifies the rule and its parameters; two processes whose fingerprints differ never hit
// each other's blocks and must refuse to talk. For keyed128 it is itself keyed: equal keys give equal
// fingerprints, and the key cannot be learned from it. Nothing prints a key.
//
// Thread safety: immutable value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ashlar/base/result.h"

namespace ashlar::tokens {

class HashScheme {
 public:
  enum class Kind : std::uint8_t { kXxh3Chain, kXxh64Int64, kKeyed128 };
  static constexpr std::size_t kKeySize = 16;
  using Key = std::array<std::uint8_t, kKeySize>;

  // The default of the systems in the field.
  HashScheme() : HashScheme(xxh3_chain()) {}
  static HashScheme xxh3_chain() noexcept;
  static HashScheme xxh64_int64() noexcept;
  static HashScheme keyed128(const Key& key) noexcept;

  // The scheme a configuration names. `key` is for keyed128 only: 16 bytes, from a cryptographic source.
  // Errors: kNotFound for an unknown name; kInvalidArgument when keyed128 lacks its key, when the key does
  // not have 16 bytes, and when a scheme that takes no key gets one.
  static Result<HashScheme> by_name(std::string_view name, std::span<const std::uint8_t> key = {});

  Kind kind() const noexcept { return kind_; }
  // "xxh3_chain", "xxh64_int64" or "keyed128"; never freed.
  std::string_view name() const noexcept;
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  bool is_keyed() const noexcept { return kind_ == Kind::kKeyed128; }
  // All zero if the scheme has no key.
  const Key& key() const noexcept { return key_; }

  friend bool operator==(const HashScheme&, const HashScheme&) = default;

 private:
  HashScheme(Kind kind, const Key& key, std::uint64_t fingerprint) noexcept
      : key_(key), fingerprint_(fingerprint), kind_(kind) {}

  Key key_{};
  std::uint64_t fingerprint_ = 0;
  Kind kind_ = Kind::kXxh3Chain;
};

}  // namespace ashlar::tokens
