#include "ashlar/tokens/engine_hash.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tokens/big_endian.h"
#include "tokens/cbor_writer.h"
#include "tokens/pickle_writer.h"
#include "tokens/sha256.h"
#include "tokens/utf8.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

constexpr std::array<std::string_view, 4> kAlgorithms = {"sha256", "sha256_cbor", "xxhash", "xxhash_cbor"};
// The seed of an engine whose process sets none, for sha256 and sha256_cbor.
constexpr std::string_view kDefaultSeed = "vllm-none-hash";

bool is_xxhash(VllmAlgorithm algorithm) noexcept {
  return algorithm == VllmAlgorithm::kXxhash || algorithm == VllmAlgorithm::kXxhashCbor;
}
bool is_cbor(VllmAlgorithm algorithm) noexcept {
  return algorithm == VllmAlgorithm::kSha256Cbor || algorithm == VllmAlgorithm::kXxhashCbor;
}

template <class Writer>
void write_extra(Writer& out, const VllmExtraKeys& extra) {
  if (extra.empty()) return out.none();
  const std::size_t keys = (extra.lora ? 1u : 0u) + extra.multimodal.size() + (extra.cache_salt ? 1u : 0u) +
                           (extra.prompt_embeds ? 1u : 0u);
  out.begin_tuple(keys);
  if (extra.lora) {
    out.begin_tuple(3);
    out.text("lora");
    out.text(extra.lora->name);
    out.text(extra.lora->path);
    out.end_tuple(3);
  }
  for (const VllmExtraKeys::Multimodal& item : extra.multimodal) {
    out.begin_tuple(3);
    out.text("mm");
    out.text(item.identifier);
    out.integer(item.offset);
    out.end_tuple(3);
  }
  if (extra.cache_salt) {
    out.begin_tuple(2);
    out.text("cache_salt");
    out.text(*extra.cache_salt);
    out.end_tuple(2);
  }
  if (extra.prompt_embeds) {
    out.begin_tuple(2);
    out.text("prompt_embeds");
    out.bytes(*extra.prompt_embeds);
    out.end_tuple(2);
  }
  out.end_tuple(keys);
}

template <class Writer>
void write_block(Writer& out, const VllmDigest& parent, std::span<const Token> tokens,
                 const VllmExtraKeys& extra) {
  out.begin_tuple(3);
  out.bytes(parent.bytes());
  out.begin_tuple(tokens.size());
  for (const Token token : tokens) out.integer(token.value());
  out.end_tuple(tokens.size());
  write_extra(out, extra);
  out.end_tuple(3);
}

// Every string of the extra keys, tags included.
std::vector<std::string_view> texts_of(const VllmExtraKeys& extra) {
  std::vector<std::string_view> texts;
  if (extra.lora) texts.insert(texts.end(), {"lora", extra.lora->name, extra.lora->path});
  for (const VllmExtraKeys::Multimodal& item : extra.multimodal)
    texts.insert(texts.end(), {"mm", item.identifier});
  if (extra.cache_salt) texts.insert(texts.end(), {"cache_salt", *extra.cache_salt});
  if (extra.prompt_embeds) texts.emplace_back("prompt_embeds");
  return texts;
}

Result<void> check_extra(VllmAlgorithm algorithm, const VllmDigest& parent, const VllmExtraKeys& extra) {
  std::vector<std::string_view> texts = texts_of(extra);
  for (const std::string_view text : texts)
    if (!is_utf8(text))
      return make_error(ErrorCode::kInvalidArgument,
                        "an extra key of %zu bytes is no UTF-8; engines hash text only", text.size());
  if (is_cbor(algorithm)) return {};
  if (extra.prompt_embeds && std::ranges::equal(*extra.prompt_embeds, parent.bytes()))
    return make_error(
        ErrorCode::kUnsupported,
        "not computable: the digest of the prompt embeddings equals the parent, and pickle writes a repeated "
        "object by reference; use a cbor algorithm");
  std::ranges::sort(texts);
  const auto twice = std::ranges::adjacent_find(texts);
  if (twice == texts.end()) return {};
  return make_error(ErrorCode::kUnsupported,
                    "not computable: the extra keys hold the text \"%.64s\" more than once, and pickle "
                    "writes a repeated object "
                    "by reference; use a cbor algorithm",
                    std::string(*twice).c_str());
}

}  // namespace

