// SequenceHasher: a hash scheme bound to a salt and a key of prefix digests. Turns tokens into local hashes,
// sequence hashes and prefix digests, in one pass.
//
// A hasher is a cheap handle to shared immutable state (the seed, the secret derived from it), so every block
// of a sequence can hold one. Two hashers are equal when their scheme, salt and prefix key are.
//
// Thread safety: immutable.
// Complexity:    every hash is O(tokens) and allocates nothing; copying a hasher copies a pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ashlar/base/result.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

// The hashes of one block.
struct BlockHashes {
  LocalHash local;
  SequenceHash sequence;
  PrefixDigest prefix;

  friend bool operator==(const BlockHashes&, const BlockHashes&) = default;
};

// The predecessor of a block: none, or a block with its name and, if known, its prefix digest. After a block
// with an unknown digest all digests are unknown.
struct BlockBefore {
  BlockBefore() = default;
  BlockBefore(std::nullopt_t) {}                           // NOLINT(google-explicit-constructor)
  BlockBefore(const SequenceHash& block) : name(block) {}  // NOLINT(google-explicit-constructor)
  BlockBefore(const std::optional<SequenceHash>& block)
      : name(block) {}  // NOLINT(google-explicit-constructor)
  BlockBefore(const BlockHashes& block)
      : name(block.sequence), prefix(block.prefix) {}  // NOLINT(google-explicit-constructor)
  BlockBefore(const std::optional<SequenceHash>& block, const PrefixDigest& digest)
      : name(block), prefix(digest) {}

  std::optional<SequenceHash> name;
  PrefixDigest prefix;
};

class SequenceHasher {
 public:
  // The scheme of the systems in the field (xxh3 chain, no LoRA, no tenant salt).
  SequenceHasher();
  explicit SequenceHasher(const Salt& salt);
  // Under keyed128 the scheme's key makes the digests too, and `prefix_key` is not used.
  SequenceHasher(const HashScheme& scheme, const Salt& salt,
                 const PrefixKey& prefix_key = PrefixKey::of_process());

  const HashScheme& scheme() const noexcept;
  const Salt& salt() const noexcept;
  const PrefixKey& prefix_key() const noexcept;

  LocalHash local_hash(std::span<const Token> tokens) const noexcept;
  // The same for tokens that start at `offset` of a sequence with multimodal runs. Requires: valid runs.
  LocalHash local_hash(std::span<const Token> tokens, std::uint64_t offset,
                       std::span<const MultimodalRun> runs) const noexcept;

  // Hashes a full block whose predecessor is `parent` (empty for the first block). Errors: kInvalidArgument
  // when the position would exceed SequenceHash::kMaxPosition, and when only one of the parent's name and the
  // scheme is keyed.
  Result<BlockHashes> hash_block(const BlockBefore& parent, std::span<const Token> tokens) const;
  // The same in a sequence with multimodal runs; the block starts at position * tokens.size(). Requires:
  // valid runs.
  Result<BlockHashes> hash_block(const BlockBefore& parent, std::span<const Token> tokens,
                                 std::span<const MultimodalRun> runs) const;

  // Hashes every full block of `tokens`, which follow `parent`, into the front of `out`; tokens after the
  // last full block are left out. Returns how many blocks there were. Faster than hash_block() in a
  // loop. Requires: out.size() >= tokens.size() / block_size. Errors: as hash_block(), and kInvalidArgument
  // when the block size is not in 1..65536; `out` is then unchanged.
  Result<std::size_t> hash_blocks(const BlockBefore& parent, std::span<const Token> tokens,
                                  std::uint32_t block_size, std::span<BlockHashes> out) const;
  // The same for callers that need no prefix digests: those of `out` may be unknown.
  Result<std::size_t> hash_names(const std::optional<SequenceHash>& parent, std::span<const Token> tokens,
                                 std::uint32_t block_size, std::span<BlockHashes> out) const;

  friend bool operator==(const SequenceHasher& a, const SequenceHasher& b) noexcept;

 private:
  struct State;
  Result<std::size_t> hash_blocks(const BlockBefore& parent, const PrefixDigest& prefix,
                                  std::span<const Token> tokens, std::uint32_t block_size,
                                  std::span<BlockHashes> out) const;
  // The position after `parent`, if `blocks` blocks from there on have positions.
  Result<std::uint32_t> first_position(const std::optional<SequenceHash>& parent, std::size_t blocks) const;

  std::shared_ptr<const State> state_;
};

}  // namespace ashlar::tokens
