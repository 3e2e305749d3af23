// BlockChecksum: 64 bits over the content of a block, the same in every layout.
//
// It covers the canonical form: the hash of the block, its namespace and rank, for each plane its shape and
// shard, then its elements in the order layer, K/V, token, head, without padding. So it is computed once and
// stays valid wherever the block goes, and a block that returns under another hash or from another rank does
// not match. Opaque content is taken in the order in which it lies inside a layer. docs/transfers.md has the
// bytes.
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

// What a checksum binds the bytes to.
struct ChecksumKey {
  tokens::SequenceHash hash;
  tokens::NamespaceFingerprint keys;
};

// Errors: kInvalidArgument: no such block in the set; kUnsupported: the host cannot read the bytes.
Result<BlockChecksum> checksum_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name);

// The same for some layers and heads of the model, as ranks of different shapes exchange them: it holds in
// every set that has them, of any rank. A plane with one head for all goes along whole. Errors: also
// kInvalidArgument: the set does not have all of them; kUnsupported: opaque content that would be cut.
Result<BlockChecksum> checksum_part(const BlockSet& set, std::uint32_t block, const ChecksumKey& name,
                                    const layout::Range& layers, const layout::Range& heads);

// Compares a block with its checksum; `tier` is for the message. Errors: kCorruption: the checksums differ;
// those of checksum_block().
Result<void> verify_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name,
                          BlockChecksum expected, events::StorageTier tier);

}  // namespace ashlar::transfer
