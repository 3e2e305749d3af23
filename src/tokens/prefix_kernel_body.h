// The chain of prefix digests (prefix_digest.h): part of a kernel's body, under the kernel's compiler flags.
//
// The content of a block is cut into chunks of up to 1,024 bytes, and these into stripes of 64 bytes, the
// last filled up with zeros. A chunk becomes two sums over 64-bit lanes, modulo 2^64:
//
//   t[s] = stripe s + key s, as 32-bit words modulo 2^32; after the last stripe t[n] = key n
//   a    = sum over stripes and lanes of  low(t[s]) * high(t[s])
//   b    = sum over stripes and lanes of  low(t[s]) * high(t[s + 1])
//
// Both are NH (Black et al., "UMAC: fast and secure message authentication"). For two chunks that differ,
// chosen without the keys, a and b take given differences with a chance of at most 2^-32 each, and together
// of at most 2^-64. Look at the last stripe of a lane that differs. If its low words are equal, its low key
// word is in the difference of a and not in that of b. If they differ, the high key word of the next stripe
// is in the difference of b and not in that of a.
//
// Each sum, with the chunk's mark, then is one step of a polynomial modulo 2^61 - 1 with a secret factor
// below 2^58, which carries the digest from chunk to chunk and from block to block:
// digest = digest * factor + sum + mark. Values are kept below 2^63 and not reduced fully; equal inputs give
// equal bits. The chance that two different prefixes of n chunks agree in both halves is below 2^-57 for n up
// to 2^24.
#pragma once

#include "tokens/xxh3_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace ashlar::tokens {
namespace {

inline constexpr std::uint64_t kPrefixModulus = (std::uint64_t{1} << 61) - 1;
inline constexpr std::size_t kPrefixShort = 2 * kPrefixStripe;  // bytes of a short chunk
inline constexpr std::uint64_t kPrefixKnown = std::uint64_t{1} << 63;

struct PrefixSums {
  std::uint64_t a;
  std::uint64_t b;
};

// PrefixLanes: a kernel's operations on a register of 64-bit lanes. PrefixShortLanes serve chunks of few
// stripes, where summing the lanes of a register dominates.
#if defined(__x86_64__)

// Congruent modulo 2^61 - 1, and at most 2^61 + 6.
inline PrefixSums prefix_fold(__m128i sums) {
  const __m128i low = _mm_and_si128(sums, _mm_set1_epi64x(static_cast<long long>(kPrefixModulus)));
  const __m128i folded = _mm_add_epi64(low, _mm_srli_epi64(sums, 61));
  return {static_cast<std::uint64_t>(_mm_cvtsi128_si64(folded)),
          static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(folded, folded)))};
}

struct PrefixLanes2 {
  using Lanes = __m128i;

  static Lanes load(const unsigned char* bytes) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  }
  static Lanes zero() { return _mm_setzero_si128(); }
  static Lanes add_words(Lanes x, Lanes y) { return _mm_add_epi32(x, y); }
  static Lanes add(Lanes x, Lanes y) { return _mm_add_epi64(x, y); }
  static Lanes high(Lanes x) { return _mm_srli_epi64(x, 32); }
  static Lanes multiply(Lanes x, Lanes y) { return _mm_mul_epu32(x, y); }
  static PrefixSums sums(Lanes a, Lanes b) {
    return prefix_fold(_mm_add_epi64(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)));
  }
};

#if defined(__AVX2__)
struct PrefixLanes4 {
  using Lanes = __m256i;

  static Lanes load(const unsigned char* bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  static Lanes zero() { return _mm256_setzero_si256(); }
  static Lanes add_words(Lanes x, Lanes y) { return _mm256_add_epi32(x, y); }
  static Lanes add(Lanes x, Lanes y) { return _mm256_add_epi64(x, y); }
  static Lanes high(Lanes x) { return _mm256_srli_epi64(x, 32); }
  static Lanes multiply(Lanes x, Lanes y) { return _mm256_mul_epu32(x, y); }
  static PrefixSums sums(Lanes a, Lanes b) {
    const __m256i four = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return prefix_fold(_mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)));
  }
};
#endif

