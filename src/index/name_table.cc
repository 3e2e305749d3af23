#include "index/name_table.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace ashlar::index {

NameTable::Page NameTable::new_page(std::uint32_t buckets, std::uint32_t depth) {
  const std::size_t bytes = buckets * sizeof(Bucket);
  void* memory = nullptr;
  if (buckets == kFull) {
    memory = full_pages_.allocate();
  } else {
    memory = ::operator new(bytes, std::align_val_t{alignof(Bucket)});
    bytes_ += bytes;
  }
  std::memset(memory, 0, bytes);
  ++version_;
  return {static_cast<Bucket*>(memory), buckets, 0, depth};
}

void NameTable::free_page(Page& page) noexcept {
  if (page.size == kFull) {
    full_pages_.free(page.buckets);
  } else {
    bytes_ -= page.size * sizeof(Bucket);
    ::operator delete(page.buckets, std::align_val_t{alignof(Bucket)});
  }
  page = {};
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
  *segments_[0][0] = new_page(kMinBuckets, 0);
}

void NameTable::reset() noexcept {
  for (std::uint32_t p = 0; p < page_count_; ++p) free_page(pages_[p / kPageChunk][p % kPageChunk]);
  std::vector<Segment>().swap(segments_);
  std::vector<std::unique_ptr<Page[]>>().swap(pages_);
  page_count_ = 0;
  entries_ = 0;
  size_ = 0;
  bytes_ = 0;
  ++version_;
}

// Fills a fresh page. Its buckets fill lane by lane, so the next free lane is a count: looking for it in the bucket
// would load what was just stored there, piece by piece, which stalls.
class NameTable::Filler {
 public:
  explicit Filler(Page& page)
      : page_(page), used_(page.size <= kOnStack ? stack_ : new std::uint8_t[page.size]) {
    std::memset(used_, 0, page.size);
  }
  ~Filler() {
    if (used_ != stack_) delete[] used_;
  }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

  void add(std::uint32_t tag, std::uint32_t value) noexcept {
    std::uint32_t b = home_of(tag, page_.size);
    while (used_[b] == kLanes) b = next(b, page_.size);
    const std::size_t lane = used_[b]++;
    page_.buckets[b].tags[lane] = tag;
    page_.buckets[b].values[lane] = value;
    ++page_.count;
  }

 private:
  static constexpr std::uint32_t kOnStack = 256;
  Page& page_;
  std::uint8_t stack_[kOnStack];
  std::uint8_t* used_;
};

template <class F>
void NameTable::for_each(const Page& page, F&& fn) {
  constexpr std::uint32_t kAhead = 12;
  for (std::uint32_t b = 0; b < std::min<std::uint32_t>(kAhead, page.size); ++b)
    __builtin_prefetch(&page.buckets[b]);
  for (std::uint32_t b = 0; b < page.size; ++b) {
    if (b + kAhead < page.size) __builtin_prefetch(&page.buckets[b + kAhead]);
    const Bucket& bucket = page.buckets[b];
    const std::size_t used = used_of(bucket);
    for (std::size_t lane = 0; lane < used; ++lane) fn(bucket.tags[lane], bucket.values[lane]);
  }
}

// The place for a new entry, in a page that has room.
NameTable::Probe NameTable::make_room(std::uint32_t tag) {
  if (entries_ == 0) add_first_page();
  for (;;) {
    Page& page = page_of(tag);
    if (page.count < max_count(page.size)) return start(tag);
    if (page.size == kFull && page.depth < kMaxDepth)
      split(tag);
    else
      resize(page, page.size < kFull && 2u * page.size >= kFull ? kFull : 2u * page.size);
  }
}

void NameTable::resize(Page& page, std::uint32_t buckets) {
  Page fresh = new_page(buckets, page.depth);
  {
    Filler filler(fresh);
    for_each(page, [&](std::uint32_t tag, std::uint32_t value) { filler.add(tag, value); });
  }
  free_page(page);
  page = fresh;
}

void NameTable::split(std::uint32_t tag) {
  Page& page = page_of(tag);
  const unsigned depth = page.depth;
  const std::uint32_t bit = 1u << depth;
  if (bit == entries_) {
    // The directory doubles; its upper half comes piece by piece.
    if (entries_ < kSegment) std::copy_n(segments_[0].get(), entries_, segments_[0].get() + entries_);
    entries_ *= 2;
    segments_.resize((entries_ + kSegment - 1) / kSegment);
  }
  Page low = new_page(kFull, depth + 1);
  Page high = new_page(kFull, depth + 1);
  {
    Filler low_filler(low);
    Filler high_filler(high);
    for_each(page, [&](std::uint32_t t, std::uint32_t value) {
      ((t & bit) != 0 ? high_filler : low_filler).add(t, value);
    });
  }
  free_page(page);
  page = low;
  Page* const added = add_record();
  *added = high;
  point_at(tag & ~bit, depth + 1, &page);
  point_at(tag | bit, depth + 1, added);
}

// Every directory entry whose low `depth` bits are those of the tag now names the page.
void NameTable::point_at(std::uint32_t tag, unsigned depth, Page* page) {
  const std::uint32_t first = tag & ((1u << depth) - 1);
  for (std::uint64_t i = first; i < entries_; i += std::uint64_t{1} << depth) {
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

void NameTable::erase(std::uint32_t tag, const Cell& cell) {
  Page& page = page_of(tag);
  std::uint32_t hole = cell.bucket;
  std::size_t hole_lane = cell.lane;
  for (;;) {
    Bucket& bucket = page.buckets[hole];
    const std::size_t used = used_of(bucket);
    // The bucket's last entry fills the hole.
    bucket.tags[hole_lane] = bucket.tags[used - 1];
    bucket.values[hole_lane] = bucket.values[used - 1];
    bucket.values[used - 1] = kNone;
    if (used < kLanes) break;
    // The bucket was full: an entry that had to pass it comes back, and its cell is the next hole.
    const Cell displaced = first_displaced(page, hole);
    if (!displaced) break;
    bucket.tags[kLanes - 1] = page.buckets[displaced.bucket].tags[displaced.lane];
    bucket.values[kLanes - 1] = displaced.value;
    hole = displaced.bucket;
    hole_lane = displaced.lane;
  }
  --page.count;
  if (--size_ == 0) return reset();
  if (page.size > kMinBuckets && page.count * 5u < max_count(page.size))
    resize(page, std::max<std::uint32_t>(kMinBuckets, page.size / 2));
}

// The first entry behind `bucket` whose home is that bucket or one before it.
NameTable::Cell NameTable::first_displaced(const Page& page, std::uint32_t bucket) noexcept {
  for (std::uint32_t b = next(bucket, page.size); b != bucket; b = next(b, page.size)) {
    const Bucket& later = page.buckets[b];
    const std::size_t used = used_of(later);
    for (std::size_t lane = 0; lane < used; ++lane) {
      const std::uint32_t home = home_of(later.tags[lane], page.size);
      const std::uint32_t from_home = b >= home ? b - home : b + page.size - home;
      const std::uint32_t from_bucket = b >= bucket ? b - bucket : b + page.size - bucket;
      if (from_home >= from_bucket) return {b, static_cast<std::uint32_t>(lane), later.values[lane]};
    }
    if (used < kLanes) break;
  }
  return {};
}

}  // namespace ashlar::index
