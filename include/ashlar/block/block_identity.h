// BlockId: the index of a block in its manager's pool, and so in the memory that the pool stands for.
// SequenceStart and BlockIdentity: what a block knows about the sequence it belongs to.
//
// Thread safety: immutable values.
#pragma once

#include <cstdint>
#include <optional>

#include "ashlar/base/strong_id.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"

namespace ashlar::block {

using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;

// Where a Partial block stands: how its sequence is hashed, and what comes before the block.
struct SequenceStart {
  tokens::SequenceHasher hasher;               // scheme and salt
  std::optional<tokens::SequenceHash> parent;  // the block before; nothing for the first block
  std::optional<tokens::SequenceHash> root;    // the first block of the sequence, where known
  // Of `parent`. Without it the block comes by its name alone, and its prefix cannot be checked.
  tokens::PrefixDigest parent_prefix = {};
};

// The name of a block whose tokens the caller does not bring along.
struct BlockIdentity {
  tokens::SequenceHash hash;
  std::optional<tokens::SequenceHash> parent;  // the block before, where known
  std::optional<tokens::SequenceHash> root;    // the first block of the sequence, where known
  // For event listeners; ignored without an event log.
  std::optional<tokens::LocalHash> local = {};  // the hash of the block's own tokens, where known
  std::uint16_t location = 0;                   // the volume or device, by the tier's numbers
  std::uint16_t group = 0;                      // group of layers
  std::uint32_t metadata = 0;                   // the caller's own
  // Of all tokens up to the block's end. Not known: the name is trusted.
  tokens::PrefixDigest prefix = {};
};

}  // namespace ashlar::block