#if defined(__AVX512F__)
struct PrefixLanes8 {
  using Lanes = __m512i;

  static Lanes load(const unsigned char* bytes) { return _mm512_loadu_si512(bytes); }
  static Lanes zero() { return _mm512_setzero_si512(); }
  static Lanes add_words(Lanes x, Lanes y) { return _mm512_add_epi32(x, y); }
  static Lanes add(Lanes x, Lanes y) { return _mm512_add_epi64(x, y); }
  static Lanes high(Lanes x) { return _mm512_srli_epi64(x, 32); }
  static Lanes multiply(Lanes x, Lanes y) { return _mm512_mul_epu32(x, y); }
  static PrefixSums sums(Lanes a, Lanes b) {
    const __m512i eight = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i four = _mm256_add_epi64(_mm512_castsi512_si256(eight), _mm512_extracti64x4_epi64(eight, 1));
    return prefix_fold(_mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)));
  }
};
using PrefixLanes = PrefixLanes8;
using PrefixShortLanes = PrefixLanes4;
#elif defined(__AVX2__)
using PrefixLanes = PrefixLanes4;
using PrefixShortLanes = PrefixLanes4;
#else
using PrefixLanes = PrefixLanes2;
using PrefixShortLanes = PrefixLanes2;
#endif

#else

inline std::uint64_t prefix_fold(std::uint64_t sum) {
  return (sum & kPrefixModulus) + (sum >> 61);
}

#if defined(__ARM_NEON)
struct PrefixLanes {
  using Lanes = uint64x2_t;

  static Lanes load(const unsigned char* bytes) { return vreinterpretq_u64_u8(vld1q_u8(bytes)); }
  static Lanes zero() { return vdupq_n_u64(0); }
  static Lanes add_words(Lanes x, Lanes y) {
    return vreinterpretq_u64_u32(vaddq_u32(vreinterpretq_u32_u64(x), vreinterpretq_u32_u64(y)));
  }
  static Lanes add(Lanes x, Lanes y) { return vaddq_u64(x, y); }
  static Lanes high(Lanes x) { return vshrq_n_u64(x, 32); }
  static Lanes multiply(Lanes x, Lanes y) { return vmull_u32(vmovn_u64(x), vmovn_u64(y)); }
  static PrefixSums sums(Lanes a, Lanes b) {
    return {prefix_fold(vgetq_lane_u64(a, 0) + vgetq_lane_u64(a, 1)),
            prefix_fold(vgetq_lane_u64(b, 0) + vgetq_lane_u64(b, 1))};
  }
};
#else
struct PrefixLanes {
  using Lanes = std::uint64_t;

  static Lanes load(const unsigned char* bytes) {
    Lanes lanes;
    __builtin_memcpy(&lanes, bytes, sizeof(lanes));
    return lanes;
  }
  static Lanes zero() { return 0; }
  static Lanes add_words(Lanes x, Lanes y) {
    return ((x >> 32) + (y >> 32)) << 32 | static_cast<std::uint32_t>(x + y);
  }
  static Lanes add(Lanes x, Lanes y) { return x + y; }
  static Lanes high(Lanes x) { return x >> 32; }
  static Lanes multiply(Lanes x, Lanes y) {
    return std::uint64_t{static_cast<std::uint32_t>(x)} * static_cast<std::uint32_t>(y);
  }
  static PrefixSums sums(Lanes a, Lanes b) { return {prefix_fold(a), prefix_fold(b)}; }
};
#endif
using PrefixShortLanes = PrefixLanes;

#endif

