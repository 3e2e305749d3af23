// RadixTally: changes made by one call in a radix tree, added to the totals when the call ends. RadixTotals:
// the totals.
//
// Thread safety: a tally is thread-compatible. Totals are thread-safe in a shared tree, else
// thread-compatible.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ashlar/index/indexer.h"

namespace ashlar::index {

struct RadixTally {
  std::int64_t blocks = 0;
  std::int64_t contents = 0;
  std::int64_t nodes = 0;
  std::int64_t bytes = 0;
  IndexCounters counters;

  void count(StoreVerdict verdict, std::size_t blocks_stored) noexcept {
    switch (verdict) {
      case StoreVerdict::kApplied:
        counters.stored += blocks_stored;
        break;
      case StoreVerdict::kEmpty:
        ++counters.empty_stores;
        break;
      case StoreVerdict::kUnknownTier:
        ++counters.unknown_tiers;
        break;
      case StoreVerdict::kUnknownParent:
        ++counters.unknown_parents;
        break;
      case StoreVerdict::kWrongPosition:
        ++counters.wrong_positions;
        break;
      case StoreVerdict::kNameInUse:
        ++counters.names_in_use;
        break;
      case StoreVerdict::kFull:
        ++counters.full;
        break;
    }
  }
};

template <bool kShared>
class RadixTotals {
 public:
  void add(const RadixTally& tally) noexcept {
    add(kBlocks, tally.blocks);
    add(kContents, tally.contents);
    add(kNodes, tally.nodes);
    add(kBytes, tally.bytes);
    for (std::size_t i = 0; i < kCounters.size(); ++i)
      add(kFirstCounter + i, static_cast<std::int64_t>(tally.counters.*kCounters[i]));
  }

  // blocks, contents, nodes and bytes.
  IndexSizes sizes() const noexcept {
    IndexSizes sizes;
    sizes.blocks = static_cast<std::size_t>(get(kBlocks));
    sizes.contents = static_cast<std::size_t>(get(kContents));
    sizes.nodes = static_cast<std::size_t>(get(kNodes));
    sizes.bytes = static_cast<std::size_t>(get(kBytes));
    return sizes;
  }
  IndexCounters counters() const noexcept {
    IndexCounters counters;
    for (std::size_t i = 0; i < kCounters.size(); ++i)
      counters.*kCounters[i] = static_cast<std::uint64_t>(get(kFirstCounter + i));
    return counters;
  }

 private:
  enum Total : std::size_t { kBlocks, kContents, kNodes, kBytes, kFirstCounter };
  static constexpr std::array kCounters = {&IndexCounters::stored,          &IndexCounters::repeated,
                                           &IndexCounters::removed,         &IndexCounters::unknown_removals,
                                           &IndexCounters::unknown_parents, &IndexCounters::wrong_positions,
                                           &IndexCounters::names_in_use,    &IndexCounters::empty_stores,
                                           &IndexCounters::unknown_tiers,   &IndexCounters::full,
                                           &IndexCounters::clears};
  using Cell = std::conditional_t<kShared, std::atomic<std::int64_t>, std::int64_t>;

  void add(std::size_t total, std::int64_t change) noexcept {
    if (change == 0) return;
    // relaxed: sums that order nothing; a caller that has synchronized with the writers sees their sums.
    if constexpr (kShared)
      cells_[total].fetch_add(change, std::memory_order_relaxed);
    else
      cells_[total] += change;
  }
  std::int64_t get(std::size_t total) const noexcept {
    if constexpr (kShared)
      return cells_[total].load(std::memory_order_relaxed);  // relaxed: see add()
    else
      return cells_[total];
  }

  std::array<Cell, kFirstCounter + kCounters.size()> cells_{};
};

}  // namespace ashlar::index
