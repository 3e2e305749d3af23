// Reads the integers of a msgpack array of tokens.
//
// Two ways. Where widths seldom change, each has its branch: about a nanosecond per token, and a fraction of
// it where many in a row have one width, which the vector instructions of the machine read. Where they change
// often, a branch would be mispredicted for every other token, so the run is read by widths: first the length
// of a token starting at each byte of a window is computed, eight bytes at a time; then each token takes a
// table look-up and a mask, without data-dependent branches. The first tokens of a long run decide which way
// is used.
//
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ashlar/tokens/token.h"
#include "events/msgpack_reader.h"
#include "events/token_kernel.h"

namespace ashlar::events {
namespace token_run {

inline constexpr std::size_t kWord = 8;      // bytes that reading one token may touch
inline constexpr std::size_t kWindow = 256;  // bytes

// The length of a token that begins at each byte, eight bytes at a time. Heads cc, cd and ce are followed by
// 1, 2 and 4 bytes; other bytes from 80 on begin no token, and give kNoToken.
inline constexpr unsigned kNoToken = 0x80;
inline void note_lengths(const std::byte* at, std::uint64_t* lengths) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  for (std::size_t i = 0; i < kWindow / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + 8 * i, sizeof(word));
    const std::uint64_t headed = (word >> 7) & kOnes;
    const std::uint64_t two = headed & word;
    const std::uint64_t four = headed & (word >> 1);
    const std::uint64_t other = (word & (0x7C * kOnes)) ^ (0x4C * kOnes);  // 0 in cc..cf
    const std::uint64_t wrong = ((other + 0x7F * kOnes) >> 7) & headed;
    lengths[i] = kOnes + (headed & ~(two | four)) + 2 * two + 4 * four + ((wrong | (two & four)) << 7);
  }
}

// Reads whole windows of tokens from `at`, not beyond `out_end` and `end`. Returns where it stopped: near an
// end, or at a byte that begins no token of 32 bits. Requires: 3 bytes before `at` may be read.
[[gnu::noinline]] inline const std::byte* read_by_widths(const std::byte* at, const std::byte* end,
                                                         tokens::Token*& out,
                                                         tokens::Token* out_end) noexcept {
  static constexpr std::array<std::uint32_t, 8> kMasks = {0, 0x7F, 0xFF, 0xFFFF, 0, UINT32_MAX, 0, 0};
  std::uint64_t words[kWindow / 8];
  const auto* const lengths = reinterpret_cast<const unsigned char*>(words);
  std::size_t offset = 0;
  tokens::Token* to = out;
  while (static_cast<std::size_t>(end - at) >= kWindow + kWord &&
         static_cast<std::size_t>(out_end - to) >= kWindow) {
    note_lengths(at, words);
    while (offset < kWindow) {
      const unsigned length = lengths[offset];
      if (length >= kNoToken) {
        out = to;
        return at + offset;
      }
      offset += length;
      // The four bytes before its end, with those outside the token masked off.
      std::uint32_t value = 0;
      std::memcpy(&value, at + offset - sizeof(value), sizeof(value));
      if constexpr (std::endian::native == std::endian::little) value = __builtin_bswap32(value);
      *to++ = tokens::Token(value & kMasks[length]);
    }
    at += kWindow;
    offset -= kWindow;
  }
  out = to;
  return at + offset;
}

// A big-endian number, anywhere.
template <class T>
inline T load_big(const std::byte* at) noexcept {
  T value = 0;
  std::memcpy(&value, at, sizeof(value));
  if constexpr (std::endian::native == std::endian::big) return value;
  if constexpr (sizeof(T) == sizeof(std::uint32_t))
    return __builtin_bswap32(value);
  else
    return __builtin_bswap16(value);
}

// Eight bytes, the first one lowest.
inline std::uint64_t load_word(const std::byte* at) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return std::endian::native == std::endian::big ? __builtin_bswap64(word) : word;
}

// Reads as many as a kernel for tokens of this width can.
inline void read_wide(TokenKernel kernel, const std::byte*& at, const std::byte* end, tokens::Token*& out,
                      tokens::Token* out_end) noexcept {
  static_assert(sizeof(tokens::Token) == sizeof(std::uint32_t));
  const TokensRead read =
      kernel(reinterpret_cast<const unsigned char*>(at), static_cast<std::size_t>(end - at),
             reinterpret_cast<std::uint32_t*>(out), static_cast<std::size_t>(out_end - out));
  at += read.bytes;
  out += read.tokens;
}