// A chunk of up to kPrefixChunk bytes; an empty one has one stripe of zeros.
template <class Register>
inline PrefixSums prefix_chunk(const unsigned char* bytes, std::size_t size, const unsigned char* keys) {
  using Lanes = typename Register::Lanes;
  constexpr std::size_t kLanes = sizeof(Lanes);
  constexpr std::size_t kParts = kPrefixStripe / kLanes;
  const auto load_keyed = [&](const unsigned char* from, std::size_t key) __attribute__((always_inline)) {
    return Register::add_words(Register::load(from), Register::load(keys + key));
  };
  const std::size_t whole = size / kPrefixStripe * kPrefixStripe;
  unsigned char tail[kPrefixStripe] = {};
  const bool partial = whole != size || size == 0;
  if (whole != size) __builtin_memcpy(tail, bytes + whole, size - whole);

  Lanes before[kParts];
  Lanes a = Register::zero();
  Lanes b = Register::zero();
  const unsigned char* const first = whole != 0 ? bytes : tail;
  for (std::size_t part = 0; part < kParts; ++part) {
    before[part] = load_keyed(first + part * kLanes, part * kLanes);
    a = Register::add(a, Register::multiply(before[part], Register::high(before[part])));
  }
  const auto stripe = [&](const unsigned char* from, std::size_t at) __attribute__((always_inline)) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const Lanes keyed = load_keyed(from + part * kLanes, at + part * kLanes);
      const Lanes high = Register::high(keyed);
      a = Register::add(a, Register::multiply(keyed, high));
      b = Register::add(b, Register::multiply(before[part], high));
      before[part] = keyed;
    }
  };
#pragma GCC unroll 3
  for (std::size_t at = kPrefixStripe; at < whole; at += kPrefixStripe) stripe(bytes + at, at);
  if (whole != size && whole != 0) stripe(tail, whole);
  const std::size_t end = whole + (partial ? kPrefixStripe : 0);
  for (std::size_t part = 0; part < kParts; ++part) {
    const Lanes key = Register::high(Register::load(keys + end + part * kLanes));
    b = Register::add(b, Register::multiply(before[part], key));
  }
  return Register::sums(a, b);
}

// x * factor modulo 2^61 - 1, where `factor` has the factor times 8. Below x / 8 + 2^61.
inline std::uint64_t prefix_times(std::uint64_t x, std::uint64_t factor) {
  __extension__ using Product = unsigned __int128;
  const Product product = Product{x} * factor;
  return static_cast<std::uint64_t>(product >> 64) + (static_cast<std::uint64_t>(product) >> 3);
}

// The digest so far, advanced chunk by chunk. As two words: {a with the highest bit set, b}.
struct PrefixChain {
  std::uint64_t a;
  std::uint64_t b;

  explicit PrefixChain(const std::uint64_t* words) : a(words[0] & ~kPrefixKnown), b(words[1]) {}

  // `kind` separates different kinds of content (kPrefixText, kPrefixFrames).
  void absorb(const unsigned char* bytes, std::size_t size, std::uint64_t kind, const PrefixSecret& secret) {
    std::size_t at = 0;
    do {
      const std::size_t chunk = size - at < kPrefixChunk ? size - at : kPrefixChunk;
      // NOLINTBEGIN(misc-redundant-expression): alike where a kernel has one kind of lanes
      const PrefixSums sums = chunk <= kPrefixShort
                                  ? prefix_chunk<PrefixShortLanes>(bytes + at, chunk, secret.keys)
                                  : prefix_chunk<PrefixLanes>(bytes + at, chunk, secret.keys);
      // NOLINTEND(misc-redundant-expression)
      a = prefix_times(a, secret.factors[0]) + sums.a + (kind | chunk);
      b = prefix_times(b, secret.factors[1]) + sums.b;
      at += chunk;
    } while (at < size);
  }
  void store(unsigned char* out) const {
    const std::uint64_t known = a | kPrefixKnown;
    __builtin_memcpy(out, &known, sizeof(known));
    __builtin_memcpy(out + sizeof(known), &b, sizeof(b));
  }
};

void prefix_absorb(const void* bytes, std::size_t size, std::uint64_t kind, const PrefixSecret& secret,
                   std::uint64_t* words) {
  PrefixChain chain(words);
  chain.absorb(static_cast<const unsigned char*>(bytes), size, kind, secret);
  chain.store(reinterpret_cast<unsigned char*>(words));
}

}  // namespace
}  // namespace ashlar::tokens
