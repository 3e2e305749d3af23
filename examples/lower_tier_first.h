// LowerTierFirst: first evicts blocks that a lower tier also holds. A reuse policy that users can write:
//
//   BlockManager<G1>::builder().with_hashmap_backend<LowerTierFirst>()
//   KvOptions{.g2 = TierShape{.eviction = eviction_of<HashMapBackend<LowerTierFirst>>(kTierId<G3>), …}, …}
//
// A block that the tier below (G2, unless another is named) also holds is cheap to lose: it can be copied
// back, where others must be recomputed. Among the kLookAhead blocks released or touched longest ago, the
// first one that is also there is evicted; if there is none, the oldest: a preference, never a veto. Presence
// is checked when a victim is chosen, so it is current.
//
// A policy runs under its manager's lock. It may use the registry, whose locks come after it; it must not
// call a manager, nor touch a hash.
//
// Thread safety: confined. Complexity: O(1), with up to kLookAhead look-ups in the registry for a victim;
// peek() at k blocks is O(k), with one look-up for each block that it passes, and it allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"
#include "ashlar/block/reuse_policy.h"
#include "ashlar/events/tier.h"

namespace ashlar::examples {

class LowerTierFirst {
 public:
  static constexpr std::size_t kLookAhead = 16;
  static constexpr std::size_t kBytesPerBlock =
      block::IntrusiveOrder::kBytesPerBlock + sizeof(tokens::SequenceHash);

  explicit LowerTierFirst(const block::EvictionContext& context,
                          events::TierId below = events::kTierId<block::G2>)
      : registry_(context.registry),
        below_(below),
        hashes_(context.block_count),
        order_(context.block_count) {}

  void insert(block::BlockId id, const tokens::SequenceHash& hash) {
    hashes_[id.value()] = hash;
    order_.push_back(id);
  }
  void remove(block::BlockId id) { order_.remove(id); }
  void touch(block::BlockId id) {
    order_.remove(id);
    order_.push_back(id);
  }
  std::optional<block::BlockId> next() {
    std::array<block::BlockId, kLookAhead> oldest;
    const std::size_t count = order_.peek(oldest);
    if (count == 0) return std::nullopt;
    const auto last = oldest.begin() + count;
    const auto held = std::find_if(oldest.begin(), last, [&](block::BlockId id) { return is_below(id); });
    const block::BlockId victim = held == last ? oldest.front() : *held;
    order_.remove(victim);
    return victim;
  }
  // Simulates next() as often as there is room.
  std::size_t peek(std::span<block::BlockId> out) const {
    std::vector<block::BlockId> oldest(std::min(out.size() + kLookAhead - 1, order_.size()));
    order_.peek(oldest);
    struct Candidate {
      block::BlockId id;
      bool below;
    };
    std::vector<Candidate> window;  // at most kLookAhead
    std::size_t count = 0;
    for (std::size_t seen = 0; count < out.size(); ++count) {
      for (; window.size() < kLookAhead && seen < oldest.size(); ++seen) {
        window.push_back({oldest[seen], is_below(oldest[seen])});
      }
      if (window.empty()) break;
      const auto held =
          std::find_if(window.begin(), window.end(), [](const Candidate& c) { return c.below; });
      const auto victim = held == window.end() ? window.begin() : held;
      out[count] = victim->id;
      window.erase(victim);
    }
    return count;
  }
  std::size_t size() const { return order_.size(); }

 private:
  bool is_below(block::BlockId id) const {
    const auto handle = registry_.match_sequence_hash(hashes_[id.value()], /*touch=*/false);
    return handle && handle->has_block(below_);
  }

  block::BlockRegistry registry_;
  events::TierId below_;
  std::vector<tokens::SequenceHash> hashes_;  // by block id; valid for blocks in the policy
  block::IntrusiveOrder order_;               // by the last release or touch
};
static_assert(block::ReusePolicy<LowerTierFirst>);

}  // namespace ashlar::examples
