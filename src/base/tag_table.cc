#include "base/tag_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

namespace ashlar {

// --- Pages. ---

namespace {

const TagKernel* fastest() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return &kTagsAvx512;
#endif
  return nullptr;
}

}  // namespace

const TagKernel* const kTagKernel = fastest();

TagTable::Page TagTable::no_page_;

// Uninitialized.
TagTable::Bucket* TagTable::new_buckets(std::uint32_t buckets) {
  if (buckets == kFull) return static_cast<Bucket*>(full_pages_.allocate());
  void* const memory = ::operator new(buckets * sizeof(Bucket), std::align_val_t{alignof(Bucket)});
  bytes_ += buckets * sizeof(Bucket);
  return static_cast<Bucket*>(memory);
}

// Sets the buckets of an empty page whose prefix is set.
void TagTable::give(Page& page, Bucket* buckets, std::uint32_t size) noexcept {
  page.buckets = buckets;
  page.size = size;
  page.room = most_entries(size);
  std::ranges::fill(page.passes, 0);
  page.passed = size > kMostCounted ? ~std::uint64_t{0} : 0;
  ++page.layout;
}

void TagTable::free_buckets(Bucket* buckets, std::uint32_t size) noexcept {
  if (!kept_.empty() && buckets >= &kept_[0] && buckets <= &kept_[kept_.size() - 1]) return;
  if (size == kFull) {
    full_pages_.free(buckets);
  } else {
    bytes_ -= size * sizeof(Bucket);
    ::operator delete(buckets, std::align_val_t{alignof(Bucket)});
  }
}

// The last allocating step of growth: the page's other memory is already there.
TagTable::Page* TagTable::add_record() {
  if (page_count_ == pages_.size() * kPageChunk) {
    pages_.push_back(std::make_unique<Page[]>(kPageChunk));
    bytes_ += kPageChunk * sizeof(Page);
  }
  Page* const page = &pages_[page_count_ / kPageChunk][page_count_ % kPageChunk];
  ++page_count_;
  return page;
}

void TagTable::add_first_page() {
  segments_.reserve(1);
  Segment segment = new_segment();
  Bucket* const buckets = new_buckets(kMinBuckets);
  Page* first = nullptr;
  try {
    first = add_record();
  } catch (const std::bad_alloc&) {
    free_buckets(buckets, kMinBuckets);
    throw;
  }
  std::memset(buckets, 0, kMinBuckets * sizeof(Bucket));
  give(*first, buckets, kMinBuckets);
  segment[0] = first;
  segments_.push_back(std::move(segment));
  bytes_ += kSegment * sizeof(Page*);
  entries_ = 1;
}

// Pages are so many that the entries of one seldom outgrow its buckets: four standard deviations above the
// mean fit.
void TagTable::keep_room(std::size_t entries) {
  ASHLAR_DCHECK(entries_ == 0, "room is kept before the first entry");
  if (entries == 0) return;
  constexpr std::size_t kMeanEntries = 330;
  const std::size_t pages = std::min<std::size_t>(std::bit_ceil((entries + kMeanEntries - 1) / kMeanEntries),
                                                  std::size_t{1} << kMaxDepth);
  const double mean = static_cast<double>(entries) / static_cast<double>(pages);
  const double wanted = (mean + 4 * std::sqrt(mean)) * 16 / (13 * kLanes);
  const std::uint32_t size = std::clamp(static_cast<std::uint32_t>(wanted) + 1, kMinBuckets, kFull);
  try {
    kept_ = LargeArray<Bucket>(pages * size);
    segments_.resize((pages + kSegment - 1) / kSegment);
    for (Segment& segment : segments_) segment = new_segment();
    while (page_count_ < pages) add_record();
  } catch (const std::bad_alloc&) {
    kept_ = {};
    segments_.clear();
    pages_.clear();
    page_count_ = 0;
    bytes_ = 0;
    throw;
  }
  bytes_ += segments_.size() * kSegment * sizeof(Page*) + kept_.size() * sizeof(Bucket);
  entries_ = static_cast<std::uint32_t>(pages);
  kept_size_ = size;
  for (std::uint32_t p = 0; p < entries_; ++p) {
    Page& page = pages_[p / kPageChunk][p % kPageChunk];
    page.prefix = p;
    page.depth = static_cast<std::uint8_t>(std::countr_zero(entries_));
    give(page, kept(page), size);
    segments_[p / kSegment][p % kSegment] = &page;
  }
}

