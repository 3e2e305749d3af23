// TokenKernel: reads msgpack tokens of one width with the vector instructions of this machine.
//
// Files compiled for a wider instruction set include nothing else, so that none of their inline functions can
// end up in portable code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::events {

// Tokens that were read, and the bytes that they took.
struct TokensRead {
  std::size_t tokens;
  std::size_t bytes;
};

// Reads tokens from `at` into `out` as long as all of a step have the width of the kernel; fewer than `size`
// bytes and `room` tokens. Stops at the first step that has another one, and near an end.
using TokenKernel = TokensRead (*)(const unsigned char* at, std::size_t size, std::uint32_t* out,
                                   std::size_t room);

struct TokenKernels {
  TokenKernel three_bytes = nullptr;  // cd and 16 bits; null: there is none for this machine
  TokenKernel five_bytes = nullptr;   // ce and 32 bits
};

#if defined(__x86_64__)
extern const TokenKernels kTokensAvx2;
#endif

// Chosen at process start.
extern const TokenKernels kTokenKernels;

}  // namespace ashlar::events
