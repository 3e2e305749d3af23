// What the benchmarks of whole sequences share: the pool, and the names of a prompt's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/base/check.h"

namespace ashlar::bench {

inline constexpr std::uint32_t kPool = 65536;
inline constexpr std::uint32_t kBlockSize = 16;

inline block::BlockManager<events::G1> make_manager() {
  return *block::BlockManager<events::G1>::builder()
              .block_count(kPool)
              .block_size(kBlockSize)
              .registry(*block::BlockRegistry::create())
              .with_lru_backend()
              .build();
}

inline std::vector<tokens::SequenceHash> names_of(std::span<const tokens::Token> tokens) {
  std::vector<tokens::BlockHashes> hashes(tokens.size() / kBlockSize);
  ASHLAR_CHECK(tokens::SequenceHasher().hash_blocks(std::nullopt, tokens, kBlockSize, hashes).has_value(),
               "hashes");
  std::vector<tokens::SequenceHash> names;
  for (const auto& each : hashes) names.push_back(each.sequence);
  return names;
}

}  // namespace ashlar::bench
