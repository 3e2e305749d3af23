// WaitingBlocks: blocks of an engine that cannot be placed yet: runs with an unknown parent, and names stored
// in a tier without tokens (placeholders). Bounded in number, and in bytes by a shared budget: the oldest are
// dropped first. A run that still does not fit, because others hold the bytes, is refused.
//
// A run whose blocks are all gone is kept only while another run or placeholder waits for one of its names.
// Of several such runs with the same name one is kept.
//
// Thread safety: thread-compatible.
// Complexity:    O(log n) per run and per name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/byte_budget.h"
#include "ashlar/events/tier.h"
#include "feed/engine_run.h"

namespace ashlar::feed {

class WaitingBlocks {
 public:
  using Tiers = std::array<bool, events::kStorageTiers>;

  // The budget outlives it.
  WaitingBlocks(std::size_t limit, ByteBudget& budget) : limit_(limit), budget_(&budget) {}

  // The cost of a run, or a placeholder, in the budget.
  static std::size_t bytes_of(const EngineRun& run);
  static constexpr std::size_t kPlaceholderBytes = 256;

  // Returns how many blocks were dropped; a refused run counts all its blocks. Requires: run.parent.
  std::size_t add_run(const EngineRun& run);
  // No effect if the name already waits for that tier.
  std::size_t add_placeholder(const EngineKey& key, std::size_t tier);

  // Takes the runs after `parent`, the oldest first.
  std::vector<OwnedEngineRun> take_runs(const EngineKey& parent);
  Tiers take_placeholder(const EngineKey& key);

  // Whether a run still expects a block of that name and tier.
  bool expects(const EngineKey& key, std::size_t tier) const;

  // A removal: the oldest block of that name and tier is no longer expected. A run keeps the tokens of such a
  // block, since its children need them. False when there is none.
  bool cancel(const EngineKey& key, std::size_t tier);
  // Removes all of one tier. Returns how many blocks.
  std::size_t cancel_tier(std::size_t tier);
  void clear();

  bool empty() const noexcept { return runs_.empty() && placeholders_.empty(); }
  // Blocks that are still expected.
  std::size_t size() const noexcept { return expected_ + placed_; }
  // Aborts on inconsistent tables. For tests; O(n log n).
  void check_invariants() const;

 private:
  struct Placeholder {
    Tiers tiers{};
    std::uint64_t number = 0;
    ByteShare share = {};
  };
  struct Run {
    Run(const EngineRun& run, ByteShare taken) : share(std::move(taken)), owned(run) {}
    ByteShare share;
    OwnedEngineRun owned;
    std::size_t expected = 0;  // blocks not yet gone
    std::size_t needed = 0;    // when all are gone: its names that others still wait for
  };
  // An expected block.
  struct Place {
    std::size_t tier = 0;
    std::uint64_t number = 0;  // of the run
    std::size_t block = 0;

    friend auto operator<=>(const Place&, const Place&) = default;
  };
  template <typename T>
  using Table = std::unordered_map<EngineKey, T, EngineKeyHash>;

  bool is_needed(const EngineKey& key) const {
    return by_parent_.contains(key) || placeholders_.contains(key);
  }
  // The first waiter for a name arrived, or the last one is gone.
  void begin_need(const EngineKey& key);
  void end_need(const EngineKey& key);
  // All of its blocks are gone.
  void retire(std::uint64_t number, Run& run);
  // Drops runs no longer needed. Call after each change of the tables.
  void sweep();
  void forget_place(const EngineKey& key, const Place& place);
  // Removes a run from the tables.
  Run take(std::uint64_t number);
  std::size_t drop_placeholder(Table<Placeholder>::iterator at);

  std::size_t limit_;
  ByteBudget* budget_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Run> runs_;  // by age
  std::size_t run_blocks_ = 0;         // in runs_, those that are gone included
  std::size_t expected_ = 0;           // in runs_
  Table<std::set<std::uint64_t>> by_parent_;
  Table<std::set<Place>> by_name_;
  Table<std::uint64_t> keepers_;     // by name: the gone run that is kept for it
  std::vector<std::uint64_t> idle_;  // runs to check in sweep()
  Table<Placeholder> placeholders_;
  std::map<std::uint64_t, EngineKey> placeholder_ages_;
  std::size_t placed_ = 0;  // (name, tier)s of placeholders_
};

}  // namespace ashlar::feed
