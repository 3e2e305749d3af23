#include "ashlar/tokens/engine_hash.h"

#include "tokens/sha256.h"

#include <algorithm>
#include <array>
#include <bit>

#include "tokens/big_endian.h"

namespace ashlar::tokens {

SglangDigest sglang_hash_block(const std::optional<SglangDigest>& parent,
                               std::span<const Token> tokens) noexcept {
  Sha256 sha;
  if (parent) sha.update(*parent);
  std::array<std::uint8_t, 256> bytes;
  while (!tokens.empty()) {
    const std::size_t count = std::min(tokens.size(), bytes.size() / 4);
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t k = 0; k < 4; ++k)
        bytes[4 * i + k] = static_cast<std::uint8_t>(tokens[i].value() >> (8 * k));
    sha.update(std::span(bytes).first(4 * count));
    tokens = tokens.subspan(count);
  }
  return sha.finish();
}

std::int64_t sglang_external_name(const SglangDigest& digest) noexcept {
  return static_cast<std::int64_t>(from_big_endian(std::span(digest).first<8>()));
}

}  // namespace ashlar::tokens
