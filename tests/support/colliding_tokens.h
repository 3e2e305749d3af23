// Blocks of tokens that collide on purpose: equal local hashes under the xxh3 chain, and so equal names, for
// different tokens.
//
// XXH3 of 16 bytes (4 tokens) reads two words x and y, both flipped by constants, and adds 16, x with its
// bytes reversed, y and the folded product: the pairs (w, 0) and (0, w reversed) meet. XXH3 of 32 to 128
// bytes (8 to 32 tokens) folds the product of the first two words, flipped by the secret, into its sum: a
// first word that the secret turns into 0 hides the second.
#pragma once

#include <cstdint>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/token.h"

namespace ashlar::testing {

inline void append_word(std::vector<tokens::Token>& tokens, std::uint64_t word) {
  tokens.emplace_back(static_cast<std::uint32_t>(word));
  tokens.emplace_back(static_cast<std::uint32_t>(word >> 32));
}

// Blocks with equal `label` have one name, whatever their `variant`: 0 or 1.
inline std::vector<tokens::Token> colliding_block(std::uint32_t block_size, std::uint32_t label,
                                                  std::uint32_t variant,
                                                  std::uint64_t seed = tokens::Salt::kBaseSeed) {
  ASHLAR_CHECK((block_size == 4 || block_size >= 8) && block_size <= 32 && variant < 2,
               "no collisions of %u tokens", block_size);
  std::vector<tokens::Token> tokens;
  if (block_size == 4) {
    const std::uint64_t word = 0x0102'0304'0506'0700u + label;
    append_word(tokens, (variant == 0 ? word : 0) ^ (0x6782737bea4239b9u + seed));
    append_word(tokens, (variant == 0 ? 0 : __builtin_bswap64(word)) ^ (0xaf56bc3b0996523au - seed));
  } else {
    append_word(tokens, 0xbe4ba423396cfeb8u + seed);
    append_word(tokens, variant == 0 ? 100 : 555);
    for (std::uint32_t i = 4; i < block_size; ++i) tokens.emplace_back(label * 1000 + i);
  }
  return tokens;
}

}  // namespace ashlar::testing
