// FlashWalk: one query descending the tree.
//
// step() processes one node and prefetches the next; several walks can take turns so that their cache misses
// overlap.
//
// Candidates. Workers whose blocks were all on the device so far are bits of `active_`; at a node with `full`
// bits one AND per 64 workers decides. Workers that needed a lower tier, and all workers from a node with few
// owners on, are records of `few_` with their counts, one mask check per node. A worker that drops out is
// scored at once.
//
// Thread safety: confined; it reads data published by FlashTree, under the caller's guard.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "index/common/hash_compare.h"
#include "index/flash/era_domain.h"
#include "index/flash/flash_tree.h"

namespace ashlar::index::detail {

class FlashWalk {
 public:
  enum class Step : std::uint8_t { kOn, kDone, kEraOver };

  FlashWalk() = default;

  // Starts a query. The scores are complete when step() returns kDone; after kEraOver renew the guard and
  // restart the query.
  Step start(const FlashTree& tree, std::span<const LocalHash> locals, MatchScores& scores, bool early_exit,
             const EraDomain::Guard& guard);
  Step step(const EraDomain::Guard& guard);

 private:
  // A worker tracked individually.
  struct Runner {
    std::uint32_t slot = 0;
    bool on_device = true;  // every block so far was on the device
    bool stays = false;     // scratch of advance_many()
    Score score;

    // Whether the next `count` blocks are on the device, like all before.
    bool holds(Mask device, std::uint32_t count) const noexcept {
      return on_device && (~device & low_bits(count)) == 0;
    }
    // Counts them.
    void take(std::uint32_t count) noexcept {
      score.device_depth += count;
      score.depth += count;
      score.blocks[0] += count;
    }
  };
  struct Masks {
    std::array<Mask, kStorageTiers> tiers{};
    Mask any = 0;
  };

  // False when the era ended meanwhile.
  static bool copy_workers(const Roster& roster, MatchScores& scores, const EraDomain::Guard& guard);
  Step enter(const Node* node, const EraDomain::Guard& guard);
  // The next `count` blocks of the node match.
  void take_single(const Node& node, std::uint32_t count);
  void take_set(const OwnerSet& set, std::uint32_t count);
  bool all_hold(const OwnerSet& set) const noexcept;
  void take_active(const OwnerSet& set, std::uint32_t entries, std::uint32_t count);
  template <class MasksFor>
  void advance_few(std::uint32_t count, MasksFor&& masks_for);
  void advance_many(const OwnerSet& set, std::uint32_t entries, std::uint32_t count);
  void add_runner(std::uint32_t slot, const Masks& masks, std::uint32_t count);
  Masks masks_of(const OwnerSet& set, std::uint32_t index) const noexcept;
  // Counts the worker's blocks among the next `count`; false when it drops out.
  static bool advance(Runner& runner, const Masks& masks, std::uint32_t count) noexcept;
  void drop_active(std::uint32_t depth) noexcept;
  void finish() noexcept;
  bool at_most_one_left() const noexcept;

  const FlashTree* tree_ = nullptr;
  MatchScores* scores_ = nullptr;
  const std::uint64_t* query_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t depth_ = 0;
  const Node* node_ = nullptr;
  std::uint32_t from_ = 0;    // blocks of the node already processed
  std::uint64_t stride_ = 0;  // from the last node to its child, in bytes
  bool early_exit_ = false;
  bool wide_ = false;  // active_ has bits
  std::vector<std::uint64_t> active_;
  std::vector<std::uint64_t> rest_;     // workers that do not hold a whole node,
  std::vector<std::uint64_t> partial_;  // but hold some of it
  std::vector<Runner> few_;
  std::vector<std::uint32_t> runner_of_;  // by slot: its place in few_, plus one; zero between calls
};

}  // namespace ashlar::index::detail
