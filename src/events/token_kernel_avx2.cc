// Two halves of a register take three tokens of five bytes each, or four of three. One comparison tells
// whether all heads are there, one shuffle turns the numbers around.
#if defined(__x86_64__)
#include <immintrin.h>

#include "events/token_kernel.h"

namespace ashlar::events {
namespace {

constexpr std::size_t kHalf = 16;

__m256i load_halves(const unsigned char* first, const unsigned char* second) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

bool has_heads(__m256i bytes, unsigned char head, unsigned places) {
  const __m256i same = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(static_cast<char>(head)));
  const unsigned both = places | places << kHalf;
  return (static_cast<unsigned>(_mm256_movemask_epi8(same)) & both) == both;
}

// Steps that read `tokens` from two halves, `bytes` of each, and write `written` tokens.
std::size_t steps(std::size_t size, std::size_t bytes, std::size_t room, std::size_t tokens,
                  std::size_t written) {
  if (size < bytes + kHalf || room < written) return 0;
  const std::size_t by_size = (size - (bytes + kHalf)) / (2 * bytes) + 1;
  const std::size_t by_room = (room - written) / tokens + 1;
  return by_size < by_room ? by_size : by_room;
}

TokensRead read_five_bytes(const unsigned char* at, std::size_t size, std::uint32_t* out, std::size_t room) {
  constexpr std::size_t kTokens = 3;  // of a half
  constexpr std::size_t kBytes = 5 * kTokens;
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(4, 3, 2, 1, 9, 8, 7, 6, 14, 13, 12, 11, -1, -1, -1, -1));
  // The fourth place of a half is written by the next one.
  const __m256i packed = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
  const std::size_t most = steps(size, kBytes, room, 2 * kTokens, 8);
  std::size_t step = 0;
  for (; step < most; ++step, at += 2 * kBytes, out += 2 * kTokens) {
    const __m256i bytes = load_halves(at, at + kBytes);
    if (!has_heads(bytes, 0xCE, 1u | 1u << 5 | 1u << 10)) break;
    const __m256i numbers = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(bytes, order), packed);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), numbers);
  }
  return {step * 2 * kTokens, step * 2 * kBytes};
}

TokensRead read_three_bytes(const unsigned char* at, std::size_t size, std::uint32_t* out, std::size_t room) {
  constexpr std::size_t kTokens = 4;
  constexpr std::size_t kBytes = 3 * kTokens;
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 1, -1, -1, 5, 4, -1, -1, 8, 7, -1, -1, 11, 10, -1, -1));
  const std::size_t most = steps(size, kBytes, room, 2 * kTokens, 2 * kTokens);
  std::size_t step = 0;
  for (; step < most; ++step, at += 2 * kBytes, out += 2 * kTokens) {
    const __m256i bytes = load_halves(at, at + kBytes);
    if (!has_heads(bytes, 0xCD, 1u | 1u << 3 | 1u << 6 | 1u << 9)) break;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_shuffle_epi8(bytes, order));
  }
  return {step * 2 * kTokens, step * 2 * kBytes};
}

}  // namespace

const TokenKernels kTokensAvx2 = {&read_three_bytes, &read_five_bytes};

}  // namespace ashlar::events
#endif
