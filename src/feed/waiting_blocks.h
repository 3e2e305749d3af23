// WaitingBlocks: what an engine said of blocks that cannot be placed yet: runs whose parent is not known, and names that were
// stored in a tier without tokens. Bounded: the oldest give way.
//
// Thread safety: thread-compatible.
// Complexity:    O(log n) per run and per name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/events/storage_tier.h"
#include "feed/engine_run.h"

namespace ashlar::feed {

class WaitingBlocks {
 public:
  using Tiers = std::array<bool, events::kStorageTiers>;

  explicit WaitingBlocks(std::size_t limit) : limit_(limit) {}

  // Returns how many blocks gave way; of a run that is larger than the limit, all of its own. Requires: run.parent.
  std::size_t add_run(const EngineRun& run);
  // Of a name that waits for that tier already nothing changes.
  std::size_t add_placeholder(const EngineKey& key, std::size_t tier);

  // Takes the runs behind `parent`, the oldest first.
  std::vector<OwnedEngineRun> take_runs(const EngineKey& parent);
  Tiers take_placeholder(const EngineKey& key);

  // Whether a run has a block of that name and tier that is still expected.
  bool expects(const EngineKey& key, std::size_t tier) const;

  // A removal: the oldest block of that name and tier is no longer expected. A run keeps the tokens of such a block, since its
  // children need them. False when there is none.
  bool cancel(const EngineKey& key, std::size_t tier);
  // All of one tier. Returns how many blocks.
  std::size_t cancel_tier(std::size_t tier);
  void clear();

  bool empty() const noexcept { return runs_.empty() && placeholders_.empty(); }
  // Blocks that are still expected.
  std::size_t size() const noexcept { return expected_ + placed_; }

 private:
  struct Placeholder {
    Tiers tiers{};
    std::uint64_t number = 0;
  };
  // A run, and for names the block in it.
  struct Place {
    std::uint64_t number = 0;
    std::size_t block = 0;
  };
  using Places = std::unordered_map<EngineKey, std::vector<Place>, EngineKeyHash>;

  static std::size_t expected_in(const OwnedEngineRun& run);
  static void unlink(Places& table, const EngineKey& key, std::uint64_t number);
  // Takes a run out of the tables.
  OwnedEngineRun take(std::uint64_t number);
  std::size_t drop_placeholder(std::unordered_map<EngineKey, Placeholder, EngineKeyHash>::iterator at);

  std::size_t limit_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, OwnedEngineRun> runs_;  // by age
  std::size_t run_blocks_ = 0;                    // in runs_, those that are gone included
  std::size_t expected_ = 0;                      // in runs_
  Places by_parent_;
  Places by_name_;
  std::unordered_map<EngineKey, Placeholder, EngineKeyHash> placeholders_;
  std::map<std::uint64_t, EngineKey> placeholder_ages_;
  std::size_t placed_ = 0;  // (name, tier)s of placeholders_
};

}  // namespace ashlar::feed
