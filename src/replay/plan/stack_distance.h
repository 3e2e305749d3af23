// StackDistances: for each access of an LRU cache, how large it would have to be to hit.
//
// The distance of an access is the number of different blocks since the last access of the same one, itself
// included: a cache of that many blocks hits, a smaller one does not (Mattson et al., 1970). One pass gives
// the hits of every size.
//
// Thread safety: thread-compatible.
// Complexity:    O(log n) per access, n: accesses between two compactions (at most twice the distinct
//                blocks); 12 bytes per entry.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace ashlar::replay {

class StackDistances {
 public:
  static constexpr std::uint64_t kCold = UINT64_MAX;  // the first access of a block

  // Of an access now, from 1; kCold for a block that was never accessed.
  std::uint64_t distance_of(std::uint64_t block) const;
  void access(std::uint64_t block);
  std::uint64_t distinct() const noexcept { return last_.size(); }

 private:
  // Numbers the accesses that still count from 0 again, and makes room.
  void compact();
  void add(std::size_t place, std::int32_t change);
  std::uint64_t sum_up_to(std::size_t place) const;  // of [0, place)

  std::unordered_map<std::uint64_t, std::uint32_t> last_;  // block -> its last access
  std::vector<std::uint64_t> block_at_;                    // of each access
  std::vector<std::int32_t> tree_;  // Fenwick: 1 for an access that is the last one of its block
  std::size_t next_ = 0;
};

}  // namespace ashlar::replay