void TagTable::reset() noexcept {
  free_some(SIZE_MAX);
  drop();
  free_some(SIZE_MAX);
  bytes_ -= kept_.size() * sizeof(Bucket);
  kept_ = {};
}

void TagTable::forget() noexcept {
  ASHLAR_DCHECK(kept_.empty() || size() == 0, "%zu entries in a table that is to be empty", size());
  if (kept_.empty()) drop();
}

void TagTable::drop() noexcept {
  if (!old_pages_.empty() || !old_segments_.empty()) return;
  old_pages_.swap(pages_);
  old_segments_.swap(segments_);
  old_count_ = std::exchange(page_count_, 0);
  entries_ = 0;
}

bool TagTable::undo_splits(std::size_t most) noexcept {
  if (kept_.empty()) return true;
  for (; page_count_ > kept_pages(); --most) {
    if (most == 0) return false;
    --page_count_;
    Page& high = pages_[page_count_ / kPageChunk][page_count_ % kPageChunk];
    const std::uint32_t bit = mask_of(high) ^ (mask_of(high) >> 1);
    Page* const low = page_of(high.prefix ^ bit);
    ASHLAR_DCHECK(low->depth == high.depth && count_of(high) == 0, "a split is undone out of its order");
    for (std::uint64_t i = high.prefix; i < entries_; i += std::uint64_t{mask_of(high)} + 1)
      if (const Segment& segment = segments_[i / kSegment]) segment[i % kSegment] = low;
    --low->depth;
    ++low->layout;
    free_buckets(high.buckets, high.size);
    high = {};
    if (page_count_ % kPageChunk == 0) {
      pages_.pop_back();
      bytes_ -= kPageChunk * sizeof(Page);
    }
    if (doubled_at_[static_cast<std::size_t>(std::countr_zero(entries_))] != page_count_) continue;
    entries_ /= 2;
    for (const std::size_t pieces = (entries_ + kSegment - 1) / kSegment; segments_.size() > pieces;) {
      if (segments_.back() != nullptr) bytes_ -= kSegment * sizeof(Page*);
      segments_.pop_back();
    }
  }
  return true;
}

bool TagTable::free_some(std::size_t most) noexcept {
  if (old_pages_.empty() && old_segments_.empty()) [[likely]]
    return true;
  for (; old_count_ != 0; --most) {
    if (most == 0) return false;
    --old_count_;
    const Page& page = old_pages_[old_count_ / kPageChunk][old_count_ % kPageChunk];
    free_buckets(page.buckets, page.size);
    if (old_count_ % kPageChunk != 0) continue;
    old_pages_.pop_back();
    bytes_ -= kPageChunk * sizeof(Page);
  }
  for (; !old_segments_.empty(); --most) {
    if (most == 0) return false;
    if (old_segments_.back() != nullptr) bytes_ -= kSegment * sizeof(Page*);
    old_segments_.pop_back();
  }
  std::vector<Segment>().swap(old_segments_);
  std::vector<std::unique_ptr<Page[]>>().swap(old_pages_);
  return true;
}

std::size_t TagTable::size() const noexcept {
  std::size_t size = 0;
  for (std::uint32_t p = 0; p < page_count_; ++p) size += count_of(pages_[p / kPageChunk][p % kPageChunk]);
  return size;
}

std::size_t TagTable::longest_search() const noexcept {
  std::size_t longest = 0;
  for (std::uint32_t p = 0; p < page_count_; ++p) {
    const Page& page = pages_[p / kPageChunk][p % kPageChunk];
    for (std::uint32_t b = 0; b < page.size; ++b)
      for (std::size_t i = 0; i < used_of(page.buckets[b]); ++i) {
        const std::uint32_t home = home_of(page.buckets[b].tags[i], page.size);
        longest = std::max<std::size_t>(longest, (b + page.size - home) % page.size + 1);
      }
  }
  return longest;
}

// --- Growth. ---

// The page for a new entry, with room for it.
TagTable::Page* TagTable::make_room(std::uint32_t tag) {
  if (entries_ == 0) add_first_page();
  for (;;) {
    Page* const page = page_of(tag);
    if (page->room != 0) return page;
    if (page->size == kFull && page->depth < kMaxDepth)
      split(*page);
    else
      resize(*page, page->size < kFull ? std::min(4 * page->size, kFull) : 2 * page->size);
  }
}

