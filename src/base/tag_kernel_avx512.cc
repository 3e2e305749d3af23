// Compiled with -mavx512f. A bucket is one register: tags in the lower half, values in the upper one.
#if defined(__x86_64__)
#include <immintrin.h>

#include "base/tag_page.h"

namespace ashlar {
namespace {

__m512i load(const TagBucket* bucket) {
  return _mm512_load_si512(bucket);
}

// What TagTable says of them.
bool is_passed(const TagPage& page, std::uint32_t bucket) {
  return (page.passed >> (bucket & 63) & 1) != 0;
}
unsigned passes_of(const TagPage& page, std::uint32_t bucket) {
  return static_cast<unsigned>(page.passes[bucket / 16] >> (bucket % 16 * 4)) & kMostPasses;
}
void pass(TagPage& page, std::uint32_t bucket) {
  if (page.size > kMostCounted || passes_of(page, bucket) == kMostPasses) return;
  page.passes[bucket / 16] += std::uint64_t{1} << (bucket % 16 * 4);
  page.passed |= std::uint64_t{1} << bucket;
}
void unpass(TagPage& page, std::uint32_t bucket) {
  if (page.size > kMostCounted || passes_of(page, bucket) == kMostPasses) return;
  page.passes[bucket / 16] -= std::uint64_t{1} << (bucket % 16 * 4);
  if (passes_of(page, bucket) == 0) page.passed &= ~(std::uint64_t{1} << bucket);
}
std::uint32_t next_of(const TagPage& page, std::uint32_t bucket) {
  return bucket + 1 == page.size ? 0 : bucket + 1;
}

// Bits of free lanes, above 8 zeros.
unsigned free_lanes(__m512i all) {
  return _mm512_testn_epi32_mask(all, all) & ~0xFFu;
}

// Whether some bucket behind a passed one may have the tag.
bool may_have(const TagPage& page, std::uint32_t bucket, std::uint32_t tag) {
  const std::uint32_t home = bucket;
  const __m512i wanted = _mm512_set1_epi32(static_cast<int>(tag));
  do {
    bucket = next_of(page, bucket);
    if (bucket == home || (_mm512_cmpeq_epi32_mask(load(page.buckets + bucket), wanted) & 0xFF) != 0)
      return true;
  } while (is_passed(page, bucket));
  return false;
}

std::uint32_t insert_new(const TagProbe* probes, std::size_t count, std::uint32_t value) {
  std::uint32_t added = 0;
  for (const TagProbe* probe = probes; probe != probes + count; ++probe) {
    TagPage& page = *probe->page;
    if (probe->layout != page.layout || page.room == 0) break;
    // The lowest mark is a lane with this tag, else the first free one; none: the bucket is full.
    const __m512i wanted = _mm512_maskz_set1_epi32(0xFF, static_cast<int>(probe->tag));
    const unsigned marks = _mm512_cmpeq_epi32_mask(load(probe->bucket), wanted) | 1u << 2 * kTagLanes;
    if ((marks & 0xFF) != 0) break;
    if (is_passed(page, probe->home) && may_have(page, probe->home, probe->tag)) break;
    TagBucket* bucket = probe->bucket;
    int lane = __builtin_ctz(marks) - kTagLanes;
    for (std::uint32_t at = probe->home; lane == kTagLanes;) {
      pass(page, at);
      at = next_of(page, at);
      bucket = page.buckets + at;
      lane = __builtin_ctz(free_lanes(load(bucket)) | 1u << 2 * kTagLanes) - kTagLanes;
    }
    bucket->tags[lane] = probe->tag;
    bucket->values[lane] = value + added;
    --page.room;
    ++added;
  }
  return added;
}

std::uint32_t erase_known(const TagProbe* probes, std::size_t count, std::uint32_t value,
                          std::uint32_t step) {
  std::uint32_t erased = 0;
  for (const TagProbe* probe = probes; probe != probes + count; ++probe) {
    TagPage& page = *probe->page;
    if (probe->layout != page.layout) break;
    TagBucket* bucket = probe->bucket;
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(value));
    __m512i all = load(bucket);
    unsigned hits = _mm512_cmpeq_epi32_mask(all, wanted) >> kTagLanes;
    for (std::uint32_t at = probe->home; hits == 0;) {
      unpass(page, at);
      at = next_of(page, at);
      bucket = page.buckets + at;
      all = load(bucket);
      hits = _mm512_cmpeq_epi32_mask(all, wanted) >> kTagLanes;
    }
    // The bucket's last entry fills the hole.
    const int lane = __builtin_ctz(hits);
    const int last = __builtin_ctz(free_lanes(all) | 1u << 2 * kTagLanes) - kTagLanes - 1;
    bucket->tags[lane] = bucket->tags[last];
    bucket->values[lane] = bucket->values[last];
    bucket->values[last] = 0;
    ++erased;
    value += step;
    if (++page.room == most_entries(page.size)) break;
  }
  return erased;
}

// The lanes of `which`, side by side, and zeros behind them; the same of the values above them.
__m512i packed(unsigned which, __m512i all) {
  const __m512i tags = _mm512_maskz_compress_epi32(static_cast<__mmask16>(which), all);
  const __m512i values = _mm512_maskz_compress_epi32(static_cast<__mmask16>(which << kTagLanes), all);
  return _mm512_inserti64x4(tags, _mm512_castsi512_si256(values), 1);
}

std::uint32_t split(TagBucket* low, TagBucket* high, std::uint32_t buckets, unsigned shift,
                    TagCell* displaced, std::uint32_t* counts) {
  const __m512i size = _mm512_set1_epi32(static_cast<int>(buckets));
  const __m512i bit = _mm512_set1_epi32(static_cast<int>(1u << shift));
  std::uint32_t strangers = 0;
  counts[0] = counts[1] = 0;
  for (std::uint32_t b = 0; b < buckets; ++b) {
    const __m512i all = load(low + b);
    const __m512i homes = _mm512_srli_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(all, 16), size), 16);
    const unsigned used = _mm512_test_epi32_mask(all, all) >> kTagLanes;
    const unsigned at_home = used & _mm512_cmpeq_epi32_mask(homes, _mm512_set1_epi32(static_cast<int>(b)));
    const unsigned goes = at_home & _mm512_test_epi32_mask(all, bit);
    const unsigned stays = at_home & ~goes;
    for (unsigned left = used & ~at_home; left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      displaced[strangers++] = {low[b].tags[lane], low[b].values[lane]};
    }
    _mm512_store_si512(high + b, packed(goes, all));
    _mm512_store_si512(low + b, packed(stays, all));
    counts[0] += static_cast<std::uint32_t>(__builtin_popcount(stays));
    counts[1] += static_cast<std::uint32_t>(__builtin_popcount(goes));
  }
  return strangers;
}

}  // namespace

const TagKernel kTagsAvx512 = {&insert_new, &erase_known, &split};

}  // namespace ashlar
#endif
