// BlockChecksum: 64 bits over the content of a block that are the same in every layout.
//
// It covers the canonical form: the name of the block and of its namespace, the rank, for each plane its
// shape and shard, then its elements in the order layer, K/V, token, head, without padding. So it is computed
// once and holds wherever the block goes, and a block that comes back under another name, or that of another
// rank, does not pass. Opaque content has no order of its own inside a layer and is taken as it lies.
// docs/transfers.md has the bytes.
//
// Thread safety: immutable value; the functions only read.
// Complexity:    one pass over the bytes of the block.
#pragma once

#include <cstdint>

#include "ashlar/base/result.h"
#include "ashlar/base/strong_id.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_set.h"

namespace ashlar::transfer {

struct BlockChecksumTag;
using BlockChecksum = StrongId<BlockChecksumTag, std::uint64_t>;

// What the bytes claim to be.
struct ChecksumKey {
  tokens::SequenceHash hash;
  tokens::NamespaceFingerprint keys;
};

// Errors: kInvalidArgument: a block that the set does not have; kUnsupported: bytes that the host cannot
// read.
Result<BlockChecksum> checksum_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name);

// Errors: kCorruption, naming block and tier, when the bytes are not those that `expected` was computed from;
// those of checksum_block().
Result<void> verify_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name,
                          BlockChecksum expected, events::StorageTier tier);

}  // namespace ashlar::transfer
