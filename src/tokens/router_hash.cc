#include "ashlar/tokens/engine_hash.h"

#include <algorithm>

#include "tokens/block_encoding.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {

LocalHash router_local_hash(std::span<const Token> tokens, std::span<const std::uint64_t> mm_hashes,
                            std::uint64_t salt_seed) {
  if (mm_hashes.empty())
    return LocalHash(XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), salt_seed));
  std::vector<std::uint64_t> sorted(mm_hashes.begin(), mm_hashes.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::uint8_t> bytes(tokens.size_bytes() + mm_hashes.size_bytes());
  if (!tokens.empty()) std::memcpy(bytes.data(), tokens.data(), tokens.size_bytes());
  std::memcpy(bytes.data() + tokens.size_bytes(), sorted.data(), mm_hashes.size_bytes());
  return LocalHash(XXH3_64bits_withSeed(bytes.data(), bytes.size(), salt_seed));
}

Result<std::vector<LocalHash>> eagle_local_hashes(std::span<const Token> tokens, std::uint32_t block_size,
                                                  std::uint64_t salt_seed) {
  ASHLAR_RETURN_IF_ERROR(validate_block_size(block_size));
  std::vector<LocalHash> hashes;
  hashes.reserve(tokens.size() / block_size);
  for (std::size_t begin = 0; begin + block_size < tokens.size(); begin += block_size) {
    const auto window = tokens.subspan(begin, block_size + 1);
    hashes.push_back(LocalHash(XXH3_64bits_withSeed(window.data(), window.size_bytes(), salt_seed)));
  }
  return hashes;
}

}  // namespace ashlar::tokens
