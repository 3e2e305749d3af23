// SequenceStart and BlockIdentity: what a block must know about the sequence it belongs to.
#pragma once

#include <optional>

#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"

namespace ashlar::block {

// Where a Partial block stands: how its sequence is hashed, and what comes before the block.
struct SequenceStart {
  tokens::SequenceHasher hasher;               // scheme and salt
  std::optional<tokens::SequenceHash> parent;  // the block before; nothing for the first block
  std::optional<tokens::SequenceHash> root;    // the first block of the sequence, where known
};

// The name of a block whose tokens the caller does not bring along.
struct BlockIdentity {
  tokens::SequenceHash hash;
  std::optional<tokens::SequenceHash> parent;  // the block before, where known
  std::optional<tokens::SequenceHash> root;    // the first block of the sequence, where known
};

}  // namespace ashlar::block