std::string_view to_string(VllmAlgorithm algorithm) noexcept {
  const auto i = static_cast<std::size_t>(algorithm);
  return i < kAlgorithms.size() ? kAlgorithms[i] : "unknown";
}

Result<VllmAlgorithm> vllm_algorithm(std::string_view name) {
  for (std::size_t i = 0; i < kAlgorithms.size(); ++i)
    if (name == kAlgorithms[i]) return static_cast<VllmAlgorithm>(i);
  return make_error(
      ErrorCode::kNotFound,
      "no hash algorithm of vLLM is called \"%.64s\"; there are sha256, sha256_cbor, xxhash and xxhash_cbor",
      std::string(name).c_str());
}

Result<VllmDigest> VllmDigest::from_bytes(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != 16 && bytes.size() != 32)
    return make_error(ErrorCode::kInvalidArgument, "a digest of %zu bytes; vLLM has such of 16 and 32",
                      bytes.size());
  VllmDigest digest;
  std::ranges::copy(bytes, digest.bytes_.begin());
  digest.size_ = bytes.size();
  return digest;
}

std::uint64_t external_name(const VllmDigest& digest) noexcept {
  return digest.size() < 8 ? 0 : from_big_endian(digest.bytes().last<8>());
}

Result<VllmHasher> VllmHasher::create(const VllmHashOptions& options) {
  if (!options.hash_seed && is_xxhash(options.algorithm))
    return make_error(ErrorCode::kUnsupported,
                      "not computable: %s without a hash seed begins its chains at a random value; set "
                      "PYTHONHASHSEED for the "
                      "engine and give it here",
                      std::string(to_string(options.algorithm)).c_str());
  const std::string_view seed = options.hash_seed ? std::string_view(*options.hash_seed) : kDefaultSeed;
  if (!is_utf8(seed))
    return make_error(ErrorCode::kInvalidArgument, "the hash seed of %zu bytes is no UTF-8", seed.size());
  VllmHasher hasher(options.algorithm);
  if (is_cbor(options.algorithm)) {
    CborWriter out;
    out.text(seed);
    hasher.none_hash_ = hasher.digest(out.finish());
  } else {
    PickleWriter out;
    out.text(seed);
    hasher.none_hash_ = hasher.digest(out.finish());
  }
  return hasher;
}

VllmDigest VllmHasher::digest(std::span<const std::uint8_t> bytes) const noexcept {
  if (is_xxhash(algorithm_)) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return VllmDigest::from_bytes(to_big_endian(hash.high64, hash.low64)).value();
  }
  return VllmDigest::from_bytes(Sha256::of(bytes)).value();
}

Result<VllmDigest> VllmHasher::hash_block(const std::optional<VllmDigest>& parent,
                                          std::span<const Token> tokens, const VllmExtraKeys& extra) const {
  const VllmDigest& before = parent ? *parent : none_hash_;
  if (before.size() != none_hash_.size())
    return make_error(ErrorCode::kInvalidArgument, "a parent of %zu bytes; the digests of %s have %zu",
                      before.size(), std::string(to_string(algorithm_)).c_str(), none_hash_.size());
  if (!extra.empty()) ASHLAR_RETURN_IF_ERROR(check_extra(algorithm_, before, extra));
  if (is_cbor(algorithm_)) {
    CborWriter out;
    write_block(out, before, tokens, extra);
    return digest(out.finish());
  }
  PickleWriter out;
  write_block(out, before, tokens, extra);
  return digest(out.finish());
}

}  // namespace ashlar::tokens
