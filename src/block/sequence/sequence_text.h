// SequenceText: the tokens of a sequence, and the names and prefix digests of its full blocks, computed on
// demand. Names may be given; digests always come from the tokens.
//
// Thread safety: thread-compatible. Invariant: hashes[i] is the name of block i, for every computed or given
// hash, and prefixes[i] its digest; there are at most as many digests as names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block::detail {

// How a sequence is hashed; shared by its forks.
struct TextRules {
  tokens::SequenceHasher hasher;
  std::vector<tokens::MultimodalRun> runs;
  std::uint32_t block_size;
  std::uint32_t metadata = 0;  // of its blocks
  tokens::SaltFingerprint salt = tokens::salt_fingerprint(hasher.salt());
};

// The hasher of a sequence over a manager with a key of its own: with that key, where the given one has the
// process's. Errors: kInvalidArgument: another key.
Result<tokens::SequenceHasher> bind_hasher(const tokens::SequenceHasher& hasher,
                                           const std::optional<tokens::PrefixKey>& key);

struct SequenceText {
  std::vector<tokens::Token> tokens;
  std::vector<tokens::SequenceHash> hashes;
  std::vector<tokens::PrefixDigest> prefixes;
  std::shared_ptr<const TextRules> rules;

  // Errors: kInvalidArgument for more blocks than positions, and for hashes that cannot belong to the tokens.
  static Result<SequenceText> create(std::vector<tokens::Token> tokens,
                                     std::vector<tokens::SequenceHash> hashes,
                                     std::shared_ptr<const TextRules> rules);

  std::size_t full_blocks() const noexcept { return tokens.size() / rules->block_size; }
  // The first `count` names and as many digests, computing missing ones. Fewer when positions run out.
  // Requires: count <= full_blocks().
  std::span<const tokens::SequenceHash> names(std::size_t count);
  // Reserves memory for this many.
  void reserve(std::size_t token_count, std::size_t blocks);
  // The last tokens changed: recomputes the names from block `first` on.
  void forget_names_from(std::size_t first);
  // The name of block `i` in a group. Requires: names(i + 1) was called.
  BlockIdentity identity(std::size_t i, std::uint32_t group) const;
  // The hash of a full block's own tokens.
  tokens::LocalHash local_hash(std::size_t i) const {
    return rules->hasher.local_hash(block(i), std::uint64_t{i} * rules->block_size, rules->runs);
  }
  std::span<const tokens::Token> block(std::size_t i) const {
    return std::span(tokens).subspan(i * rules->block_size, rules->block_size);
  }
};

}  // namespace ashlar::block::detail
