#include "ashlar/index/indexer.h"

#include <algorithm>

#include "ashlar/base/check.h"
#include "index/common/hash_compare.h"

namespace ashlar::index {

void MatchScores::assign(std::uint64_t assignment, std::size_t slots) {
  const std::size_t padded = (slots + 63) / 64 * 64;
  workers_.resize(slots);
  device_.assign(padded, 0);
  depth_.assign(padded, 0);
  for (std::vector<std::uint32_t>& blocks : blocks_) blocks.assign(padded, 0);
  matches_ = lower_tiers_ = false;
  slots_ = slots;
  assignment_ = assignment;
}

void MatchScores::clear_lower_tiers() noexcept {
  for (std::size_t tier = 1; tier < events::kStorageTiers; ++tier) std::ranges::fill(blocks_[tier], 0u);
  lower_tiers_ = false;
}

void MatchScores::set(std::size_t slot, const Score& score) noexcept {
  ASHLAR_DCHECK(score.device_depth <= score.depth, "device depth %u of %u", score.device_depth, score.depth);
  device_[slot] = score.device_depth;
  depth_[slot] = score.depth;
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) blocks_[tier][slot] = score.blocks[tier];
  matches_ = true;
  lower_tiers_ |= score.blocks[0] != score.depth;
}

void MatchScores::set_device(std::size_t first, std::uint64_t mask, std::uint32_t depth) noexcept {
  static const detail::WriteMasked write_masked = detail::write_masked_kernel();
  write_masked(device_.data() + first, mask, depth);
  write_masked(depth_.data() + first, mask, depth);
  write_masked(blocks_[0].data() + first, mask, depth);
  matches_ = true;
}

Score MatchScores::score(std::size_t slot) const noexcept {
  ASHLAR_DCHECK(slot < slots_, "slot %zu of %zu", slot, slots_);
  Score score{device_[slot], depth_[slot], {}};
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) score.blocks[tier] = blocks_[tier][slot];
  return score;
}

std::optional<Score> MatchScores::of(const events::Worker& worker) const noexcept {
  for (std::size_t slot = 0; slot < slots_; ++slot)
    if (depth_[slot] != 0 && workers_[slot] == worker) return score(slot);
  return std::nullopt;
}

std::size_t MatchScores::matched() const noexcept {
  return static_cast<std::size_t>(std::count_if(depth_.begin(),
                                                depth_.begin() + static_cast<std::ptrdiff_t>(slots_),
                                                [](std::uint32_t depth) { return depth != 0; }));
}

std::uint32_t MatchScores::longest() const noexcept {
  return slots_ == 0
             ? 0
             : *std::max_element(depth_.begin(), depth_.begin() + static_cast<std::ptrdiff_t>(slots_));
}

}  // namespace ashlar::index
