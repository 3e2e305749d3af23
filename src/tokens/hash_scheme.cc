#include "ashlar/tokens/hash_scheme.h"

#include <algorithm>
#include <string>

#include "tokens/siphash128.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

constexpr std::string_view kXxh3ChainName = "xxh3_chain";
constexpr std::string_view kXxh64Int64Name = "xxh64_int64";
constexpr std::string_view kKeyed128Name = "keyed128";

// The rule in words: the fingerprint is its hash. A changed rule needs a changed text.
constexpr std::string_view kXxh3ChainRule =
    "xxh3_chain local=xxh3-64(u32le tokens;seed=salt) chain=xxh3-64(u64le previous,u64le local;seed=1337) "
    "mm=frame13";
constexpr std::string_view kXxh64Int64Rule =
    "xxh64_int64 chain=xxh64(u64le previous|salt if any,i64le tokens;seed=0) mm=frame13";
constexpr std::string_view kKeyed128Rule =
    "keyed128 digest=siphash-2-4-128(u64le length,lora,pad8,u64le length,tenant,pad8,u64le kind,parent,"
    "u32le tokens) mm=frame13";

std::uint64_t rule_fingerprint(std::string_view rule) noexcept {
  return XXH3_64bits_withSeed(rule.data(), rule.size(), 0);
}

}  // namespace

HashScheme HashScheme::xxh3_chain() noexcept {
  return HashScheme(Kind::kXxh3Chain, Key{}, rule_fingerprint(kXxh3ChainRule));
}

HashScheme HashScheme::xxh64_int64() noexcept {
  return HashScheme(Kind::kXxh64Int64, Key{}, rule_fingerprint(kXxh64Int64Rule));
}

HashScheme HashScheme::keyed128(const Key& key) noexcept {
  // The first word of a block's message is a length, always below this mark: no block has this input.
  SipHash128 hash(key);
  hash.update_u64(~std::uint64_t{0});
  hash.update(kKeyed128Rule.data(), kKeyed128Rule.size());
  return HashScheme(Kind::kKeyed128, key, hash.digest().lo);
}

Result<HashScheme> HashScheme::by_name(std::string_view name, std::span<const std::uint8_t> key) {
  if (name == kKeyed128Name) {
    if (key.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "hash scheme keyed128 needs a key of %zu bytes, and none was given", kKeySize);
    }
    if (key.size() != kKeySize) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the key of hash scheme keyed128 has %zu bytes; it must have %zu", key.size(),
                        kKeySize);
    }
    Key copy;
    std::copy(key.begin(), key.end(), copy.begin());
    return keyed128(copy);
  }
  if (name != kXxh3ChainName && name != kXxh64Int64Name) {
    return make_error(ErrorCode::kNotFound,
                      "there is no hash scheme '%s'; the schemes are xxh3_chain, xxh64_int64 and keyed128",
                      std::string(name.substr(0, 80)).c_str());
  }
  if (!key.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "hash scheme %.*s takes no key, and one was given; only keyed128 has a key",
                      static_cast<int>(name.size()), name.data());
  }
  return name == kXxh3ChainName ? xxh3_chain() : xxh64_int64();
}

std::string_view HashScheme::name() const noexcept {
  switch (kind_) {
    case Kind::kXxh3Chain:
      return kXxh3ChainName;
    case Kind::kXxh64Int64:
      return kXxh64Int64Name;
    case Kind::kKeyed128:
      return kKeyed128Name;
  }
  return {};
}

}  // namespace ashlar::tokens
