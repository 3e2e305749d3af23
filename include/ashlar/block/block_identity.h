// BlockId: the index of a block in its manager's pool, and so in the memory behind the pool. SequenceStart
// and BlockIdentity: a block's place in its sequence.
//
// Thread safety: immutable values.
#pragma once

#include <cstdint>
#include <optional>

#include "ashlar/base/strong_id.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"

namespace ashlar::block {

using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
// In a block table: no block.
inline constexpr BlockId kNoBlock{0xFFFF'FFFFu};

// The states of one block's life (docs/block_lifecycle.md).
enum class BlockState : std::uint8_t {
  kReset,        // in the reset pool
  kMutable,      // held by a MutableBlock, empty
  kPartial,      // held by a PartialBlock, tokens being added
  kScheduled,    // held by a ScheduledBlock
  kInflight,     // held by an InflightBlock, KV being computed
  kQuarantined,  // its InflightBlock was dropped before the device reported the end
  kComplete,     // held by a CompleteBlock
  kPrimary,      // registered, the block its hash finds; inactive without references
  kDuplicate,    // registered and in use, another block of the same hash
};
inline constexpr std::size_t kBlockStates = 9;

// The state's name in lower case.
std::string_view to_string(BlockState state) noexcept;

// The start of a Partial block: how its sequence is hashed, and which block precedes it.
struct SequenceStart {
  tokens::SequenceHasher hasher;  // scheme and salt; the manager's prefix key counts, if it has one
  std::optional<tokens::SequenceHash> parent;  // the preceding block; nullopt for the first block
  std::optional<tokens::SequenceHash> root;    // the first block of the sequence, if known
  // The digest of `parent`. Without it the block is known by name alone, and its prefix cannot be checked.
  tokens::PrefixDigest parent_prefix = {};
};

// The name of a block without its tokens.
struct BlockIdentity {
  tokens::SequenceHash hash;
  std::optional<tokens::SequenceHash> parent;  // the preceding block, if known
  std::optional<tokens::SequenceHash> root;    // the first block of the sequence, if known
  // For listeners; ignored without an event log or an observer.
  std::optional<tokens::LocalHash> local = {};  // the hash of the block's own tokens, if known
  std::uint16_t location = 0;                   // the volume or device, by the tier's numbers
  std::uint16_t group = 0;                      // group of layers
  std::uint32_t metadata = 0;                   // the caller's own
  // The digest of all tokens up to the block's end. Unknown: the name is trusted.
  tokens::PrefixDigest prefix = {};
  tokens::SaltFingerprint salt = {};  // zero: unknown
};

// One block of a sequence, as the sequence shows it. Valid until the sequence changes.
struct SequenceBlock {
  BlockId id = kNoBlock;                          // kNoBlock: none allocated, or outside its group's window
  std::span<const tokens::Token> tokens = {};     // those it has so far
  std::optional<tokens::SequenceHash> hash = {};  // its name, once it is full
  bool registered = false;                        // other sequences can find it
};

}  // namespace ashlar::block
