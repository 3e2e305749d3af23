// TagTable: maps a 32-bit tag (hash bits of a key) to a 32-bit value; the keys are stored elsewhere.
//
// Several values may share a tag: find() asks the caller whether a candidate matches. The table is a set of
// pages, each a small open-addressing table of 64-byte buckets (8 tags, 8 values), found through a directory
// by the low bits of the tag (extendible hashing). A full page splits in two; the directory doubles piece by
// piece. So a call moves a bounded number of entries.
//
// Bits of a tag: the low ones select the page, the upper 16 the bucket in it. An entry lies in its home
// bucket or, when that is full, in the next bucket (cyclic) with room, and stays there. A page counts per
// bucket how many of its entries passed it: a search ends at a bucket that none passed.
//
// Thread safety: thread-compatible.
// Complexity:    usually one bucket per operation, for any keys: tags are made with a secret
//                (table_seed.h). probe() hides the miss.
// Invariant:     value 0 marks a free cell, and the free cells of a bucket are its last; an empty table owns
//                no memory.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "base/large_array.h"
#include "base/slab_pool.h"
#include "base/table_seed.h"
#include "base/tag_page.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace ashlar {

class TagTable {
  using Bucket = TagBucket;
  using Page = TagPage;

 public:
  static constexpr std::uint32_t kNone = 0;

  // Without a kernel it takes the portable loops, as tests do.
  TagTable(SlabPool& pool, const TableSeed& seed, const TagKernel* kernel = kTagKernel) noexcept
      : seed_(seed),
        kernel_(kernel),
        full_pages_(pool, kFull * sizeof(Bucket), Shelf::fit(kFull * sizeof(Bucket))) {}
  TagTable(const TagTable&) = delete;
  TagTable& operator=(const TagTable&) = delete;
  ~TagTable() { reset(); }

  // Hash bits of a key. Keys are usually hashes, but may be counters, or chosen by an attacker.
  std::uint32_t tag_of(std::uint64_t key) const noexcept {
    return static_cast<std::uint32_t>(seed_.hash(key));
  }
  std::uint32_t tag_of(std::uint64_t key, std::uint32_t second) const noexcept {
    return static_cast<std::uint32_t>(seed_.hash(key, second));
  }

  // Makes room for that many entries, touched, and keeps it until reset(). Throws std::bad_alloc with nothing
  // changed. Requires: an empty table.
  void keep_room(std::size_t entries);

  // Counts the entries: for tests.
  std::size_t size() const noexcept;
  // Buckets examined by the longest search for an entry: for tests, walks everything.
  std::size_t longest_search() const noexcept;
  // Excludes memory counted by the pool.
  std::size_t bytes() const noexcept { return bytes_; }

  // Made some keys ahead, so that the memory has arrived when it is used; the table may change in between,
  // except by reset(), and a page fewer than 2^16 times.
  using Probe = TagProbe;
  // Prefetches the home buckets of keys [first, last) and writes their probes to probes[key % N]; key_of(i)
  // is the i-th key. N must be a power of two. always_inline: g++ treats a call of a function that only
  // prefetches as having no effect, and drops it.
  template <std::size_t N, class KeyOf>
  [[gnu::always_inline]] void probe(std::array<Probe, N>& probes, std::size_t first, std::size_t last,
                                    KeyOf&& key_of) const noexcept {
    look_for_pages(probes, first, last, key_of, prefetch_home);
  }
  // The same, the records of all pages before the first bucket: a third faster where nothing but more keys
  // follows, slower where other work does.
  template <std::size_t N, class KeyOf>
  [[gnu::always_inline]] void probe_records_first(std::array<Probe, N>& probes, std::size_t first,
                                                  std::size_t last, KeyOf&& key_of) const noexcept {
    look_for_pages(probes, first, last, key_of,
                   [](const Probe& probe) { __builtin_prefetch(probe.page, 1); });
    for (std::size_t i = first; i < last && entries_ != 0; ++i) prefetch_home(probes[i % N]);
  }

