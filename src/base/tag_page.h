// TagBucket, TagPage, TagProbe: the memory of a TagTable (tag_table.h). TagKernel: its inner loops by wider
// vector instructions.
//
// Files compiled for a wider instruction set include nothing else, so that none of their inline functions can
// end up in portable code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar {

inline constexpr int kTagLanes = 8;

inline constexpr std::uint32_t kMostCounted = 64;  // buckets of a page that counts who passed them,
inline constexpr unsigned kMostPasses = 15;        // up to this

// Free cells have the value 0, and are the last.
struct alignas(64) TagBucket {
  std::uint32_t tags[kTagLanes];
  std::uint32_t values[kTagLanes];
};

// Records of pages are packed: every insert reads one.
struct alignas(64) TagPage {
  TagBucket* buckets = nullptr;
  std::uint32_t prefix = 0;  // low bits that all tags share,
  std::uint32_t size = 0;    // buckets
  std::uint32_t room = 0;    // entries that still fit
  std::uint16_t layout = 0;  // changes when a key of the page gets another bucket, or page
  std::uint8_t depth = 0;    // bits of the prefix
  std::uint64_t passed = 0;  // a bit per bucket: some entry passed it
  // 4 bits per bucket: how many did; 15 means 15 or more. In a page of more than 64 buckets all count as
  // passed.
  std::uint64_t passes[4] = {};
};

// A prefetched key.
struct TagProbe {
  TagPage* page = nullptr;
  std::uint32_t home = 0;  // bucket of the page
  std::uint32_t tag = 0;
  TagBucket* bucket = nullptr;  // the same
  std::uint32_t layout = 0;     // of the page: page and bucket are right while it has this number
};

struct TagCell {
  std::uint32_t tag;
  std::uint32_t value;
};

struct TagKernel {
  // As TagTable::insert_new(); a full home bucket, or one that was passed, does not stop it.
  std::uint32_t (*insert_new)(const TagProbe* probes, std::size_t count, std::uint32_t value);
  // As TagTable::erase_known(), wherever the entries lie; stops behind one with which a page becomes empty.
  std::uint32_t (*erase_known)(const TagProbe* probes, std::size_t count, std::uint32_t value,
                               std::uint32_t step);
  // Of the entries in their home buckets, those whose tag has bit `shift` go to `high`, into the bucket of
  // the same number; counts[0] stay and counts[1] go. The others are written to `displaced`. Writes every
  // bucket of `high`. Returns how many are displaced.
  std::uint32_t (*split)(TagBucket* low, TagBucket* high, std::uint32_t buckets, unsigned shift,
                         TagCell* displaced, std::uint32_t* counts);
};

// Entries that buckets hold before their page grows.
constexpr std::uint32_t most_entries(std::uint32_t buckets) noexcept {
  return buckets * std::uint32_t{kTagLanes} * 13 / 16;
}

#if defined(__x86_64__)
extern const TagKernel kTagsAvx512;  // needs AVX-512F
#endif

// Of this machine, chosen at process start; null: the portable loops.
extern const TagKernel* const kTagKernel;

}  // namespace ashlar