void TagTable::resize(Page& page, std::uint32_t buckets) {
  Bucket* const fresh = new_buckets(buckets);
  std::memset(fresh, 0, buckets * sizeof(Bucket));
  Bucket* const old = page.buckets;
  const std::uint32_t old_size = page.size;
  give(page, fresh, buckets);
  for (std::uint32_t b = 0; b < old_size; ++b) {
    const std::size_t used = used_of(old[b]);
    for (std::size_t i = 0; i < used; ++i) put_somewhere(page, old[b].tags[i], old[b].values[i]);
  }
  free_buckets(old, old_size);
}

// Requires: the page is empty. It keeps its size without memory for a smaller one.
void TagTable::shrink(Page& page) noexcept {
  Bucket* const first = kept(page);
  if (page.size == kMinBuckets || page.buckets == first) return;
  if (first != nullptr) {
    free_buckets(page.buckets, page.size);
    std::memset(first, 0, kept_size_ * sizeof(Bucket));
    give(page, first, kept_size_);
    return;
  }
  Bucket* small = nullptr;
  try {
    small = new_buckets(kMinBuckets);
  } catch (const std::bad_alloc&) {
    return;
  }
  free_buckets(page.buckets, page.size);
  std::memset(small, 0, kMinBuckets * sizeof(Bucket));
  give(page, small, kMinBuckets);
}

// Moves half of the entries to a new page. Entries keep their buckets, or move closer to them.
void TagTable::split(Page& page) {
  const std::uint32_t bit = mask_of(page) + 1;
  const std::uint32_t entries = bit == entries_ ? 2 * entries_ : entries_;
  const std::uint32_t pieces = (entries + kSegment - 1) / kSegment;
  // Allocate everything first.
  if (pieces > segments_.capacity()) segments_.reserve(pieces);
  const std::uint32_t place_of_high = (page.prefix | bit) / kSegment;
  Segment piece;
  if (place_of_high >= segments_.size() || segments_[place_of_high] == nullptr) piece = new_segment();
  Bucket* const buckets = new_buckets(kFull);
  Page* high = nullptr;
  try {
    high = add_record();
  } catch (const std::bad_alloc&) {
    free_buckets(buckets, kFull);
    throw;
  }
  if (bit == entries_) {
    // The directory doubles; its upper half is copied piece by piece.
    if (entries_ < kSegment) std::copy_n(segments_[0].get(), entries_, segments_[0].get() + entries_);
    entries_ = entries;
    segments_.resize(pieces);
    doubled_at_[static_cast<std::size_t>(std::countr_zero(entries_))] = page_count_ - 1;
  }
  give(*high, buckets, kFull);
  ++page.depth;
  ++page.layout;
  high->depth = page.depth;
  high->prefix = page.prefix | bit;

  share(page, *high, static_cast<unsigned>(std::countr_zero(bit)));
  point_at(high->prefix, bit << 1, high, std::move(piece));
}

