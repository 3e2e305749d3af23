// The block hashes of SGLang: a SHA-256 chain over tokens.
//
//   digest = SHA-256([digest of the parent] | tokens as little-endian u32)
//
// For speculative decoding with a draft head the tokens are pairs, both written one after the other. The name
// that the engine publishes is the first 64 bits of the digest as a signed number. A cache namespace (LoRA,
// cache salt) is not part of the rule.
//
// Thread safety: free functions, safe from any thread. Nothing allocates.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ashlar/tokens/sha256.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

Sha256::Digest sglang_hash_block(const std::optional<Sha256::Digest>& parent,
                                 std::span<const Token> tokens) noexcept;

// The name as the engine publishes it; as an unsigned name of ours it is the same 64 bits.
std::int64_t sglang_external_name(const Sha256::Digest& digest) noexcept;

}  // namespace ashlar::tokens