  // The same for the keys with the tags tag(0), tag(1), ..., whose probes are probes[0], probes[1], ...
  template <class Tag>
  [[gnu::always_inline]] void probe(std::span<Probe> probes, Tag&& tag) const noexcept {
    if (entries_ == 0) {
      for (std::size_t i = 0; i < probes.size(); ++i) probes[i] = probe_of(tag(i));
      return;
    }
    const Directory directory(*this);
    for (std::size_t i = 0; i < probes.size(); ++i) {
      Probe& probe = probes[i];
      probe.tag = tag(i);
      probe.page = directory.page_of(probe.tag);
      prefetch_home(probe);
    }
  }
  Probe probe(std::uint32_t tag) const noexcept { return probe_of(tag); }

  // The value with this tag for which same(value) holds, or kNone.
  template <class Same>
  std::uint32_t find(const Probe& probe, Same&& same) const {
    const Probe now = current(probe);
    return now.page == &no_page_ ? kNone : search(now, same);
  }
  template <class Same>
  std::uint32_t find(std::uint32_t tag, Same&& same) const {
    return find(probe_of(tag), same);
  }

  // Adds entries value, value + 1, … for as long as nobody else can have their tags and there is room in
  // their home buckets; a kernel goes on where these overflow. Returns how many it added: the next one is
  // for insert(). Requires: the values are not kNone.
  [[gnu::always_inline]] std::uint32_t insert_new(std::span<const Probe> probes,
                                                  std::uint32_t value) noexcept {
    if (kernel_ != nullptr) return kernel_->insert_new(probes.data(), probes.size(), value);
    std::uint32_t added = 0;
    for (const Probe& probe : probes) {
      Page& page = *probe.page;
      if (probe.layout != page.layout || page.room == 0 || is_passed(page, probe.home)) [[unlikely]]
        break;
      // The lowest mark is a lane with this tag, else the first free one; none: the bucket is full.
      Bucket& bucket = *probe.bucket;
      const unsigned lane = static_cast<unsigned>(std::countr_zero(
                                marks(bucket.tags, probe.tag, bucket.values, kNone) | 1u << 2 * kLanes)) -
                            kLanes;
      if (lane >= kLanes) [[unlikely]]
        break;
      bucket.tags[lane] = probe.tag;
      bucket.values[lane] = value + added;
      --page.room;
      ++added;
    }
    return added;
  }
  // Adds an entry unless same(value) holds for an existing one; returns that one's value, or kNone when it
  // added one. Throws std::bad_alloc with nothing changed. Requires: value != kNone.
  template <class Same>
  std::uint32_t insert(const Probe& probe, std::uint32_t value, Same&& same) {
    ASHLAR_DCHECK(value != kNone, "kNone marks free cells");
    Probe now = current(probe);
    if (now.page->room == 0) {
      make_room(now.tag);
      now = probe_of(now.tag);
    }
    if (const std::uint32_t found = search(now, same); found != kNone) return found;
    put_somewhere(*now.page, now.tag, value);
    return kNone;
  }
  template <class Same>
  std::uint32_t insert(std::uint32_t tag, std::uint32_t value, Same&& same) {
    return insert(probe_of(tag), value, same);
  }

  // Makes room for one more entry with this tag: its insert() needs no memory. Throws std::bad_alloc with
  // nothing changed.
  void reserve(std::uint32_t tag) { make_room(tag); }

