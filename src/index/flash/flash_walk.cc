#include "index/flash/flash_walk.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/interleaving.h"

namespace ashlar::index::detail {

namespace {

const CommonPrefix kCommonPrefix = common_prefix_kernel();

// always_inline: g++ treats a call of a function that only prefetches as having no effect, and drops it.
[[gnu::always_inline]] inline void fetch(const Node* node) noexcept {
  const auto* const bytes = reinterpret_cast<const char*>(node);
  for (std::size_t line = 0; line < 9; ++line) __builtin_prefetch(bytes + 64 * line);
}

// The query is as cold as the tree. Requires: from < size.
[[gnu::always_inline]] inline void fetch(const std::uint64_t* query, std::uint32_t from,
                                         std::uint32_t size) noexcept {
  const std::uint32_t end = std::min(size, from + kNodeBlocks);
  for (std::uint32_t i = from; i < end; i += 8) __builtin_prefetch(query + i);
}
constexpr std::uint32_t kQueryAhead = 2 * kNodeBlocks;
// Up to this many workers are searched individually among a node's owners, rather than in one pass.
constexpr std::size_t kSearches = 4;

// Clears the bit of a slot; true when it was set.
bool take_bit(std::vector<std::uint64_t>& bits, std::uint32_t slot) noexcept {
  std::uint64_t& word = bits[slot / 64];
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  const bool was = (word & bit) != 0;
  word &= ~bit;
  return was;
}

constexpr std::uint64_t kSideBySide = sizeof(Node) + kNodeBlocks * sizeof(std::uint64_t);

}  // namespace

FlashWalk::Step FlashWalk::start(const FlashTree& tree, std::span<const LocalHash> locals,
                                 MatchScores& scores, bool early_exit, const EraDomain::Guard& guard) {
  const Roster* const roster = tree.slots_.roster();
  if (!guard.still()) return Step::kEraOver;
  tree_ = &tree;
  scores_ = &scores;
  if (scores.begin(roster->assignment, roster->slots) && !copy_workers(*roster, scores, guard))
    return Step::kEraOver;
  static_assert(sizeof(LocalHash) == sizeof(std::uint64_t));
  query_ = reinterpret_cast<const std::uint64_t*>(locals.data());
  size_ = static_cast<std::uint32_t>(std::min<std::size_t>(locals.size(), kMaxDepth));
  depth_ = 0;
  early_exit_ = early_exit;
  stride_ = 0;
  few_.clear();
  if (size_ == 0 || roster->slots == 0) return Step::kDone;
  const EdgeTable::Found first = tree.edges_.find(kRootId, query_[0], guard);
  if (first.era_over) return Step::kEraOver;
  if (first.node == nullptr) return Step::kDone;
  // What most queries need; a miss needs none of it.
  fetch(query_, 0, size_);
  if (size_ > kNodeBlocks) fetch(query_, kNodeBlocks, size_);
  active_.assign(roster->alive.begin(), roster->alive.end());
  rest_.resize(active_.size());
  partial_.resize(active_.size());
  wide_ = true;
  return enter(first.node, guard);
}

bool FlashWalk::copy_workers(const Roster& roster, MatchScores& scores, const EraDomain::Guard& guard) {
  std::span<Worker> left = scores.workers();
  for (const RosterPage* const page : roster.pages) {
    if (!guard.still()) {
      scores.forget_assignment();
      return false;
    }
    const std::size_t count = std::min(left.size(), page->workers.size());
    std::copy_n(page->workers.begin(), count, left.begin());
    left = left.subspan(count);
  }
  return true;
}

FlashWalk::Step FlashWalk::enter(const Node* node, const EraDomain::Guard& guard) {
  if (!guard.still()) return Step::kEraOver;
  node_ = node;
  from_ = 0;
  fetch(node);
  return Step::kOn;
}

FlashWalk::Step FlashWalk::step(const EraDomain::Guard& guard) {
  const Node& node = *node_;
  // acquire: pairs with the release in publish(): the hashes below the length are visible.
  const std::uint32_t length = node.length.load(std::memory_order_acquire);
  // The next node is prefetched while this one is compared; at a branch its lookup starts here.
  EdgeTable::Found found;
  const std::uint64_t ahead = node.child.load(std::memory_order_relaxed);
  if (ahead > Node::kManyChildren) {
    // A sequence usually lies in memory as it was stored, so the address of the node after next is worth
    // guessing and prefetching. The hardware prefetcher already covers adjacent nodes.
    const std::uint64_t stride = ahead - reinterpret_cast<std::uintptr_t>(&node);
    if (stride != stride_) {
      fetch(reinterpret_cast<const Node*>(ahead));
      fetch(reinterpret_cast<const Node*>(ahead + stride));
      stride_ = stride;
    } else if (stride > kSideBySide) {
      fetch(reinterpret_cast<const Node*>(ahead + 2 * stride));
    }
  }
  if (ahead == Node::kManyChildren && depth_ + length - from_ < size_) {
    interleaving_point("find.at_branch");  // may run under the writers' lock
    found = tree_->edges_.find(node.id, query_[depth_ + length - from_], guard);
    if (found.era_over) return Step::kEraOver;
  }
  if (depth_ + kQueryAhead < size_) fetch(query_, depth_ + kQueryAhead, size_);
  const std::uint32_t most = std::min(length - from_, size_ - depth_);
  const std::uint32_t same = kCommonPrefix(node.hashes() + from_, query_ + depth_, most);
  if (same != 0) {
    // acquire: pairs with the release in replace_set(): the set is complete.
    const OwnerSet* const set = node.owners.load(std::memory_order_acquire);
    if (set == nullptr) {
      take_single(node, same);
    } else {
      if (!guard.still()) return Step::kEraOver;
      take_set(*set, same);
    }
    depth_ += same;
    from_ += same;
  }
  if (from_ < length || depth_ == size_ || (!wide_ && few_.empty()) || (early_exit_ && at_most_one_left())) {
    finish();
    return Step::kDone;
  }
  for (;;) {
    // acquire: pairs with the releases in link() and take_place(): the child is complete.
    const std::uint64_t child = node.child.load(std::memory_order_acquire);
    // A node with children has its final length; a reader that loaded an earlier length must compare the
    // added blocks.
    if (node.length.load(std::memory_order_acquire) != length) return Step::kOn;
    if (child == Node::kNoChild) break;
    if (child > Node::kManyChildren) return enter(reinterpret_cast<const Node*>(child), guard);
    if (found.node == nullptr) {
      interleaving_point("find.before_child");  // as above
      found = tree_->edges_.find(node.id, query_[depth_], guard);
    }
    if (found.era_over) return Step::kEraOver;
    if (found.node != nullptr) return enter(found.node, guard);
    if (node.child.load(std::memory_order_acquire) == child) break;
  }
  finish();
  return Step::kDone;
}

// Keeps the runners that survive; masks_for(slot) returns the masks of a slot, if any.
template <class MasksFor>
void FlashWalk::advance_few(std::uint32_t count, MasksFor&& masks_for) {
  std::size_t kept = 0;
  for (Runner& runner : few_) {
    const std::optional<Masks> masks = masks_for(runner.slot);
    if (masks && advance(runner, *masks, count))
      few_[kept++] = runner;
    else
      scores_->set(runner.slot, runner.score);
  }
  few_.resize(kept);
}

// The same in one pass over the owners.
void FlashWalk::advance_many(const OwnerSet& set, std::uint32_t entries, std::uint32_t count) {
  runner_of_.resize(std::max(runner_of_.size(), active_.size() * 64));
  for (std::size_t r = 0; r < few_.size(); ++r) runner_of_[few_[r].slot] = static_cast<std::uint32_t>(r) + 1;
  const std::uint32_t* const slots = set.slots();
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::uint32_t r = slots[i] < runner_of_.size() ? runner_of_[slots[i]] : 0;
    if (r != 0) few_[r - 1].stays = advance(few_[r - 1], masks_of(set, i), count);
  }
  std::size_t kept = 0;
  for (Runner& runner : few_) {
    runner_of_[runner.slot] = 0;
    if (std::exchange(runner.stays, false))
      few_[kept++] = runner;
    else
      scores_->set(runner.slot, runner.score);
  }
  few_.resize(kept);
}

