// Token: one vocabulary id. LocalHash: the content of one block of tokens, independent of its prefix, as a
// router sends it in a query. A block with its place in a sequence is a SequenceHash.
//
// Thread safety: immutable values.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "ashlar/base/result.h"
#include "ashlar/base/strong_id.h"

namespace ashlar::tokens {

using Token = StrongId<struct TokenTag, std::uint32_t>;
using LocalHash = StrongId<struct LocalHashTag, std::uint64_t>;

static_assert(sizeof(Token) == sizeof(std::uint32_t) && std::is_trivially_copyable_v<Token>,
              "tokens are hashed as the bytes of their numbers");

// Block sizes are counted in tokens.
inline constexpr std::uint32_t kMinBlockSize = 1;
inline constexpr std::uint32_t kMaxBlockSize = 65536;
// Errors: kInvalidArgument, with the value, when it is not in kMinBlockSize..kMaxBlockSize.
Result<void> validate_block_size(std::uint64_t block_size);

}  // namespace ashlar::tokens
