// Local hashes as routers in the field compute them, where they differ from SequenceHasher::local_hash().
//
// Thread safety: free functions, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

// XXH3-64 over the tokens (little-endian u32) followed by the mm hashes of the block (little-endian u64,
// ascending; any order is accepted). Without mm hashes this is the local hash of the xxh3 chain. It does not
// agree with the framed encoding of MultimodalRun. Allocates when there are mm hashes.
LocalHash router_local_hash(std::span<const Token> tokens, std::span<const std::uint64_t> mm_hashes,
                            std::uint64_t salt_seed);

// Local hashes for speculative decoding with a draft head: windows of block_size + 1 tokens, one every
// block_size tokens; only whole windows count. Errors: kInvalidArgument when the block size is not
// in 1..1024.
Result<std::vector<LocalHash>> eagle_local_hashes(std::span<const Token> tokens, std::uint32_t block_size,
                                                  std::uint64_t salt_seed);

}  // namespace ashlar::tokens
