// The fingerprint is SipHash-2-4-128 under a fixed public key over the fields, each string preceded by its
// length as a little-endian u64, the block size last as a little-endian u64.
#include "ashlar/tokens/namespace_fingerprint.h"

#include "tokens/big_endian.h"
#include "tokens/hex.h"
#include "tokens/siphash128.h"

namespace ashlar::tokens {
namespace {

constexpr SipHash128::Key kPublicKey = {'a', 's', 'h', 'l', 'a', 'r', ' ', 'n',
                                        'a', 'm', 'e', 's', 'p', 'a', 'c', 'e'};

void update_string(SipHash128& hash, std::string_view text) noexcept {
  hash.update_u64(text.size());
  hash.update(text.data(), text.size());
}

}  // namespace

NamespaceFingerprint::NamespaceFingerprint(const NamespaceFields& fields) noexcept {
  SipHash128 hash(kPublicKey);
  update_string(hash, fields.model);
  update_string(hash, fields.dtype);
  update_string(hash, fields.layout);
  hash.update_u64(fields.block_size);
  const SipHash128::Digest digest = hash.digest();
  hi_ = digest.hi;
  lo_ = digest.lo;
}

NamespaceFingerprint NamespaceFingerprint::from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept {
  return from_bits(from_big_endian(bytes.first<8>()), from_big_endian(bytes.last<8>()));
}

std::array<std::uint8_t, 16> NamespaceFingerprint::to_bytes() const noexcept {
  return to_big_endian(hi_, lo_);
}

std::string NamespaceFingerprint::to_string() const {
  std::string text;
  append_hex(text, hi_, 16);
  append_hex(text, lo_, 16);
  return text;
}

Result<NamespaceFingerprint> NamespaceFingerprint::parse(std::string_view text) {
  if (text.size() == 32) {
    const auto hi = parse_hex(text.substr(0, 16));
    const auto lo = parse_hex(text.substr(16));
    if (hi && lo) return from_bits(*hi, *lo);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "'%s' is not a namespace fingerprint; expected 32 hex digits",
                    std::string(text.substr(0, 80)).c_str());
}

std::ostream& operator<<(std::ostream& out, const NamespaceFingerprint& fingerprint) {
  return out << fingerprint.to_string();
}

}  // namespace ashlar::tokens
