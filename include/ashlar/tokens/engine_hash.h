// Block hashes as engines and routers of the field compute them: vLLM (VllmHasher), SGLang
// (sglang_hash_block), and routers where they differ from SequenceHasher::local_hash() (router_local_hash).
//
// Thread safety: VllmHasher is immutable; free functions are safe from any thread.
// Complexity:    O(tokens + extra keys). VllmHasher allocates one buffer per block, router_local_hash() only
//                with mm hashes, sglang_hash_block() never.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

// ---- vLLM: the block hashes of vLLM 0.32.
//
//   hash(block) = digest(serialise((parent, tokens, extra)))
//
// The digest is SHA-256 or XXH3-128, the serialisation pickle protocol 5 (as CPython's C pickler writes it)
// or canonical CBOR. The parent of a first block is none_hash(), which depends on the hash seed of the
// engine's process. The name that an engine publishes by default is external_name(): the last 64 bits.
//
// Pickle writes an already seen object as a reference. Equal strings may or may not be one object, which
// their values do not show, so blocks whose extra keys hold equal strings are refused; CBOR has no such case.

enum class VllmAlgorithm : std::uint8_t { kSha256, kSha256Cbor, kXxhash, kXxhashCbor };

// "sha256", "sha256_cbor", "xxhash", "xxhash_cbor": the values of vLLM's own setting.
std::string_view to_string(VllmAlgorithm algorithm) noexcept;
// Errors: kNotFound for any other name.
Result<VllmAlgorithm> vllm_algorithm(std::string_view name);

// A whole block hash: 32 bytes of SHA-256, or 16 of XXH3-128.
class VllmDigest {
 public:
  VllmDigest() = default;
  // Errors: kInvalidArgument unless there are 16 or 32 bytes.
  static Result<VllmDigest> from_bytes(std::span<const std::uint8_t> bytes);

  std::span<const std::uint8_t> bytes() const noexcept { return std::span(bytes_).first(size_); }
  std::size_t size() const noexcept { return size_; }

  friend bool operator==(const VllmDigest&, const VllmDigest&) = default;

 private:
  std::array<std::uint8_t, 32> bytes_{};
  std::size_t size_ = 0;
};

// The name that an engine publishes for a block: the last 8 bytes, big-endian.
std::uint64_t external_name(const VllmDigest& digest) noexcept;

// Inputs of a block's hash beside its tokens.
struct VllmExtraKeys {
  struct Lora {
    std::string_view name = {};
    std::string_view path = {};
  };
  struct Multimodal {
    std::string_view identifier = {};
    std::int64_t offset = 0;  // of the item's first token from that of the block; may be negative
  };
  std::optional<Lora> lora = {};
  std::span<const Multimodal> multimodal = {};
  std::optional<std::string_view> cache_salt = {};  // of the first block of a sequence only
  std::optional<std::array<std::uint8_t, 32>> prompt_embeds = {};

  bool empty() const noexcept { return !lora && multimodal.empty() && !cache_salt && !prompt_embeds; }
};

struct VllmHashOptions {
  VllmAlgorithm algorithm = VllmAlgorithm::kSha256;
  // PYTHONHASHSEED of the engine's process; nullopt if it is not set.
  std::optional<std::string> hash_seed = {};
};

class VllmHasher {
 public:
  // Errors: kUnsupported: xxhash without a seed begins its chains at random; kInvalidArgument: the seed is
  // not UTF-8.
  static Result<VllmHasher> create(const VllmHashOptions& options = {});

  VllmAlgorithm algorithm() const noexcept { return algorithm_; }
  const VllmDigest& none_hash() const noexcept { return none_hash_; }

  // Errors: kInvalidArgument: the parent does not have the size of this algorithm's digests, or a text is not
  // UTF-8; kUnsupported: not computable, because the extra keys repeat a value and the algorithm pickles.
  Result<VllmDigest> hash_block(const std::optional<VllmDigest>& parent, std::span<const Token> tokens,
                                const VllmExtraKeys& extra = {}) const;

 private:
  explicit VllmHasher(VllmAlgorithm algorithm) : algorithm_(algorithm) {}
  VllmDigest digest(std::span<const std::uint8_t> bytes) const noexcept;

  VllmAlgorithm algorithm_;
  VllmDigest none_hash_;
};

// ---- SGLang: a SHA-256 chain over tokens.
//
//   digest = SHA-256([digest of the parent] | tokens as little-endian u32)
//
// For speculative decoding with a draft head the tokens are pairs, both written one after the other. The name
// that the engine publishes is the first 64 bits of the digest as a signed number. A cache namespace (LoRA,
// cache salt) is not part of the rule.

using SglangDigest = std::array<std::uint8_t, 32>;

SglangDigest sglang_hash_block(const std::optional<SglangDigest>& parent,
                               std::span<const Token> tokens) noexcept;

// The name as the engine publishes it; our unsigned name has the same 64 bits.
std::int64_t sglang_external_name(const SglangDigest& digest) noexcept;

// ---- Routers.

// XXH3-64 over the tokens (little-endian u32) followed by the mm hashes of the block (little-endian u64,
// ascending; any order is accepted). Without mm hashes this is the local hash of the xxh3 chain. It does not
// agree with the framed encoding of MultimodalRun. Allocates when there are mm hashes.
LocalHash router_local_hash(std::span<const Token> tokens, std::span<const std::uint64_t> mm_hashes,
                            std::uint64_t salt_seed);

// Local hashes for speculative decoding with a draft head: windows of block_size + 1 tokens, one every
// block_size tokens; only whole windows count. Errors: kInvalidArgument when the block size is not
// in 1..65536.
Result<std::vector<LocalHash>> eagle_local_hashes(std::span<const Token> tokens, std::uint32_t block_size,
                                                  std::uint64_t salt_seed);

}  // namespace ashlar::tokens
