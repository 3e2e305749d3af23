// VllmHasher: the block hashes of vLLM 0.32, computed from tokens.
//
//   hash(block) = digest(serialise((parent, tokens, extra)))
//
// The digest is SHA-256 or XXH3-128, the serialisation pickle protocol 5 (as CPython's C pickler writes it)
// or canonical CBOR. The parent of a first block is none_hash(), which depends on the hash seed of the
// engine's process. The name that an engine publishes by default is external_name(): the last 64 bits.
//
// Pickle writes an object that it has met before as a reference. Whether two equal strings are one object is
// not to be seen from their values, so blocks whose extra keys hold equal strings are refused; CBOR has no
// such case.
//
// Thread safety: immutable.
// Complexity:    O(tokens + extra keys); allocates one buffer per block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

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

// What an engine publishes as the name of a block: the last 8 bytes, big-endian.
std::uint64_t external_name(const VllmDigest& digest) noexcept;

// What enters the hash of a block beside its tokens.
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
  // PYTHONHASHSEED of the engine's process; nothing where it is not set.
  std::optional<std::string> hash_seed = {};
};

class VllmHasher {
 public:
  // Errors: kUnsupported: xxhash without a seed begins its chains at random; kInvalidArgument: the seed is no
  // UTF-8.
  static Result<VllmHasher> create(const VllmHashOptions& options = {});

  VllmAlgorithm algorithm() const noexcept { return algorithm_; }
  const VllmDigest& none_hash() const noexcept { return none_hash_; }

  // Errors: kInvalidArgument: the parent has not the size of this algorithm's digests, or a text is no UTF-8;
  // kUnsupported: not computable, because the extra keys repeat a value and the algorithm pickles.
  Result<VllmDigest> hash_block(const std::optional<VllmDigest>& parent, std::span<const Token> tokens,
                                const VllmExtraKeys& extra = {}) const;

 private:
  explicit VllmHasher(VllmAlgorithm algorithm) : algorithm_(algorithm) {}
  VllmDigest digest(std::span<const std::uint8_t> bytes) const noexcept;

  VllmAlgorithm algorithm_;
  VllmDigest none_hash_;
};

}  // namespace ashlar::tokens
