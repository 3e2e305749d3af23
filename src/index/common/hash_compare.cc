#include "index/common/hash_compare.h"

#include <bit>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace ashlar::index::detail {

std::uint32_t common_prefix_portable(const std::uint64_t* a, const std::uint64_t* b,
                                     std::uint32_t n) noexcept {
  std::uint32_t i = 0;
  for (; i + 8 <= n; i += 8) {
#if defined(__ARM_NEON)
    uint64x2_t different = veorq_u64(vld1q_u64(a + i), vld1q_u64(b + i));
    for (std::uint32_t k = 2; k < 8; k += 2)
      different = vorrq_u64(different, veorq_u64(vld1q_u64(a + i + k), vld1q_u64(b + i + k)));
    if ((vgetq_lane_u64(different, 0) | vgetq_lane_u64(different, 1)) != 0) break;
#else
    std::uint64_t different = 0;
    for (std::uint32_t k = 0; k < 8; ++k) different |= a[i + k] ^ b[i + k];
    if (different != 0) break;
#endif
  }
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

void write_masked_portable(std::uint32_t* a, std::uint64_t mask, std::uint32_t value) noexcept {
  for (; mask != 0; mask &= mask - 1) a[std::countr_zero(mask)] = value;
}

WriteMasked write_masked_kernel() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return write_masked_avx512;
  if (__builtin_cpu_supports("avx2")) return write_masked_avx2;
#endif
  return write_masked_portable;
}

CommonPrefix common_prefix_kernel() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return common_prefix_avx512;
  if (__builtin_cpu_supports("avx2")) return common_prefix_avx2;
#endif
  return common_prefix_portable;
}

}  // namespace ashlar::index::detail