  // Requires: an entry with this tag and value; no other entry has this value.
  void erase(const Probe& probe, std::uint32_t value) noexcept {
    if (erase_known(std::span(&probe, 1), value, 0) == 0) erase(probe.tag, value);
  }
  // Erases entries value, value + step, … for as long as they lie in their home buckets, with a kernel
  // wherever they lie. Returns how many it erased: the next one is for erase(). Requires: as there.
  [[gnu::always_inline]] std::uint32_t erase_known(std::span<const Probe> probes, std::uint32_t value,
                                                   std::uint32_t step) noexcept {
    std::uint32_t erased = 0;
    if (kernel_ != nullptr) {
      while (erased < probes.size()) {
        const std::uint32_t some =
            kernel_->erase_known(probes.data() + erased, probes.size() - erased, value + erased * step, step);
        erased += some;
        if (some == 0 || count_of(*probes[erased - 1].page) != 0) break;
        shrink(*probes[erased - 1].page);
      }
      return erased;
    }
    for (const Probe& probe : probes) {
      if (probe.layout != probe.page->layout) [[unlikely]]
        break;
      const int left = take_out(*probe.page, *probe.bucket, value);
      if (left < 0) [[unlikely]]
        break;
      if (left == 0 && count_of(*probe.page) == 0) [[unlikely]]
        shrink(*probe.page);
      value += step;
      ++erased;
    }
    return erased;
  }
  void erase(std::uint32_t tag, std::uint32_t value) noexcept;
  // Changes the value of the entry with this tag and value.
  void replace(std::uint32_t tag, std::uint32_t value, std::uint32_t with) noexcept;
  // Changes its tag. Throws std::bad_alloc with nothing changed. Undoing it needs no memory if only other
  // retag() calls and their undos came in between.
  void retag(std::uint32_t tag, std::uint32_t value, std::uint32_t with);

  // Frees everything. Requires: no probe is used afterwards.
  void reset() noexcept;
  // Drops everything, unless the last forget() is unfinished; free_some() returns the memory. A table with
  // kept room must be empty; then undo_splits() takes it back to that room. Requires: as above.
  void forget() noexcept;
  // Frees up to `most` forgotten pages or directory pieces; true when none is left.
  bool free_some(std::size_t most) noexcept;
  // Takes back up to `most` splits, the last first; true when no page is left but those of the kept room.
  // Does nothing without kept room. Requires: an empty table, and as above.
  bool undo_splits(std::size_t most) noexcept;

 private:
  static constexpr int kLanes = kTagLanes;
  static constexpr std::uint32_t kSegment = 1024;  // directory entries copied at once
  static constexpr std::uint32_t kMinBuckets = 2;
  // Pages grow by a factor of 4 up to kFull buckets, then split into two of that size. So the load of a large
  // table lies between 0.41 and 0.81. Pages of this size fill a slab.
  static constexpr std::uint32_t kFull = 63;
  static constexpr std::uint32_t kMaxDepth = 24;

  static bool is_passed(const Page& page, std::uint32_t bucket) noexcept {
    return (page.passed >> (bucket & 63) & 1) != 0;
  }
  static std::uint32_t passes_of(const Page& page, std::uint32_t bucket) noexcept {
    if (page.size > kMostCounted) return kMostPasses;
    return static_cast<std::uint32_t>(page.passes[bucket / 16] >> (bucket % 16 * 4)) & kMostPasses;
  }
  static void pass(Page& page, std::uint32_t bucket) noexcept {
    if (passes_of(page, bucket) == kMostPasses) return;
    page.passes[bucket / 16] += std::uint64_t{1} << (bucket % 16 * 4);
    page.passed |= std::uint64_t{1} << bucket;
  }
  static void unpass(Page& page, std::uint32_t bucket) noexcept {
    if (passes_of(page, bucket) == kMostPasses) return;
    page.passes[bucket / 16] -= std::uint64_t{1} << (bucket % 16 * 4);
    if (passes_of(page, bucket) == 0) page.passed &= ~(std::uint64_t{1} << bucket);
  }
  static std::uint32_t mask_of(const Page& page) noexcept { return (1u << page.depth) - 1; }
  static std::uint32_t count_of(const Page& page) noexcept { return most_entries(page.size) - page.room; }
  static constexpr std::uint32_t kPageChunk = 64;  // records allocated at once
  static Page no_page_;  // of an empty table: without room, and its probes are outdated
  static constexpr std::uint32_t kOutdated = ~0u;
  using Segment = std::unique_ptr<Page*[]>;

