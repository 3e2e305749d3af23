#include "index/radix/radix_walk.h"

#include <algorithm>
#include <bit>

namespace ashlar::index {

namespace {

std::uint32_t leading(std::uint64_t mask, std::uint32_t length) {
  return std::min(static_cast<std::uint32_t>(std::countr_one(mask)), length);
}

}  // namespace

RadixWalk::RadixWalk(std::span<const LocalHash> locals, MatchScores& scores, const FindOptions& options,
                     std::span<const std::uint64_t> retired)
    : locals_(locals),
      scores_(scores),
      retired_(retired),
      early_exit_(options.early_exit),
      words_((scores.slots() + 63) / 64),
      active_(words_),
      leaving_(words_),
      mixed_(words_) {}

void RadixWalk::start(const RadixNode& node) {
  std::size_t full = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    active_.data[w] = node.full().word(w);
    full += static_cast<std::size_t>(std::popcount(active_.data[w]));
  }
  if (full != node.owners().size())
    for (const RadixOwners::Owner& owner : node.owners().all()) active_.insert(owner.slot);
  for (std::size_t w = 0; w < retired_.size(); ++w) active_.data[w] &= ~retired_[w];
}

bool RadixWalk::visit(const RadixNode& node) {
  std::uint32_t length = node.match(locals_.subspan(position_));
  if (position_ == 0) start(node);
  if (early_exit_) length = limit(node, length);
  if (any_mixed_) [[unlikely]]
    go_on_mixed(node, length);

  std::uint64_t leaving = 0;
  std::uint64_t left = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    const std::uint64_t full = node.full().word(w);
    leaving_.data[w] = active_.data[w] & ~full;
    active_.data[w] &= full;
    leaving |= leaving_.data[w];
    left |= active_.data[w];
  }
  if (leaving != 0) {
    const std::span<const RadixOwners::Owner> owners = node.owners().all();
    for (std::uint32_t i = 0; i < owners.size(); ++i) {
      const std::uint32_t slot = owners[i].slot;
      if (!leaving_.contains(slot)) continue;
      leaving_.erase(slot);
      if (leading(owners[i].device, length) == length) {
        active_.insert(slot);  // not full, but covers the query
        left = 1;
      } else {
        leave_device(node, i, length);
      }
    }
    // Drops workers that hold nothing here.
    for (std::size_t w = 0; w < words_; ++w)
      if (leaving_.data[w] != 0) scores_.set_device(w * 64, leaving_.data[w], position_);
  }
  position_ += length;
  offset_ = length;
  return (left != 0 || any_mixed_) && !stopped_ && position_ < locals_.size();
}

std::uint32_t RadixWalk::limit(const RadixNode& node, std::uint32_t length) {
  int whole = 0;
  for (std::size_t w = 0; w < words_; ++w) whole += std::popcount(active_.data[w] & node.full().word(w));
  if (whole > 1) return length;
  // The walk stops one block after the second longest run.
  std::uint32_t longest = 0;
  std::uint32_t second = 0;
  for (std::uint32_t i = 0; i < node.owners().size(); ++i) {
    const std::uint32_t slot = node.owners().all()[i].slot;
    if (!active_.contains(slot) && !mixed_.contains(slot)) continue;
    const std::uint32_t run = leading(node.owners().held(i), length);
    second = std::max(second, std::min(longest, run));
    longest = std::max(longest, run);
  }
  if (second == length) return length;
  stopped_ = true;
  return second + 1;
}

std::uint32_t RadixWalk::add_blocks(const RadixNode& node, std::uint32_t owner, std::uint32_t length,
                                    Score& score) {
  const std::uint32_t run = leading(node.owners().held(owner), length);
  if (run == 0) return 0;
  std::uint64_t open = RadixNode::bits(0, run);
  for (const StorageTier tier : kAllStorageTiers) {
    const std::uint64_t in_tier = open & node.owners().mask(owner, tier);
    score.blocks[static_cast<std::size_t>(tier)] += static_cast<std::uint32_t>(std::popcount(in_tier));
    open &= ~in_tier;
  }
  score.depth += run;
  return run;
}

void RadixWalk::leave_device(const RadixNode& node, std::uint32_t owner, std::uint32_t length) {
  const std::uint32_t slot = node.owners().all()[owner].slot;
  const std::uint32_t device = leading(node.owners().device(owner), length);
  if (node.owners().device_only()) {
    scores_.set_device(slot, position_ + device);
    return;
  }
  Score score{position_ + device, position_, {position_}};
  if (add_blocks(node, owner, length, score) == length) {
    mixed_.insert(slot);
    any_mixed_ = true;
  }
  scores_.set(slot, score);
}

void RadixWalk::go_on_mixed(const RadixNode& node, std::uint32_t length) {
  any_mixed_ = false;
  std::copy_n(mixed_.data, words_, leaving_.data);
  std::fill_n(mixed_.data, words_, 0);
  for (std::uint32_t i = 0; i < node.owners().size(); ++i) {
    const std::uint32_t slot = node.owners().all()[i].slot;
    if (!leaving_.contains(slot)) continue;
    Score score = scores_.score(slot);
    if (add_blocks(node, i, length, score) == length) {
      mixed_.insert(slot);
      any_mixed_ = true;
    }
    scores_.set(slot, score);
  }
}

void RadixWalk::finish() {
  std::size_t left = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    left += static_cast<std::size_t>(std::popcount(active_.data[w]) + std::popcount(mixed_.data[w]));
    if (active_.data[w] != 0) scores_.set_device(w * 64, active_.data[w], position_);
  }
  if (stopped_ && left == 1 && position_ < locals_.size()) scores_.set_inexact();
}

}  // namespace ashlar::index