void FlashWalk::add_runner(std::uint32_t slot, const Masks& masks, std::uint32_t count) {
  Runner runner{.slot = slot, .score = {depth_, depth_, {depth_}}};
  if (advance(runner, masks, count))
    few_.push_back(runner);
  else if (runner.score.depth != 0)
    scores_->set(slot, runner.score);
}

void FlashWalk::take_single(const Node& node, std::uint32_t count) {
  const std::uint32_t slot = node.first_slot;
  // acquire: pairs with the release in write_mask().
  const Mask mask = node.first_mask.load(std::memory_order_acquire) >> from_;
  // Usually: the last worker left holds the next node alone, too.
  if (!wide_ && few_.size() == 1 && few_[0].slot == slot && few_[0].holds(mask, count)) {
    few_[0].take(count);
    return;
  }
  const Masks masks{{mask}, mask};
  advance_few(count,
              [&](std::uint32_t runner) { return runner == slot ? std::optional(masks) : std::nullopt; });
  if (!wide_) return;
  const bool in = slot / 64 < active_.size() && (active_[slot / 64] >> (slot % 64) & 1) != 0;
  if (in) active_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
  drop_active(depth_);
  if (in) add_runner(slot, masks, count);
}

FlashWalk::Masks FlashWalk::masks_of(const OwnerSet& set, std::uint32_t index) const noexcept {
  Masks masks;
  // acquire, here and below: pairs with the releases in write_mask().
  if (!set.lower) {
    masks.any = masks.tiers[0] = set.masks(0)[index].load(std::memory_order_acquire) >> from_;
    return masks;
  }
  // A block of the union found in no tier moved, or was removed, between the loads: load again.
  for (;;) {
    masks.any = set.masks(OwnerSet::kAnyTier)[index].load(std::memory_order_acquire) >> from_;
    Mask seen = 0;
    for (std::size_t tier = 0; tier < kStorageTiers; ++tier)
      seen |= masks.tiers[tier] = set.masks(tier)[index].load(std::memory_order_acquire) >> from_;
    if ((masks.any & ~seen) == 0) return masks;
  }
}

