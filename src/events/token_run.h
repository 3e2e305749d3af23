// Reads the integers of a msgpack array of tokens.
//
// A word of eight bytes is read per token wherever that many are left, and each width has its branch: runs of one width
// are predicted and cost about a nanosecond per token; widths that nobody can predict cost a mispredicted branch each.
//
// Thread safety: free function.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ashlar/tokens/token.h"
#include "events/msgpack_reader.h"

namespace ashlar::events {

// Reads `count` tokens to `out`. A fault is the reader's.
inline bool read_token_run(MsgpackReader& reader, std::uint32_t count, tokens::Token* out) noexcept {
  constexpr const char* kWhat = "a token id is no integer of 0..4294967295";
  std::uint32_t i = 0;
  while (i < count && reader.left() >= 8) {
    const std::byte* at = reader.at();
    const std::byte* const stop = at + (reader.left() - 8);
    bool plain = true;
    while (i < count && at <= stop) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, sizeof(word));
      if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
      const auto head = static_cast<std::uint32_t>(word & 0xFF);
      if (head == 0xCD) {
        out[i++] = tokens::Token(__builtin_bswap16(static_cast<std::uint16_t>(word >> 8)));
        at += 3;
      } else if (head < 0x80) {
        out[i++] = tokens::Token(head);
        at += 1;
      } else if (head == 0xCC) {
        out[i++] = tokens::Token(static_cast<std::uint32_t>(word >> 8) & 0xFF);
        at += 2;
      } else if (head == 0xCE) {
        out[i++] = tokens::Token(__builtin_bswap32(static_cast<std::uint32_t>(word >> 8)));
        at += 5;
      } else {
        plain = false;
        break;
      }
    }
    reader.advance(static_cast<std::size_t>(at - reader.at()));
    if (plain) break;
    std::uint64_t value = 0;
    if (!reader.read_unsigned(value, UINT32_MAX, kWhat)) return false;
    out[i++] = tokens::Token(static_cast<std::uint32_t>(value));
  }
  for (; i < count; ++i) {
    std::uint64_t value = 0;
    if (!reader.read_unsigned(value, UINT32_MAX, kWhat)) return false;
    out[i] = tokens::Token(static_cast<std::uint32_t>(value));
  }
  return true;
}

}  // namespace ashlar::events
