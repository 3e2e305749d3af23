// Lists of tokens, and digests as text, for the tests of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/token.h"
#include "tokens/hex.h"
#include "tokens/sha256.h"

namespace ashlar::tokens {

// first, first + 1, …, last.
inline std::vector<Token> tokens_from_to(std::uint32_t first, std::uint32_t last) {
  std::vector<Token> tokens;
  for (std::uint32_t value = first; value <= last; ++value) tokens.emplace_back(value);
  return tokens;
}

inline std::vector<Token> random_tokens(Random& random, std::size_t count) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.emplace_back(static_cast<std::uint32_t>(random.next()));
  return tokens;
}

inline std::string hex_of(const Sha256::Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) append_hex(text, byte, 2);
  return text;
}

}  // namespace ashlar::tokens
