// S3FifoBackend: two queues in the order of registration, and the memory of names that left the first.
//
//   small   new blocks; aims at a tenth of the pool. Its oldest goes, unless it was used again
//           kUsesToStay times: then it moves to the end of main.
//   main    the others. Its oldest goes, unless it was used again: each use (up to kMaxUses) buys one more
//           turn at the end.
//   ghosts  names of the last blocks that went from small, as many as the pool has. One of them that is
//           registered again enters main at once.
//
// The next victim comes from small while small is longer than it should be, or main has nothing inactive.
// Blocks in use keep their place and count for the length of their queue. A use is a release after the first
// one, or a touch.
//
// Memory: kBytesPerBlock per block of the pool; asks for no facts.
//
// Thread safety: confined.
// Complexity:    O(log n) amortised: a pop moves no block more often than it was used. peek() at k blocks
//                O(k log k) beside the blocks that would move, and it allocates.
// Invariant:     every registered block counts for one of the queues; the heaps hold those that are inactive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

// Which of the last names are remembered, approximately: eight places per bucket, the oldest is overwritten.
// A name may be forgotten early (in a thousand a few), and another taken for it (once in 2^29). A forgotten
// name is a hole in a prefix, which costs the hits behind it: so there are four places for each.
class GhostNames {
 public:
  static constexpr std::size_t kBytesPerName = 32;

  explicit GhostNames(std::uint32_t names);
  void put(const tokens::SequenceHash& hash) noexcept;
  // Whether it is one of the last; it is forgotten then.
  bool take(const tokens::SequenceHash& hash) noexcept;

 private:
  static constexpr std::size_t kPlaces = 8;
  static constexpr std::size_t kPlacesPerName = 4;
  struct Ghost {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;  // 0: empty
  };
  static_assert(sizeof(Ghost) * kPlacesPerName == kBytesPerName);
  std::span<Ghost> bucket_of(std::uint64_t mix) noexcept;

  std::uint32_t names_;
  std::uint32_t last_ = 0;  // the number of the youngest
  std::vector<Ghost> ghosts_;
};

class S3FifoBackend {
 public:
  static constexpr std::size_t kBytesPerBlock = 2 * IndexedHeap<std::uint64_t>::kBytesPerBlock +
                                                sizeof(tokens::SequenceHash) + 2 * sizeof(std::uint64_t) +
                                                GhostNames::kBytesPerName;

  explicit S3FifoBackend(const EvictionContext& context);

  void registered(BlockId id, const tokens::SequenceHash& hash);
  void unregistered(BlockId id) { forget(id); }
  void insert(BlockId id, const tokens::SequenceHash& hash);
  void remove(BlockId id) { heap_of(id).remove(id); }
  void touch(BlockId id) { use(id); }
  std::optional<BlockId> pop();
  std::size_t peek(std::span<BlockId> out) const;
  std::size_t size() const { return small_.size() + main_.size(); }

 private:
  static constexpr std::uint8_t kUsesToStay = 1;
  static constexpr std::uint8_t kMaxUses = 3;
  static constexpr std::uint32_t kSmallShare = 10;  // one of so many blocks
  enum class Queue : std::uint8_t { kNone, kSmall, kMain };
  struct Entry {
    std::uint64_t turn = 0;  // the place in its queue
    Queue queue = Queue::kNone;
    std::uint8_t uses = 0;
    bool released = false;  // once, at least
  };

  IndexedHeap<std::uint64_t>& heap_of(BlockId id) {
    return entries_[id.value()].queue == Queue::kSmall ? small_ : main_;
  }
  void use(BlockId id) {
    Entry& entry = entries_[id.value()];
    if (entry.uses < kMaxUses) ++entry.uses;
  }
  // To the end of a queue.
  void enter(BlockId id, Queue queue);
  void forget(BlockId id);
  // Fills `out` by looking at the first `look` blocks of each queue. False: they are too few.
  bool foretell(std::span<BlockId> out, std::size_t look) const;

  const std::uint32_t small_target_;
  std::uint32_t small_blocks_ = 0;  // with those in use
  std::uint64_t turn_ = 0;
  std::vector<Entry> entries_;
  std::vector<tokens::SequenceHash> hashes_;  // by id; valid for blocks in the heaps
  IndexedHeap<std::uint64_t> small_;
  IndexedHeap<std::uint64_t> main_;
  GhostNames ghosts_;
};
static_assert(EvictionBackend<S3FifoBackend> && FollowsRegistrations<S3FifoBackend>);

}  // namespace ashlar::block
