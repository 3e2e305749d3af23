// MatchScores: the answer of find_matches(), in storage that the caller keeps and reuses.
//
// Scores lie in dense arrays, one element per worker slot. A slot is a small number that an index gives to a
// (worker, rank); it may change when the worker is cleared or removed, so read workers through worker(slot),
// which is the assignment that this answer was computed with. Slots without a match are zero. A second query
// into the same object allocates nothing unless the index has more slots than before.
//
// Thread safety: thread-compatible. Filled by an index, read by its caller.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/storage_tier.h"
#include "ashlar/events/worker.h"

namespace ashlar::index {

// The score of one worker; indexer.h defines the fields.
struct Score {
  std::uint32_t device_depth = 0;
  std::uint32_t depth = 0;
  std::array<std::uint32_t, events::kStorageTiers> blocks{};

  friend bool operator==(const Score&, const Score&) = default;
};

class MatchScores {
 public:
  // Slots of the index when it answered; the arrays have as many elements.
  std::size_t slots() const noexcept { return slots_; }
  std::span<const std::uint32_t> device_depths() const noexcept { return {device_.data(), slots_}; }
  std::span<const std::uint32_t> depths() const noexcept { return {depth_.data(), slots_}; }
  // Of one tier. Where no worker has blocks in lower tiers, these are all zero but for the device.
  std::span<const std::uint32_t> blocks(events::StorageTier tier) const noexcept {
    return {blocks_[static_cast<std::size_t>(tier)].data(), slots_};
  }

  // Requires: slot < slots(). A slot that no worker has now has no score, and the worker {0, 0} or its last
  // one.
  const events::Worker& worker(std::size_t slot) const noexcept {
    ASHLAR_DCHECK(slot < slots_, "slot %zu of %zu", slot, slots_);
    return workers_[slot];
  }
  Score score(std::size_t slot) const noexcept;
  // The score of a worker; nothing when it matched no block. O(slots).
  std::optional<Score> of(const events::Worker& worker) const noexcept;
  // Workers that matched at least one block.
  std::size_t matched() const noexcept;
  // The largest depth().
  std::uint32_t longest() const noexcept;
  // Calls fn(worker, score) for every worker that matched, by rising slot.
  template <class F>
  void for_each(F&& fn) const {
    for (std::size_t slot = 0; slot < slots_; ++slot)
      if (depth_[slot] != 0) fn(workers_[slot], score(slot));
  }
  // False when early_exit cut the walk short: the one worker left may reach deeper than its score says.
  bool exact() const noexcept { return exact_; }

  // --- For implementations of Indexer. ---

  // A number that no other assignment of slots has, in any index. An index takes a new one whenever its
  // assignment changes.
  static std::uint64_t next_assignment() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // Starts an answer: no matches, exact. `workers_by_slot` is copied only when `assignment` differs from the
  // last one.
  void begin(std::uint64_t assignment, std::span<const events::Worker> workers_by_slot) {
    if (begin(assignment, workers_by_slot.size())) std::ranges::copy(workers_by_slot, workers_.begin());
  }
  // The same for an index that keeps its workers in pieces. True when `assignment` differs from the last one:
  // then the caller fills workers(), or calls forget_assignment() where it cannot.
  bool begin(std::uint64_t assignment, std::size_t slots) {
    const bool differs = assignment != assignment_;
    if (differs) assign(assignment, slots);
    if (matches_) {
      std::memset(device_.data(), 0, slots_ * sizeof(std::uint32_t));
      std::memset(depth_.data(), 0, slots_ * sizeof(std::uint32_t));
      std::memset(blocks_[0].data(), 0, slots_ * sizeof(std::uint32_t));
      matches_ = false;
    }
    if (lower_tiers_) clear_lower_tiers();
    exact_ = true;
    return differs;
  }
  std::span<events::Worker> workers() noexcept { return workers_; }
  void forget_assignment() noexcept { assignment_ = 0; }
  std::uint64_t assignment() const noexcept { return assignment_; }
  void set(std::size_t slot, const Score& score) noexcept;
  // A worker whose blocks are all in the device tier.
  void set_device(std::size_t slot, std::uint32_t depth) noexcept {
    device_[slot] = depth_[slot] = blocks_[0][slot] = depth;
    matches_ = true;
  }
  // The same for several: bit i of `mask` stands for slot `first` + i. Requires: first is a multiple of 64.
  void set_device(std::size_t first, std::uint64_t mask, std::uint32_t depth) noexcept;
  void set_inexact() noexcept { exact_ = false; }

 private:
  void assign(std::uint64_t assignment, std::size_t slots);
  void clear_lower_tiers() noexcept;

  std::size_t slots_ = 0;
  std::uint64_t assignment_ = 0;
  bool exact_ = true;
  bool matches_ = false;      // something was set since begin()
  bool lower_tiers_ = false;  // blocks_[1..3] hold something
  std::vector<events::Worker> workers_;
  // Sized up to a multiple of 64 slots.
  std::vector<std::uint32_t> device_;
  std::vector<std::uint32_t> depth_;
  std::array<std::vector<std::uint32_t>, events::kStorageTiers> blocks_;
};

}  // namespace ashlar::index
