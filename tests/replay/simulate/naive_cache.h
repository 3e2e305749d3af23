// NaiveCache: the tiers of one worker in lists and sets, written from the rules of simulate.h alone.
//
// Policies: "lru" and "fifo" (by entry into the tier). The front of a list goes first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <set>
#include <span>
#include <vector>

namespace ashlar::replay {

class NaiveCache {
 public:
  NaiveCache(std::array<std::size_t, 3> sizes, bool is_lru) : sizes_(sizes), is_lru_(is_lru) {}

  // Hits by tier.
  std::array<std::uint32_t, 3> serve(std::span<const std::uint32_t> blocks) {
    std::array<std::uint32_t, 3> hits = {};
    used_.clear();
    std::size_t at = 0;
    while (at < blocks.size() && fastest(blocks[at]) < 3) {
      std::vector<std::uint32_t> batch;
      if (fastest(blocks[at]) == 0) {
        while (at + batch.size() < blocks.size() && has(0, blocks[at + batch.size()]))
          batch.push_back(blocks[at + batch.size()]);
        hits[0] += static_cast<std::uint32_t>(batch.size());
      } else {
        const std::size_t most =
            std::max<std::size_t>({1, std::min<std::size_t>(4, sizes_[1] / 2), sizes_[1] / 8});
        const std::size_t limit = std::min(most, room(0));
        std::vector<std::uint32_t> below;
        std::vector<std::uint32_t> up;
        for (std::size_t i = at; i < blocks.size() && batch.size() < limit && fastest(blocks[i]) < 3; ++i) {
          const std::size_t tier = fastest(blocks[i]);
          ++hits[tier];
          batch.push_back(blocks[i]);
          if (tier < 2) held_[tier].insert(blocks[i]);
          if (tier == 2) below.push_back(blocks[i]);
          if (tier > 0) up.push_back(blocks[i]);
        }
        if (batch.empty()) break;
        enter(1, below);
        held_[1].insert(below.begin(), below.end());
        enter(0, up);
        // A victim that was held leaves now; in G1 it is used first, and stays.
        for (const std::uint32_t block : chosen_[1]) left_[1] += order_[1].remove(block);
        for (auto& chosen : chosen_) chosen.clear();
        for (auto& held : held_) held.clear();
      }
      touch(batch);
      used_.insert(batch.begin(), batch.end());
      at += batch.size();
    }
    std::vector<std::uint32_t> rest(blocks.begin() + static_cast<std::ptrdiff_t>(at), blocks.end());
    rest.resize(std::min(rest.size(), room(0)));
    enter(0, rest);
    used_.insert(rest.begin(), rest.end());
    const std::vector<std::uint32_t> in_use(blocks.begin(),
                                            blocks.begin() + static_cast<std::ptrdiff_t>(at + rest.size()));
    go_down(1, rest);
    used_.clear();
    if (is_lru_)
      for (auto i = in_use.rbegin(); i != in_use.rend(); ++i) renew(0, *i);
    return hits;
  }

  bool has_any(std::uint32_t block) const { return fastest(block) < 3; }
  // Blocks that entered and left each tier.
  const std::array<std::uint64_t, 3>& entered() const { return entered_; }
  const std::array<std::uint64_t, 3>& left() const { return left_; }

 private:
  // Into a tier and those below it, at most a sixteenth of both sides at a time.
  void go_down(std::size_t tier, const std::vector<std::uint32_t>& blocks) {
    if (tier == 3 || sizes_[tier] == 0) return;
    const std::size_t most = std::max<std::size_t>(1, std::min(sizes_[tier - 1], sizes_[tier]) / 16);
    std::vector<std::uint32_t> batch;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (tier == 1 || !has(tier, blocks[i])) batch.push_back(blocks[i]);
      if (batch.empty() || (batch.size() < most && i + 1 < blocks.size())) continue;
      std::erase_if(batch, [&](std::uint32_t block) { return has(tier, block); });
      enter(tier, batch);
      go_down(tier + 1, batch);
      batch.clear();
    }
  }
  bool has(std::size_t tier, std::uint32_t block) const {
    return std::find(order_[tier].begin(), order_[tier].end(), block) != order_[tier].end();
  }
  std::size_t fastest(std::uint32_t block) const {
    std::size_t tier = 0;
    while (tier < 3 && !has(tier, block)) ++tier;
    return tier;
  }
  void renew(std::size_t tier, std::uint32_t block) {
    auto& order = order_[tier];
    const auto found = std::find(order.begin(), order.end(), block);
    if (found != order.end()) order.splice(order.end(), order, found);
  }
  // A use in one tier is one in all.
  void touch(const std::vector<std::uint32_t>& run) {
    if (!is_lru_) return;
    for (auto i = run.rbegin(); i != run.rend(); ++i)
      for (std::size_t tier = 0; tier < 3; ++tier) renew(tier, *i);
  }
  std::size_t room(std::size_t tier) const {
    std::size_t kept = 0;
    for (const std::uint32_t block : order_[tier])
      kept += (tier == 0 && used_.contains(block)) || (tier < 2 && held_[tier].contains(block)) ? 1 : 0;
    return sizes_[tier] - kept;
  }
  // Room for all first, from the front of the list; then those that are not there enter.
  void enter(std::size_t tier, const std::vector<std::uint32_t>& blocks) {
    auto& order = order_[tier];
    for (auto i = order.begin(); order.size() + blocks.size() > sizes_[tier] && i != order.end();) {
      if (tier < 2 && held_[tier].contains(*i)) chosen_[tier].insert(*i);
      const bool stays = (tier == 0 && used_.contains(*i)) || (tier < 2 && held_[tier].contains(*i));
      left_[tier] += stays ? 0 : 1;
      i = stays ? std::next(i) : order.erase(i);
    }
    for (const std::uint32_t block : blocks) {
      if (has(tier, block)) continue;
      order.push_back(block);
      ++entered_[tier];
    }
    // What is released at once leaves from the last to the first.
    if (is_lru_)
      for (auto i = blocks.rbegin(); i != blocks.rend(); ++i) renew(tier, *i);
  }

  const std::array<std::size_t, 3> sizes_;
  const bool is_lru_;
  std::array<std::list<std::uint32_t>, 3> order_;
  std::array<std::uint64_t, 3> entered_ = {};
  std::array<std::uint64_t, 3> left_ = {};
  std::set<std::uint32_t> used_;                   // in G1, by this request
  std::array<std::set<std::uint32_t>, 2> held_;    // on the way up
  std::array<std::set<std::uint32_t>, 2> chosen_;  // victims among them
};

}  // namespace ashlar::replay
