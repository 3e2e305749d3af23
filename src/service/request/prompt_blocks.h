// The blocks of a prompt as the index names them: hashes of their tokens, and of the images, sounds and other
// items that stand in them. They are those that an engine's events lead to (feed/block_content.h).
//
// Thread safety: free functions.
// Complexity:    O(tokens + items).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"

namespace ashlar::service {

// An item of a prompt, at the placeholder tokens that stand for it.
struct PromptItem {
  std::uint64_t number = 0;  // of its content
  std::uint64_t offset = 0;  // of the first placeholder
  std::uint64_t length = 0;  // in tokens

  friend bool operator==(const PromptItem&, const PromptItem&) = default;
};

// Of every full block. Requires: items in the order of their offsets that do not overlap.
std::vector<tokens::LocalHash> hash_prompt(std::span<const tokens::Token> prompt,
                                           std::span<const PromptItem> items,
                                           const tokens::SequenceHasher& hasher, std::uint32_t block_size);

}  // namespace ashlar::service