  static std::uint32_t next_of(std::uint32_t bucket, std::uint32_t size) noexcept {
    return bucket + 1 == size ? 0 : bucket + 1;
  }
  static std::uint32_t home_of(std::uint32_t tag, std::uint32_t buckets) noexcept {
    return ((tag >> 16) * buckets) >> 16;
  }
  using Cells = const std::uint32_t (&)[kLanes];
  // A bit per lane of `left` that equals `value`.
  static unsigned matches(Cells left, std::uint32_t value) noexcept {
    return marks(left, value, left, value) & 0xFFu;
  }
  // The same, and above these bits those of another array.
  static unsigned marks(Cells left, std::uint32_t value, Cells right, std::uint32_t other) noexcept {
#if defined(__SSE2__)
    const auto words = [](Cells cells, std::uint32_t wanted) {
      const __m128i all = _mm_set1_epi32(static_cast<int>(wanted));
      const __m128i low = _mm_cmpeq_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(cells)), all);
      const __m128i high = _mm_cmpeq_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(cells + 4)), all);
      return _mm_packs_epi32(low, high);
    };
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(words(left, value), words(right, other))));
#elif defined(__ARM_NEON)
    const auto words = [](Cells cells, std::uint32_t wanted) {
      const uint32x4_t all = vdupq_n_u32(wanted);
      return vmovn_u16(vcombine_u16(vmovn_u32(vceqq_u32(vld1q_u32(cells), all)),
                                    vmovn_u32(vceqq_u32(vld1q_u32(cells + 4), all))));
    };
    const uint8x8_t bits = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddv_u8(vand_u8(words(left, value), bits)) |
           static_cast<unsigned>(vaddv_u8(vand_u8(words(right, other), bits))) << kLanes;
#else
    unsigned hits = 0;
    for (int i = 0; i < kLanes; ++i)
      hits |= static_cast<unsigned>(left[i] == value) << i | static_cast<unsigned>(right[i] == other)
                                                                 << (kLanes + i);
    return hits;