// Moves the entries with bit `shift` from one full page to another. Entries keep their buckets, or move
// closer to their homes.
void TagTable::share(Page& page, Page& high, unsigned shift) const noexcept {
  if (kernel_ != nullptr) {
    std::array<TagCell, std::size_t{kFull} * kLanes>
        displaced;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    std::array<std::uint32_t, 2> counts{};
    const std::uint32_t strangers =
        kernel_->split(page.buckets, high.buckets, kFull, shift, displaced.data(), counts.data());
    std::ranges::fill(page.passes, 0);
    page.passed = 0;
    page.room = most_entries(kFull) - counts[0];
    high.room = most_entries(kFull) - counts[1];
    for (const TagCell& cell : std::span(displaced).first(strangers))
      put_somewhere((cell.tag >> shift & 1) != 0 ? high : page, cell.tag, cell.value);
    return;
  }
  // Target of each cell: a bucket of the low page, or of the high one behind it. A separate loop, for
  // vectorization.
  constexpr std::uint32_t kCells = kFull * kLanes;
  std::array<std::uint32_t, kCells> place;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled at once
  for (std::uint32_t b = 0; b < kFull; ++b)
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t tag = page.buckets[b].tags[lane];
      place[b * kLanes + lane] = home_of(tag, kFull) + (tag >> shift & 1) * kFull;
    }
  // Both pages are built here and written at once. The used lanes of a bucket are a count: searching the
  // bucket for a free lane would load what was just stored piecewise, and stall.
  std::array<Bucket, std::size_t{2} * kFull> filled{};
  std::array<std::uint32_t, std::size_t{2} * kFull> used{};
  std::ranges::fill(page.passes, 0);
  page.passed = 0;
  const std::uint32_t* next_place = place.data();
  for (const Bucket* from = page.buckets; from != page.buckets + kFull; ++from)
    for (int lane = 0; lane < kLanes; ++lane) {
      std::uint32_t b = *next_place++;
      const std::uint32_t value = from->values[lane];
      if (used[b] == kLanes) [[unlikely]] {
        if (value == kNone) continue;
        const std::uint32_t side = b < kFull ? 0 : kFull;
        do {
          pass(side == 0 ? page : high, b - side);
          b = side + next_of(b - side, kFull);
        } while (used[b] == kLanes);
      }
      // A free cell is copied to a free one, which stays free: cheaper than a branch.
      const std::uint32_t at = used[b];
      filled[b].tags[at] = from->tags[lane];
      filled[b].values[at] = value;
      used[b] = at + (value != kNone ? 1 : 0);
    }
  std::memcpy(page.buckets, filled.data(), kFull * sizeof(Bucket));
  std::memcpy(high.buckets, filled.data() + kFull, kFull * sizeof(Bucket));
  page.room = most_entries(kFull) - std::accumulate(used.begin(), used.begin() + kFull, 0u);
  high.room = most_entries(kFull) - std::accumulate(used.begin() + kFull, used.end(), 0u);
}

// Points every directory entry with these low bits, below `step`, at the page. `piece` is for the first of
// them, where the directory has no piece yet.
void TagTable::point_at(std::uint32_t first, std::uint32_t step, Page* page, Segment piece) noexcept {
  for (std::uint64_t i = first; i < entries_; i += step) {
    Segment& segment = segments_[i / kSegment];
    if (segment == nullptr) {
      // A piece is needed only for entries that differ from those they are copied from.
      if (i != first) continue;
      std::uint64_t from = i;
      do from &= std::bit_floor(from) - 1;
      while (segments_[from / kSegment] == nullptr);
      segment = std::move(piece);
      bytes_ += kSegment * sizeof(Page*);
      std::copy_n(segments_[from / kSegment].get(), kSegment, segment.get());
    }
    segment[i % kSegment] = page;
  }
}

// --- Entries. ---

// Into the home bucket, or the next one with room. Requires: room in the page.
void TagTable::put_somewhere(Page& page, std::uint32_t tag, std::uint32_t value) noexcept {
  std::uint32_t b = home_of(tag, page.size);
  for (; page.buckets[b].values[kLanes - 1] != kNone; b = next_of(b, page.size)) pass(page, b);
  Bucket& bucket = page.buckets[b];
  const std::size_t lane = used_of(bucket);
  bucket.tags[lane] = tag;
  bucket.values[lane] = value;
  --page.room;
}

void TagTable::take_out(Page& page, std::uint32_t tag, std::uint32_t value) noexcept {
  std::uint32_t b = home_of(tag, page.size);
  for (; take_out(page, page.buckets[b], value) < 0; b = next_of(b, page.size)) unpass(page, b);
}

void TagTable::erase(std::uint32_t tag, std::uint32_t value) noexcept {
  Page& page = *page_of(tag);
  take_out(page, tag, value);
  if (count_of(page) == 0) shrink(page);
}

void TagTable::replace(std::uint32_t tag, std::uint32_t value, std::uint32_t with) noexcept {
  const Page& page = *page_of(tag);
  std::uint32_t b = home_of(tag, page.size);
  while (matches(page.buckets[b].values, value) == 0) b = next_of(b, page.size);
  Bucket& bucket = page.buckets[b];
  bucket.values[std::countr_zero(matches(bucket.values, value))] = with;
}

// No page shrinks here, so an entry that left one can return.
void TagTable::retag(std::uint32_t tag, std::uint32_t value, std::uint32_t with) {
  Page* const to = make_room(with);
  take_out(*page_of(tag), tag, value);
  put_somewhere(*to, with, value);
}

}  // namespace ashlar
