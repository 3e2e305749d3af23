// SipHash-2-4 of a counter, under the key, makes the secret. The salt's start of the chain uses the same key
// (sequence_hasher.cc) with a first word that no counter reaches.
#include "ashlar/tokens/prefix_digest.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>

#include "ashlar/base/check.h"
#include "tokens/sha256.h"
#include "tokens/siphash128.h"
#include "tokens/xxh3_kernel.h"

namespace ashlar::tokens {
namespace {

SipHash128::Digest expand(const PrefixKey::Bytes& key, std::uint64_t counter) noexcept {
  SipHash128 hash(key);
  hash.update_u64(counter);
  return hash.digest();
}

// A factor of the polynomial, below 2^58, times 8 (prefix_kernel_body.h).
std::uint64_t factor_of(std::uint64_t bits) noexcept {
  return (bits >> 6) << 3;
}

// The first bytes of SHA-256 over a label and some bytes.
template <std::size_t N>
std::array<std::uint8_t, N> labelled_digest(std::string_view label, std::span<const std::uint8_t> bytes) {
  static_assert(N <= Sha256::kSize);
  Sha256 hash;
  hash.update({reinterpret_cast<const std::uint8_t*>(label.data()), label.size()}).update(bytes);
  const Sha256::Digest digest = hash.finish();
  std::array<std::uint8_t, N> out;
  std::copy_n(digest.begin(), N, out.begin());
  return out;
}

std::uint64_t fingerprint_of(const PrefixKey::Bytes& key) {
  std::uint64_t value = 0;
  for (const std::uint8_t byte : labelled_digest<sizeof value>("ashlar prefix key fingerprint", key))
    value = value << 8 | byte;
  return value;
}

}  // namespace

PrefixKey::PrefixKey(const Bytes& bytes) : bytes_(bytes), fingerprint_(fingerprint_of(bytes)) {
  auto secret = std::make_shared<PrefixSecret>();
  static_assert(sizeof(secret->keys) % 16 == 0);
  std::uint64_t counter = 0;
  for (std::size_t at = 0; at < sizeof(secret->keys); at += 16) {
    const SipHash128::Digest drawn = expand(bytes, counter++);
    std::memcpy(secret->keys + at, &drawn.lo, 8);
    std::memcpy(secret->keys + at + 8, &drawn.hi, 8);
  }
  const SipHash128::Digest factors = expand(bytes, counter);
  secret->factors[0] = factor_of(factors.lo);
  secret->factors[1] = factor_of(factors.hi);
  secret_ = std::move(secret);
}

const PrefixKey& PrefixKey::of_process() {
  static const PrefixKey key = [] {
    Bytes bytes;
    ASHLAR_CHECK(getentropy(bytes.data(), bytes.size()) == 0,
                 "the operating system gave no random bytes for the key of prefix digests: %s",
                 std::generic_category().message(errno).c_str());
    return PrefixKey(bytes);
  }();
  return key;
}

PrefixKey PrefixKey::of_namespace(const NamespaceFingerprint& keys) {
  return PrefixKey(labelled_digest<kSize>("ashlar prefix key of namespace", keys.to_bytes()));
}

}  // namespace ashlar::tokens
