// BlockContent, RunContent: the content of an engine's blocks, as the hashes of their tokens. ContentHasher
// computes it from the published events: the salt from block 0, everything else from each block.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"
#include "feed/engine_run.h"

namespace ashlar::feed {

// The number of an image, sound or other item, from the identifier that the engine gives it.
std::uint64_t item_number(std::string_view identifier);

// The block before a run. `hasher` is its owner's.
struct RunParent {
  tokens::SequenceHash hash = {};
  tokens::SequenceHash root = {};
  const tokens::SequenceHasher* hasher = nullptr;
  std::uint32_t sequence = 0;  // its number among HeldBlocks, if that is known; else 0
  bool is_held = false;        // now, under the name that the run gives it
};

struct BlockContent {
  tokens::SequenceHash hash = {};
  tokens::SequenceHash parent = {};  // of has_parent
  tokens::SequenceHash root = {};
  tokens::LocalHash local = {};
  tokens::SequenceHasher hasher = {};  // of the whole sequence
  events::BlockName parent_name = {};  // of has_parent
  std::uint32_t sequence = 0;          // its number among HeldBlocks, if that is known; else 0
  bool has_parent = false;
  bool has_extras = false;  // other content entered the local hash beside the tokens

  RunParent as_parent() const noexcept {
    return {.hash = hash, .root = root, .hasher = &hasher, .sequence = sequence};
  }
};

// Of the blocks of a run, what they share once.
struct RunContent {
  tokens::SequenceHash parent = {};  // of has_parent: the block before the run
  tokens::SequenceHash root = {};
  const tokens::SequenceHasher* hasher = nullptr;  // of the parent, or of ContentHasher until its next run
  bool has_parent = false;
  std::vector<tokens::BlockHashes> blocks;
  std::vector<bool> extras;  // blocks with other content beside the tokens; empty: none has

  bool has_parent_of(std::size_t block) const noexcept { return block != 0 || has_parent; }
  // Requires: has_parent_of(block).
  const tokens::SequenceHash& parent_of(std::size_t block) const noexcept {
    return block == 0 ? parent : blocks[block - 1].sequence;
  }
  bool has_extras(std::size_t block) const noexcept { return !extras.empty() && extras[block]; }
  BlockContent of(std::size_t block) const {
    return {.hash = blocks[block].sequence,
            .parent = has_parent_of(block) ? parent_of(block) : tokens::SequenceHash(),
            .root = root,
            .local = blocks[block].local,
            .hasher = *hasher,
            .has_parent = has_parent_of(block),
            .has_extras = has_extras(block)};
  }
};

class ContentHasher {
 public:
  ContentHasher(const tokens::HashScheme& scheme, const tokens::Salt& base);

  const tokens::HashScheme& scheme() const noexcept { return scheme_; }
  const tokens::Salt& base() const noexcept { return base_; }

  // Replaces `out` by the content of `run` after `parent` (null: it begins a sequence). Errors:
  // kInvalidArgument past the last position; kAlreadyExists when the run names another LoRA adapter than its
  // parent has. `out` then holds the blocks before.
  Result<void> hash(const EngineRun& run, const RunParent* parent, RunContent& out);

 private:
  const tokens::SequenceHasher& hasher_for(const EngineRun& run);
  tokens::Salt salt_of(const EngineRun& run) const;
  // Of a block with `extras` beside its tokens.
  Result<tokens::BlockHashes> hash_block(const EngineRun& run, std::size_t block,
                                         const std::optional<tokens::SequenceHash>& before,
                                         const tokens::SequenceHasher& hasher,
                                         const std::vector<std::uint64_t>& extras);

  tokens::HashScheme scheme_;
  tokens::Salt base_;
  tokens::SequenceHasher base_hasher_;
  std::map<std::pair<std::string, std::string>, tokens::SequenceHasher> hashers_;  // a cache, of other salts
  std::vector<std::vector<std::uint64_t>> extras_;                                 // of each block of a run
};

}  // namespace ashlar::feed