void FlashWalk::take_set(const OwnerSet& set, std::uint32_t count) {
  // acquire: pairs with the release in make_owner(): the entries are visible.
  const std::uint32_t entries = set.count.load(std::memory_order_acquire);
  if (few_.size() > kSearches) {
    advance_many(set, entries, count);
  } else if (!few_.empty()) {
    advance_few(count, [&](std::uint32_t runner) -> std::optional<Masks> {
      const std::uint32_t i = set.index_of(runner, entries);
      return i == entries ? std::nullopt : std::optional(masks_of(set, i));
    });
  }
  if (wide_ && !all_hold(set)) take_active(set, entries, count);
}

// Whether every active worker holds the whole node.
bool FlashWalk::all_hold(const OwnerSet& set) const noexcept {
  if (set.words < active_.size()) return false;
  std::uint64_t missing = 0;
  // acquire: pairs with the release in write_tier(): a set bit means that the mask is complete.
  for (std::size_t w = 0; w < active_.size(); ++w)
    missing |= active_[w] & ~set.full()[w].load(std::memory_order_acquire);
  return missing == 0;
}

void FlashWalk::take_active(const OwnerSet& set, std::uint32_t entries, std::uint32_t count) {
  const std::uint32_t* const slots = set.slots();
  if (set.words == 0) {
    // Few owners: active workers among them become runners, the others drop out.
    rest_.swap(active_);
    std::ranges::fill(active_, 0);
    for (std::uint32_t i = 0; i < entries; ++i)
      if (slots[i] / 64 < rest_.size() && take_bit(rest_, slots[i]))
        add_runner(slots[i], masks_of(set, i), count);
  } else {
    std::size_t partial = 0;
    for (std::size_t w = 0; w < active_.size(); ++w) {
      // acquire: pairs with the releases in write_tier() and list(): a clear bit in the first means less than
      // all blocks, a clear bit in the second means none.
      const std::uint64_t full = w < set.words ? set.full()[w].load(std::memory_order_acquire) : 0;
      const std::uint64_t listed = w < set.words ? set.listed()[w].load(std::memory_order_acquire) : 0;
      rest_[w] = active_[w] & ~full;
      active_[w] &= full;
      partial_[w] = rest_[w] & listed;
      partial += static_cast<std::size_t>(std::popcount(partial_[w]));
    }
    const auto take = [&](std::uint32_t i) {
      const std::uint32_t slot = slots[i];
      take_bit(rest_, slot);
      const Masks masks = masks_of(set, i);
      if ((masks.tiers[0] & low_bits(count)) == low_bits(count))
        active_[slot / 64] |= std::uint64_t{1} << (slot % 64);
      else
        add_runner(slot, masks, count);
    };
    if (partial <= kSearches) {
      for (std::size_t w = 0; w < partial_.size(); ++w)
        for (std::uint64_t left = partial_[w]; left != 0; left &= left - 1) {
          const auto slot =
              static_cast<std::uint32_t>(w * 64) + static_cast<std::uint32_t>(std::countr_zero(left));
          const std::uint32_t i = set.index_of(slot, entries);
          if (i != entries) take(i);
        }
    } else {
      for (std::uint32_t i = 0; i < entries; ++i)
        if (slots[i] / 64 < partial_.size() && take_bit(partial_, slots[i])) take(i);
    }
  }
  if (depth_ != 0)
    for (std::size_t w = 0; w < rest_.size(); ++w)
      if (rest_[w] != 0) scores_->set_device(w * 64, rest_[w], depth_);
  wide_ = std::any_of(active_.begin(), active_.end(), [](std::uint64_t word) { return word != 0; });
}

