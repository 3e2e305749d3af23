// NameTable: from a 32-bit tag (hash bits of a key) to a 32-bit value; the keys lie elsewhere.
//
// Several values may share a tag: find() asks the caller whether a candidate is the one. The table is a set of pages, each
// a small open-addressing table of 64-byte buckets (8 tags, 8 values), found through a directory by the low bits of the
// tag (extendible hashing). A page that is full splits in two; the directory doubles piece by piece. So no call moves
// more than a bounded number of entries.
//
// Bits of a tag: the low ones choose the page, the upper 16 the bucket in it. An entry lies in its home bucket or, when
// that is full, in the first bucket behind it (cyclic) with room; erase() pulls displaced entries back, so a bucket
// with room ends every search.
//
// Thread safety: thread-compatible.
// Complexity:    one bucket per operation in the usual case; probe() hides its miss.
// Invariant:     value 0 marks a free cell, and the free cells of a bucket are its last; an empty table owns no memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "index/slab_pool.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace ashlar::index {

class NameTable {
  struct Page;

 public:
  static constexpr std::uint32_t kNone = 0;

  explicit NameTable(detail::SlabPool& pool) noexcept
      : full_pages_(pool, kFull * sizeof(Bucket), detail::Shelf::fit(kFull * sizeof(Bucket))) {}
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;
  ~NameTable() { reset(); }

  // Hash bits of a key. Keys are usually hashes already, but may be counters.
  static std::uint32_t tag_of(std::uint64_t key) noexcept {
    return static_cast<std::uint32_t>(key * 0x9E3779B97F4A7C15u >> 32);
  }
  static std::uint32_t tag_of(std::uint64_t key, std::uint64_t second) noexcept {
    return tag_of(key ^ (std::rotl(second * 0xD6E8FEB86659FD93u, 32)));
  }

  std::size_t size() const noexcept { return size_; }
  // Without what the pool counts.
  std::size_t bytes() const noexcept { return bytes_; }

  // A cell of the table; valid until the next insert() or erase().
  struct Cell {
    std::uint32_t bucket = 0;
    std::uint32_t lane = 0;
    std::uint32_t value = kNone;  // kNone: not found

    explicit operator bool() const noexcept { return value != kNone; }
  };

  // A key on its way: where its search starts. Made some keys ahead, so that the memory has arrived when it is used; the
  // table may change in between.
  struct Probe {
    std::uint32_t tag = 0;
    std::uint32_t home = 0;
    std::uint32_t version = 0;
    Page* page = nullptr;
  };
  // Starts the fetch of the home bucket. always_inline: g++ takes a call of a function that only prefetches for one
  // without effect, and drops it.
  [[gnu::always_inline]] Probe probe(std::uint32_t tag) const noexcept {
    Probe probe = start(tag);
    if (probe.page != nullptr) __builtin_prefetch(&probe.page->buckets[probe.home], 1);
    return probe;
  }
  // A second look, some keys later: where the bucket is full, the next one will be needed too.
  [[gnu::always_inline]] void probe_more(const Probe& probe) const noexcept {
    if (probe.version != version_ || probe.page == nullptr) return;
    const Page& page = *probe.page;
    if (page.buckets[probe.home].values[kLanes - 1] != kNone)
      __builtin_prefetch(&page.buckets[next(probe.home, page.size)], 1);
  }

  // The entry with this tag for which same(value) holds.
  template <class Same>
  Cell find(Probe probe, Same&& same) const {
    if (probe.version != version_) [[unlikely]]
      probe = start(probe.tag);
    if (probe.page == nullptr) return {};
    const Page& page = *probe.page;
    for (std::uint32_t b = probe.home;; b = next(b, page.size)) {
      const Bucket& bucket = page.buckets[b];
      for (unsigned hits = matches(bucket.tags, probe.tag); hits != 0; hits &= hits - 1) {
        const auto lane = static_cast<std::uint32_t>(std::countr_zero(hits));
        const std::uint32_t value = bucket.values[lane];
        if (value != kNone && same(value)) return {b, lane, value};
      }
      if (bucket.values[kLanes - 1] == kNone) return {};
    }
  }
  template <class Same>
  Cell find(std::uint32_t tag, Same&& same) const {
    return find(start(tag), same);
  }

  // Adds an entry unless there is one for which same(value) holds; returns the value of that one, kNone when it was
  // added. Requires: value != kNone.
  template <class Same>
  std::uint32_t insert(Probe probe, std::uint32_t value, Same&& same) {
    ASHLAR_DCHECK(value != kNone, "kNone marks free cells");
    if (probe.version != version_ || probe.page == nullptr ||
        probe.page->count >= max_count(probe.page->size)) [[unlikely]]
      probe = make_room(probe.tag);
    Page& page = *probe.page;
    for (std::uint32_t b = probe.home;; b = next(b, page.size)) {
      Bucket& bucket = page.buckets[b];
      for (unsigned hits = matches(bucket.tags, probe.tag); hits != 0; hits &= hits - 1) {
        const std::uint32_t found = bucket.values[std::countr_zero(hits)];
        if (found != kNone && same(found)) return found;
      }
      const std::size_t lane = used_of(bucket);
      if (lane == kLanes) continue;
      bucket.tags[lane] = probe.tag;
      bucket.values[lane] = value;
      ++page.count;
      ++size_;
      return kNone;
    }
  }
  template <class Same>
  std::uint32_t insert(std::uint32_t tag, std::uint32_t value, Same&& same) {
    return insert(start(tag), value, same);
  }