#endif
  }

  static std::size_t used_of(const Bucket& bucket) noexcept {
    return static_cast<std::size_t>(std::countr_zero(matches(bucket.values, kNone) | 1u << kLanes));
  }
  // The directory, for a period in which no page splits. Requires: a first page.
  class Directory {
   public:
    explicit Directory(const TagTable& table) noexcept
        : segments_(table.segments_.data()), mask_(table.entries_ - 1) {}
    [[gnu::always_inline]] Page* page_of(std::uint32_t tag) const noexcept {
      std::uint32_t i = tag & mask_;
      // A piece not copied yet reads as the one it will be copied from.
      while (segments_[i / kSegment] == nullptr) [[unlikely]]
        i &= std::bit_floor(i) - 1;
      return segments_[i / kSegment][i % kSegment];
    }

   private:
    const Segment* segments_;
    std::uint32_t mask_;
  };
  // Null while the table is empty.
  Page* page_of(std::uint32_t tag) const noexcept {
    return entries_ == 0 ? nullptr : Directory(*this).page_of(tag);
  }
  Probe probe_of(std::uint32_t tag) const noexcept {
    Probe probe;
    probe.tag = tag;
    probe.page = page_of(tag);
    if (probe.page != nullptr) {
      find_home(probe);
    } else {
      probe.page = &no_page_;
      probe.layout = kOutdated;
    }
    return probe;
  }
  // Writes the probes but for their buckets, and calls then(probe) after each.
  template <std::size_t N, class KeyOf, class Then>
  [[gnu::always_inline]] void look_for_pages(std::array<Probe, N>& probes, std::size_t first,
                                             std::size_t last, KeyOf&& key_of, Then&& then) const noexcept {
    if (entries_ == 0) {
      for (std::size_t i = first; i < last; ++i) probes[i % N] = probe_of(tag_of(key_of(i)));
      return;
    }
    const Directory directory(*this);
    const TableSeed seed = seed_;  // a copy: for the compiler the loop's stores could alias the table's own
    for (std::size_t i = first; i < last; ++i) {
      Probe& probe = probes[i % N];
      probe.tag = static_cast<std::uint32_t>(seed.hash(key_of(i)));
      probe.page = directory.page_of(probe.tag);
      then(probe);
    }
  }
  // Requires: its tag and page.
  [[gnu::always_inline]] static void find_home(Probe& probe) noexcept {
    const Page* const page = probe.page;
    probe.home = home_of(probe.tag, page->size);
    probe.bucket = page->buckets + probe.home;
    probe.layout = page->layout;
  }
  [[gnu::always_inline]] static void prefetch_home(Probe& probe) noexcept {
    find_home(probe);
    const Page* const page = probe.page;
    __builtin_prefetch(probe.bucket, 1);
    if (is_passed(*page, probe.home)) [[unlikely]]
      __builtin_prefetch(page->buckets + next_of(probe.home, page->size), 1);
  }
  Probe current(const Probe& probe) const noexcept {
    return probe.layout == probe.page->layout ? probe : probe_of(probe.tag);
  }

  template <class Same>
  static std::uint32_t search(const Probe& probe, Same&& same) {
    const Page& page = *probe.page;
    std::uint32_t b = probe.home;
    do {
      const Bucket& bucket = page.buckets[b];
      for (unsigned hits = matches(bucket.tags, probe.tag); hits != 0; hits &= hits - 1) {
        const std::uint32_t value = bucket.values[std::countr_zero(hits)];
        if (value != kNone && same(value)) return value;
      }
      if (!is_passed(page, b)) return kNone;
      b = next_of(b, page.size);
    } while (b != probe.home);
    return kNone;
  }

  // Returns how many entries the bucket has left; -1: it has no such value.
  [[gnu::always_inline]] static int take_out(Page& page, Bucket& bucket, std::uint32_t value) noexcept {
    // The lowest mark is the value's lane; above them are those of the free ones.
    const unsigned hits = marks(bucket.values, value, bucket.values, kNone) | 1u << 2 * kLanes;
    const int lane = std::countr_zero(hits);
    if (lane >= kLanes) [[unlikely]]
      return -1;
    // The bucket's last entry fills the hole.
    const int last = std::countr_zero(hits >> kLanes) - 1;
    bucket.tags[lane] = bucket.tags[last];
    bucket.values[lane] = bucket.values[last];
    bucket.values[last] = kNone;
    ++page.room;
    return last;
  }
  static void take_out(Page& page, std::uint32_t tag, std::uint32_t value) noexcept;

  void add_first_page();
  static void put_somewhere(Page& page, std::uint32_t tag, std::uint32_t value) noexcept;
  Page* make_room(std::uint32_t tag);
  void split(Page& page);
  void share(Page& page, Page& high, unsigned shift) const noexcept;
  void resize(Page& page, std::uint32_t buckets);
  void shrink(Page& page) noexcept;
  Bucket* new_buckets(std::uint32_t buckets);
  void give(Page& page, Bucket* buckets, std::uint32_t size) noexcept;
  void free_buckets(Bucket* buckets, std::uint32_t size) noexcept;
  void drop() noexcept;
  // Its part of kept_, or null. A page that a split adds has a bit in its prefix that no first page has.
  Bucket* kept(const Page& page) noexcept {
    return page.prefix < kept_pages() ? &kept_[std::size_t{page.prefix} * kept_size_] : nullptr;
  }
  std::uint32_t kept_pages() const noexcept {
    return kept_size_ == 0 ? 0 : static_cast<std::uint32_t>(kept_.size() / kept_size_);
  }
  Page* add_record();
  Segment new_segment() const { return std::make_unique<Page*[]>(kSegment); }
  void point_at(std::uint32_t tag, std::uint32_t step, Page* page, Segment piece) noexcept;

  const TableSeed seed_;
  const TagKernel* const kernel_;
  LargeArray<Bucket> kept_;                     // the first buckets of the first pages, from keep_room() on,
  std::uint32_t kept_size_ = 0;                 // so many each
  std::uint32_t entries_ = 0;                   // of the directory, a power of two
  std::vector<Segment> segments_;               // the directory
  std::vector<std::unique_ptr<Page[]>> pages_;  // records, where the directory points
  std::uint32_t page_count_ = 0;
  // The pages that there were when the directory doubled to 2^i entries: where undo_splits() halves it.
  std::array<std::uint32_t, 25> doubled_at_{};
  // Forgotten memory, freed from its end.
  std::vector<Segment> old_segments_;
  std::vector<std::unique_ptr<Page[]>> old_pages_;
  std::uint32_t old_count_ = 0;
  std::size_t bytes_ = 0;  // outside the pool
  Shelf full_pages_;
};

}  // namespace ashlar