bool FlashWalk::advance(Runner& runner, const Masks& masks, std::uint32_t count) noexcept {
  if (runner.holds(masks.tiers[0], count)) {
    runner.take(count);
    return true;
  }
  const std::uint32_t run = std::min(count, static_cast<std::uint32_t>(std::countr_one(masks.any)));
  if (runner.on_device) {
    const std::uint32_t device = std::min(run, static_cast<std::uint32_t>(std::countr_one(masks.tiers[0])));
    runner.score.device_depth += device;
    runner.on_device = device == count;
  }
  runner.score.depth += run;
  Mask left = low_bits(run);
  for (const StorageTier each : kAllStorageTiers) {
    const auto tier = static_cast<std::size_t>(each);
    runner.score.blocks[tier] += static_cast<std::uint32_t>(std::popcount(masks.tiers[tier] & left));
    left &= ~masks.tiers[tier];
  }
  return run == count;
}

void FlashWalk::drop_active(std::uint32_t depth) noexcept {
  if (depth != 0)
    for (std::size_t w = 0; w < active_.size(); ++w)
      if (active_[w] != 0) scores_->set_device(w * 64, active_[w], depth);
  wide_ = false;
}

void FlashWalk::finish() noexcept {
  if (wide_) drop_active(depth_);
  for (const Runner& runner : few_) scores_->set(runner.slot, runner.score);
  few_.clear();
}

bool FlashWalk::at_most_one_left() const noexcept {
  std::size_t left = few_.size();
  if (wide_)
    for (const std::uint64_t word : active_) left += static_cast<std::size_t>(std::popcount(word));
  return left <= 1;
}

}  // namespace ashlar::index::detail