  // Requires: the cell of an entry with this tag.
  void erase(std::uint32_t tag, const Cell& cell);
  // The same key has another value now.
  void replace(std::uint32_t tag, const Cell& cell, std::uint32_t value) noexcept {
    page_of(tag).buckets[cell.bucket].values[cell.lane] = value;
  }

  // Frees everything.
  void reset() noexcept;

 private:
  static constexpr std::size_t kLanes = 8;
  static constexpr std::uint32_t kSegment = 1024;  // directory entries that are copied at once
  static constexpr std::uint32_t kMinBuckets = 2;
  // Pages grow by doubling up to kFull buckets, then they split into two of that size. So the load of a large table lies
  // between 0.41 and 0.81. Pages of this size fill a slab.
  static constexpr std::uint32_t kFull = 63;
  static constexpr unsigned kMaxDepth = 24;

  struct alignas(64) Bucket {
    std::uint32_t tags[kLanes];
    std::uint32_t values[kLanes];
  };
  // Records of pages lie close together: every insert looks at one.
  struct Page {
    Bucket* buckets = nullptr;
    std::uint32_t size = 0;   // buckets
    std::uint32_t count = 0;  // entries
    std::uint32_t depth = 0;  // low bits of the tag that all entries share
  };
  static constexpr std::uint32_t kPageChunk = 256;  // records that are allocated at once
  using Segment = std::unique_ptr<Page*[]>;

  static std::uint32_t max_count(std::uint32_t buckets) noexcept {
    return buckets * static_cast<std::uint32_t>(kLanes) * 13 / 16;
  }
  static std::uint32_t next(std::uint32_t bucket, std::uint32_t size) noexcept {
    return bucket + 1 == size ? 0 : bucket + 1;
  }
  static std::uint32_t home_of(std::uint32_t tag, std::uint32_t buckets) noexcept {
    return ((tag >> 16) * buckets) >> 16;
  }
  static unsigned matches(const std::uint32_t (&cells)[kLanes], std::uint32_t value) noexcept {
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32(static_cast<int>(value));
    const __m128i low = _mm_cmpeq_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(cells)), wanted);
    const __m128i high = _mm_cmpeq_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(cells + 4)), wanted);
    const __m128i words = _mm_packs_epi32(low, high);
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(words, words))) & 0xFFu;
#elif defined(__ARM_NEON)
    const uint32x4_t wanted = vdupq_n_u32(value);
    const uint16x4_t low = vmovn_u32(vceqq_u32(vld1q_u32(cells), wanted));
    const uint16x4_t high = vmovn_u32(vceqq_u32(vld1q_u32(cells + 4), wanted));
    const uint8x8_t bits = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddv_u8(vand_u8(vmovn_u16(vcombine_u16(low, high)), bits));
#else
    unsigned hits = 0;
    for (std::size_t i = 0; i < kLanes; ++i) hits |= static_cast<unsigned>(cells[i] == value) << i;
    return hits;
#endif
  }

  static std::size_t used_of(const Bucket& bucket) noexcept {
    return static_cast<std::size_t>(std::countr_zero(matches(bucket.values, kNone) | 1u << kLanes));
  }
  // Requires: a first page.
  const Page& page_of(std::uint32_t tag) const noexcept {
    std::uint32_t i = tag & (entries_ - 1);
    // A piece of the directory that is not there yet looks as the one that it will be copied from.
    while (segments_[i / kSegment] == nullptr) [[unlikely]]
      i &= std::bit_floor(i) - 1;
    return *segments_[i / kSegment][i % kSegment];
  }
  Page& page_of(std::uint32_t tag) noexcept { return const_cast<Page&>(std::as_const(*this).page_of(tag)); }
  Probe start(std::uint32_t tag) const noexcept {
    if (entries_ == 0) return {tag, 0, version_, nullptr};
    const Page& page = page_of(tag);
    return {tag, home_of(tag, page.size), version_, const_cast<Page*>(&page)};
  }

  class Filler;
  template <class F>
  static void for_each(const Page& page, F&& fn);  // fn(tag, value)
  static Cell first_displaced(const Page& page, std::uint32_t bucket) noexcept;
  void add_first_page();
  Probe make_room(std::uint32_t tag);
  void split(std::uint32_t tag);
  void resize(Page& page, std::uint32_t buckets);
  Page new_page(std::uint32_t buckets, std::uint32_t depth);
  void free_page(Page& page) noexcept;
  Page* add_record();
  void point_at(std::uint32_t tag, unsigned depth, Page* page);

  std::uint32_t entries_ = 0;                   // of the directory, a power of two
  std::vector<Segment> segments_;               // the directory
  std::vector<std::unique_ptr<Page[]>> pages_;  // records, where the directory points
  std::uint32_t page_count_ = 0;
  std::size_t size_ = 0;
  std::size_t bytes_ = 0;      // outside the pool
  std::uint32_t version_ = 0;  // of the places of pages
  detail::Shelf full_pages_;
};

}  // namespace ashlar::index
