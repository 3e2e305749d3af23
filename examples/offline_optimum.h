// OfflineOptimum: a block cache that knows all future requests, and evicts the block needed last or never.
//
// Belady's rule over the inactive blocks. A request needs the beginning of a sequence, so no block is needed
// later than the one after it; of blocks needed at the same time the later one of the sequence goes first, so
// the remaining blocks can be matched. No real backend can do this: it is the upper bound for the others.
//
// Thread safety: thread-compatible. Complexity: O(log n) per block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/tokens/sequence_hash.h"
#include "multi_turn_workload.h"

namespace ashlar::examples {

class OfflineOptimum {
 public:
  // The hashes of a running request.
  using Held = std::vector<tokens::SequenceHash>;

  OfflineOptimum(const MultiTurnWorkload& workload, std::size_t blocks) : workload_(workload), free_(blocks) {
    for (std::uint32_t r = 0; r < workload.requests().size(); ++r) {
      for (const auto& block : workload.prompt_of(workload.requests()[r])) {
        blocks_[block.sequence_hash()].needed_at.push_back(r);
      }
    }
  }

  // Uses the blocks of a request. make_room() ends another one; it is called while no block can be evicted.
  template <class MakeRoom>
  Held begin(const MultiTurnWorkload::Request& request, std::size_t& hits, MakeRoom&& make_room) {
    now_ = static_cast<std::uint32_t>(&request - workload_.requests().data());
    Held held;
    bool matching = true;
    for (const auto& each : workload_.blocks_of(request)) {
      Block& block = blocks_[each.sequence_hash()];
      matching = matching && block.here && held.size() < request.prompt_blocks;
      if (matching) ++hits;
      if (block.users++ == 0 && block.here) inactive_.erase(key_of(each.sequence_hash(), block));
      held.push_back(each.sequence_hash());
    }
    for (const tokens::SequenceHash& hash : held) {
      if (std::exchange(blocks_[hash].here, true)) continue;
      while (free_ == 0 && inactive_.empty()) make_room();
      if (free_ > 0) {
        --free_;
      } else {
        blocks_[std::get<2>(*inactive_.begin())].here = false;
        inactive_.erase(inactive_.begin());
        ++evictions_;
      }
    }
    return held;
  }
  void end(Held held) {
    for (const tokens::SequenceHash& hash : held) {
      Block& block = blocks_[hash];
      if (--block.users > 0) continue;
      while (block.past < block.needed_at.size() && block.needed_at[block.past] <= now_) ++block.past;
      block.next = block.past < block.needed_at.size() ? block.needed_at[block.past] : kNever;
      inactive_.insert(key_of(hash, block));
    }
  }
  std::uint64_t evictions() const noexcept { return evictions_; }

 private:
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  struct Block {
    std::vector<std::uint32_t> needed_at;  // requests whose prompt has it, in order
    std::size_t past = 0;                  // of these, those that have begun
    std::uint32_t next = kNever;           // the first of the others, when the block became inactive
    std::uint32_t users = 0;
    bool here = false;
  };
  // Least first: needed last, then last in its sequence.
  using Key = std::tuple<std::uint32_t, std::uint32_t, tokens::SequenceHash>;
  static Key key_of(const tokens::SequenceHash& hash, const Block& block) {
    return {kNever - block.next, tokens::SequenceHash::kMaxPosition - hash.position(), hash};
  }

  const MultiTurnWorkload& workload_;
  std::size_t free_;
  std::uint32_t now_ = 0;  // the request that began last
  std::unordered_map<tokens::SequenceHash, Block> blocks_;
  std::set<Key> inactive_;
  std::uint64_t evictions_ = 0;
};

}  // namespace ashlar::examples
