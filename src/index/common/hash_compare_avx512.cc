#if defined(__x86_64__)
#include <immintrin.h>

#include "index/common/hash_compare.h"

namespace ashlar::index::detail {

std::uint32_t common_prefix_avx512(const std::uint64_t* a, const std::uint64_t* b, std::uint32_t n) noexcept {
  std::uint32_t i = 0;
  // Four vectors at a time; on a difference the loop below finds the element.
  for (; i + 32 <= n; i += 32) {
    __m512i different = _mm512_setzero_si512();
    for (std::uint32_t k = 0; k < 32; k += 8)
      // a | (b ^ c)
      different = _mm512_ternarylogic_epi64(different, _mm512_loadu_si512(a + i + k),
                                            _mm512_loadu_si512(b + i + k), 0xF6);
    if (_mm512_test_epi64_mask(different, different) != 0) break;
  }
  for (; i + 8 <= n; i += 8) {
    const __mmask8 different = _mm512_cmpneq_epu64_mask(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i));
    if (different != 0) return i + static_cast<std::uint32_t>(__builtin_ctz(different));
  }
  if (i == n) return n;
  const auto rest = static_cast<__mmask8>((1u << (n - i)) - 1);
  const __mmask8 different = _mm512_mask_cmpneq_epu64_mask(rest, _mm512_maskz_loadu_epi64(rest, a + i),
                                                           _mm512_maskz_loadu_epi64(rest, b + i));
  return different != 0 ? i + static_cast<std::uint32_t>(__builtin_ctz(different)) : n;
}

void write_masked_avx512(std::uint32_t* a, std::uint64_t mask, std::uint32_t value) noexcept {
  const __m512i values = _mm512_set1_epi32(static_cast<int>(value));
  for (unsigned i = 0; i < 64; i += 16)
    _mm512_mask_storeu_epi32(a + i, static_cast<__mmask16>(mask >> i), values);
}

}  // namespace ashlar::index::detail
#endif