// Reads four tokens at a time, as long as all of them have this head and a number of type T behind it.
template <class T>
inline const std::byte* read_alike(std::byte head, const std::byte* at, const std::byte* end,
                                   tokens::Token*& out, tokens::Token* out_end) noexcept {
  const TokenKernel kernel =
      sizeof(T) == sizeof(std::uint32_t) ? kTokenKernels.five_bytes : kTokenKernels.three_bytes;
  if (kernel != nullptr) read_wide(kernel, at, end, out, out_end);
  constexpr std::size_t kBytes = 1 + sizeof(T);
  constexpr std::uint64_t kHeads = 1 | std::uint64_t{1} << (8 * kBytes);  // of two tokens in eight bytes
  const std::uint64_t heads = kHeads * std::to_integer<std::uint64_t>(head);
  constexpr std::size_t kTouched = std::max(4 * kBytes, 2 * kBytes + kWord);
  if (out_end - out < 4 || static_cast<std::size_t>(end - at) < kTouched) return at;
  const std::byte* const last = end - kTouched;
  tokens::Token* const last_out = out_end - 4;
  tokens::Token* to = out;
  while (to <= last_out && at <= last) {
    const std::uint64_t differ = (load_word(at) ^ heads) | (load_word(at + 2 * kBytes) ^ heads);
    if ((differ & kHeads * 0xFF) != 0) break;
    for (std::size_t i = 0; i < 4; ++i) to[i] = tokens::Token(load_big<T>(at + i * kBytes + 1));
    to += 4;
    at += 4 * kBytes;
  }
  out = to;
  return at;
}

// Reads tokens as read_by_widths() does, with a branch for each width.
inline const std::byte* read_by_branches(const std::byte* at, const std::byte* end, tokens::Token*& out,
                                         tokens::Token* out_end) noexcept {
  if (static_cast<std::size_t>(end - at) < kWord) return at;
  const std::byte* const stop = end - kWord;
  tokens::Token* to = out;
  // After two of one width more of it are expected.
  std::uint32_t before = 0;
  while (to != out_end && at <= stop) {
    const std::uint64_t word = load_word(at);
    const auto head = static_cast<std::uint32_t>(word & 0xFF);
    if (head == before && head >= 0xCD) {
      const std::byte* const first = at;
      if (head == 0xCD) at = read_alike<std::uint16_t>(std::byte{0xCD}, at, end, to, out_end);
      if (head == 0xCE) at = read_alike<std::uint32_t>(std::byte{0xCE}, at, end, to, out_end);
      before = 0;
      if (at != first) continue;
    }
    before = head;
    if (head == 0xCD) {
      *to++ = tokens::Token(__builtin_bswap16(static_cast<std::uint16_t>(word >> 8)));
      at += 3;
    } else if (head < 0x80) {
      *to++ = tokens::Token(head);
      at += 1;
    } else if (head == 0xCC) {
      *to++ = tokens::Token(static_cast<std::uint32_t>(word >> 8) & 0xFF);
      at += 2;
    } else if (head == 0xCE) {
      *to++ = tokens::Token(__builtin_bswap32(static_cast<std::uint32_t>(word >> 8)));
      at += 5;
    } else {
      break;
    }
  }
  out = to;
  return at;
}

// Whether widths change too often for branch prediction.
[[gnu::noinline]] inline bool is_mixed(const tokens::Token* tokens, std::size_t count) noexcept {
  const auto width = [](tokens::Token token) {
    const std::uint32_t value = token.value();
    return (value >= 0x80 ? 1u : 0u) + (value >= 0x100 ? 1u : 0u) + (value >= 0x10000 ? 1u : 0u);
  };
  std::size_t changes = 0;
  for (std::size_t i = 1; i < count; ++i) changes += width(tokens[i]) != width(tokens[i - 1]) ? 1 : 0;
  return 8 * changes >= count;
}

}  // namespace token_run

// Reads `count` tokens to `out`. A fault is the reader's.
inline bool read_token_run(MsgpackReader& reader, std::uint32_t count, tokens::Token* out) noexcept {
  constexpr const char* kWhat = "a token id is no integer of 0..4294967295";
  constexpr std::uint32_t kTrial = 32;
  tokens::Token* const out_end = out + count;
  while (out != out_end) {
    const std::byte* const begin = reader.at();
    const std::byte* const end = begin + reader.left();
    const std::byte* at = begin;
    if (static_cast<std::size_t>(out_end - out) >= token_run::kWindow + kTrial) {
      const tokens::Token* const first = out;
      at = token_run::read_by_branches(at, end, out, out + kTrial);
      if (out - first == kTrial && token_run::is_mixed(first, kTrial)) [[unlikely]]
        at = token_run::read_by_widths(at, end, out, out_end);
    }
    at = token_run::read_by_branches(at, end, out, out_end);
    reader.advance(static_cast<std::size_t>(at - begin));
    if (out == out_end) break;
    std::uint64_t value = 0;
    if (!reader.read_unsigned(value, UINT32_MAX, kWhat)) return false;
    *out++ = tokens::Token(static_cast<std::uint32_t>(value));
  }
  return true;
}

}  // namespace ashlar::events
