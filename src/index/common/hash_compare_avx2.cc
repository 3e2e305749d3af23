#if defined(__x86_64__)
#include <immintrin.h>

#include "index/common/hash_compare.h"

namespace ashlar::index::detail {

std::uint32_t common_prefix_avx2(const std::uint64_t* a, const std::uint64_t* b, std::uint32_t n) noexcept {
  std::uint32_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
    const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
    const int same = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(left, right)));
    if (same != 0xF) return i + static_cast<std::uint32_t>(__builtin_ctz(~static_cast<unsigned>(same)));
  }
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

void write_masked_avx2(std::uint32_t* a, std::uint64_t mask, std::uint32_t value) noexcept {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i values = _mm256_set1_epi32(static_cast<int>(value));
  for (unsigned i = 0; i < 64; i += 8) {
    const __m256i wanted = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask >> i & 0xFF)), bits);
    _mm256_maskstore_epi32(reinterpret_cast<int*>(a + i), _mm256_cmpeq_epi32(wanted, bits), values);
  }
}

}  // namespace ashlar::index::detail
#endif
