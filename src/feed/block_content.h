// BlockContent: the content of an engine's block, as the hashes of its tokens. ContentHasher computes it from
// the published events: the salt from block 0, everything else from each block.
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

struct BlockContent {
  tokens::SequenceHash hash = {};
  tokens::SequenceHash parent = {};  // of has_parent
  tokens::SequenceHash root = {};
  tokens::LocalHash local = {};
  tokens::SequenceHasher hasher = {};  // of the whole sequence
  bool has_parent = false;
  bool has_extras = false;  // other content entered the local hash beside the tokens
};

class ContentHasher {
 public:
  ContentHasher(const tokens::HashScheme& scheme, const tokens::Salt& base);

  const tokens::HashScheme& scheme() const noexcept { return scheme_; }
  const tokens::Salt& base() const noexcept { return base_; }

  // Writes the contents of the blocks of `run` after `parent` (null: it begins a sequence) to `out`, in
  // order. Errors: kInvalidArgument past the last position; kAlreadyExists when the run names another LoRA
  // adapter than its parent has. `out` then holds the blocks before.
  Result<void> hash(const EngineRun& run, const BlockContent* parent, std::vector<BlockContent>& out);

 private:
  const tokens::SequenceHasher& hasher_for(const tokens::Salt& salt);
  tokens::Salt salt_of(const EngineRun& run) const;
  Result<BlockContent> hash_block(const EngineRun& run, std::size_t block, const BlockContent* parent,
                                  const tokens::SequenceHasher& hasher,
                                  const std::vector<std::uint64_t>& extras);

  tokens::HashScheme scheme_;
  tokens::Salt base_;
  std::map<std::pair<std::string, std::string>, tokens::SequenceHasher> hashers_;  // a cache
  std::vector<tokens::BlockHashes> hashes_;
  std::vector<std::vector<std::uint64_t>> extras_;  // of each block of a run
};

}  // namespace ashlar::feed
