#include "index/name_table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

namespace ashlar::index {

// --- Pages. ---

// Buckets for a page whose prefix is set; not written.
void NameTable::allocate(Page& page, std::uint32_t buckets) {
  void* memory = nullptr;
  if (buckets == kFull) {
    memory = full_pages_.allocate();
  } else {
    memory = ::operator new(buckets * sizeof(Bucket), std::align_val_t{alignof(Bucket)});
    bytes_ += buckets * sizeof(Bucket);
  }
  page.buckets = static_cast<Bucket*>(memory);
  page.size = buckets;
  page.room = max_count(buckets);
  page.passes = {};
}

void NameTable::allocate_empty(Page& page, std::uint32_t buckets) {
  allocate(page, buckets);
  std::memset(page.buckets, 0, buckets * sizeof(Bucket));
}

void NameTable::free_buckets(Page& page) noexcept {
  if (page.size == kFull) {
    full_pages_.free(page.buckets);
  } else {
    bytes_ -= page.size * sizeof(Bucket);
    ::operator delete(page.buckets, std::align_val_t{alignof(Bucket)});
  }
}

NameTable::Page* NameTable::add_record() {
  if (page_count_ == pages_.size() * kPageChunk) {
    pages_.push_back(std::make_unique<Page[]>(kPageChunk));
    bytes_ += kPageChunk * sizeof(Page);
  }
  Page* const page = &pages_[page_count_ / kPageChunk][page_count_ % kPageChunk];
  ++page_count_;
  return page;
}

void NameTable::add_first_page() {
  segments_.push_back(std::make_unique<Page*[]>(kSegment));
  bytes_ += kSegment * sizeof(Page*);
  entries_ = 1;
  segments_[0][0] = add_record();
  allocate_empty(*segments_[0][0], kMinBuckets);
}

void NameTable::reset() noexcept {
  free_some(SIZE_MAX);
  forget();
  free_some(SIZE_MAX);
}

void NameTable::forget() noexcept {
  if (!old_pages_.empty() || !old_segments_.empty()) return;
  old_pages_.swap(pages_);
  old_segments_.swap(segments_);
  old_count_ = std::exchange(page_count_, 0);
  entries_ = 0;
}

bool NameTable::free_some(std::size_t most) noexcept {
  if (old_pages_.empty() && old_segments_.empty()) [[likely]]
    return true;
  for (; old_count_ != 0; --most) {
    if (most == 0) return false;
    --old_count_;
    free_buckets(old_pages_[old_count_ / kPageChunk][old_count_ % kPageChunk]);
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

std::size_t NameTable::size() const noexcept {
  std::size_t size = 0;
  for (std::uint32_t p = 0; p < page_count_; ++p) size += pages_[p / kPageChunk][p % kPageChunk].count();
  return size;
}

std::size_t NameTable::longest_search() const noexcept {
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
NameTable::Page* NameTable::make_room(std::uint32_t tag) {
  if (entries_ == 0) add_first_page();
  for (;;) {
    Page* const page = page_of(tag);
    if (page->room != 0) return page;
    if (page->size == kFull && page->mask < kMaxMask)
      split(*page);
    else
      resize(*page, page->size < kFull ? std::min(4 * page->size, kFull) : 2 * page->size);
  }
}

void NameTable::resize(Page& page, std::uint32_t buckets) {
  Page old = page;
  allocate_empty(page, buckets);
  for (std::uint32_t b = 0; b < old.size; ++b) {
    const Bucket& from = old.buckets[b];
    const std::size_t used = used_of(from);
    for (std::size_t i = 0; i < used; ++i) put_somewhere(page, from.tags[i], from.values[i]);
  }
  free_buckets(old);
}

// The page is empty.
void NameTable::shrink(Page& page) {
  if (page.size == kMinBuckets) return;
  free_buckets(page);
  allocate_empty(page, kMinBuckets);
}

// Half of the entries go to a page of their own. Entries keep their buckets, or come closer to them.
void NameTable::split(Page& page) {
  const std::uint32_t bit = page.mask + 1;
  if (bit == entries_) {
    // The directory doubles; its upper half comes piece by piece.
    if (entries_ < kSegment) std::copy_n(segments_[0].get(), entries_, segments_[0].get() + entries_);
    entries_ *= 2;
    segments_.resize((entries_ + kSegment - 1) / kSegment);
  }
  Page* const high = add_record();
  allocate(*high, kFull);
  page.mask |= bit;
  high->mask = page.mask;
  high->prefix = page.prefix | bit;

  // Where each cell goes: a bucket of the low page, or of the high one behind it. A loop of its own, for vectors.
  constexpr std::uint32_t kCells = kFull * kLanes;
  std::array<std::uint32_t, kCells> place;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled at once
  const int shift = std::countr_zero(bit);
  for (std::uint32_t b = 0; b < kFull; ++b)
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t tag = page.buckets[b].tags[lane];
      place[b * kLanes + lane] = home_of(tag, kFull) + (tag >> shift & 1) * kFull;
    }
  // Both pages are filled here and written at once. The used lanes of a bucket are a count: looking for a free one in the
  // bucket would load what was just stored there, piece by piece, which stalls.
  std::array<Bucket, std::size_t{2} * kFull> filled{};
  std::array<std::uint32_t, std::size_t{2} * kFull> used{};
  page.passes = {};
  const std::uint32_t* next_place = place.data();
  for (const Bucket* from = page.buckets; from != page.buckets + kFull; ++from)
    for (int lane = 0; lane < kLanes; ++lane) {
      std::uint32_t b = *next_place++;
      const std::uint32_t value = from->values[lane];
      if (used[b] == kLanes) [[unlikely]] {
        if (value == kNone) continue;
        const std::uint32_t side = b < kFull ? 0 : kFull;
        do {
          (side == 0 ? page : *high).pass(b - side);
          b = side + next_of(b - side, kFull);
        } while (used[b] == kLanes);
      }
      // A free cell is copied to a free one, which stays free: cheaper than to find out.
      const std::uint32_t at = used[b];
      filled[b].tags[at] = from->tags[lane];
      filled[b].values[at] = value;
      used[b] = at + (value != kNone ? 1 : 0);
    }
  std::memcpy(page.buckets, filled.data(), kFull * sizeof(Bucket));
  std::memcpy(high->buckets, filled.data() + kFull, kFull * sizeof(Bucket));
  page.room = max_count(kFull) - std::accumulate(used.begin(), used.begin() + kFull, 0u);
  high->room = max_count(kFull) - std::accumulate(used.begin() + kFull, used.end(), 0u);
  point_at(high->prefix, bit << 1, high);
}

// Every directory entry with these low bits, below `step`, now names the page.
void NameTable::point_at(std::uint32_t first, std::uint32_t step, Page* page) {
  for (std::uint64_t i = first; i < entries_; i += step) {
    Segment& segment = segments_[i / kSegment];
    if (segment == nullptr) {
      // Only entries that differ from what they are copied from make a piece necessary.
      if (i != first) continue;
      std::uint64_t from = i;
      do from &= std::bit_floor(from) - 1;
      while (segments_[from / kSegment] == nullptr);
      segment = std::make_unique<Page*[]>(kSegment);
      bytes_ += kSegment * sizeof(Page*);
      std::copy_n(segments_[from / kSegment].get(), kSegment, segment.get());
    }
    segment[i % kSegment] = page;
  }
}

// --- Entries. ---

// In the home bucket, or the first one behind it with room. Requires: room in the page.
void NameTable::put_somewhere(Page& page, std::uint32_t tag, std::uint32_t value) noexcept {
  std::uint32_t b = home_of(tag, page.size);
  for (; page.buckets[b].values[kLanes - 1] != kNone; b = next_of(b, page.size)) page.pass(b);
  Bucket& bucket = page.buckets[b];
  const std::size_t lane = used_of(bucket);
  bucket.tags[lane] = tag;
  bucket.values[lane] = value;
  --page.room;
}

void NameTable::replace(std::uint32_t tag, std::uint32_t value, std::uint32_t with) noexcept {
  const Page& page = *page_of(tag);
  std::uint32_t b = home_of(tag, page.size);
  while (matches(page.buckets[b].values, value) == 0) b = next_of(b, page.size);
  Bucket& bucket = page.buckets[b];
  bucket.values[std::countr_zero(matches(bucket.values, value))] = with;
}

}  // namespace ashlar::index
