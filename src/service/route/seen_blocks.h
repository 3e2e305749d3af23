// SeenBlocks: the names of blocks that requests have asked for, in bounded memory.
//
// A table of sets of eight tags. A name belongs to one set; a set that is full forgets its oldest name. So of
// the last 500,000 names 99.9 % are known, of the last million 95 %. A name that never came is taken for a
// known one with a probability of 4 in 10^9.
//
// Thread safety: thread-compatible.
// Complexity:    O(1), one cache miss. Memory: 8 MiB from the first name on, as far as it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/large_array.h"

namespace ashlar::service {

class SeenBlocks {
 public:
  static constexpr std::size_t kSets = std::size_t{1} << 18;
  static constexpr std::size_t kTags = 8;

  // Before add() of a name: its cache miss passes meanwhile.
  void prefetch(std::uint64_t name) const noexcept {
    if (!sets_.empty()) __builtin_prefetch(&sets_[name % kSets], 1);
  }
  // Remembers a name, a well mixed hash. False: it is known.
  bool add(std::uint64_t name) {
    if (sets_.empty()) sets_ = LargeArray<Set>(kSets, LargeArray<Set>::kUntouched);
    Set& set = sets_[name % kSets];
    const std::uint32_t tag = static_cast<std::uint32_t>(name >> 32) | 1u;
    bool is_known = false;  // written for vectors
    for (const std::uint32_t known : set.tags) is_known |= known == tag;
    if (is_known) return false;
    std::memmove(set.tags + 1, set.tags, sizeof set.tags - sizeof set.tags[0]);
    set.tags[0] = tag;
    return true;
  }

 private:
  struct alignas(32) Set {
    std::uint32_t tags[kTags];  // the youngest first; 0: none
  };
  LargeArray<Set> sets_;
};

}  // namespace ashlar::service
