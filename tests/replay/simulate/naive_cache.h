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
    std::vector<std::uint32_t> fresh;  // entered G1
    std::size_t at = 0;
    while (at < blocks.size()) {
      const std::size_t tier = fastest(blocks[at]);
      if (tier == 3) break;
      // The run of which this is the fastest tier.
      std::vector<std::uint32_t> run;
      while (at + run.size() < blocks.size() && fastest(blocks[at + run.size()]) == tier)
        run.push_back(blocks[at + run.size()]);
      if (tier > 0) {
        run.resize(std::min(run.size(), room(0)));
        if (tier == 2) run.resize(std::min(run.size(), room(1)));
        if (run.empty()) break;
      }
      touch(run);
      held_ = std::set<std::uint32_t>(run.begin(), run.end());
      if (tier == 2) enter(1, run);
      if (tier > 0) {
        enter(0, run);
        fresh.insert(fresh.end(), run.begin(), run.end());
      }
      held_.clear();
      used_.insert(run.begin(), run.end());
      hits[tier] += static_cast<std::uint32_t>(run.size());
      at += run.size();
    }
    std::vector<std::uint32_t> rest(blocks.begin() + static_cast<std::ptrdiff_t>(at), blocks.end());
    rest.resize(std::min(rest.size(), room(0)));
    const std::vector<std::uint32_t> entered = enter(0, rest);
    fresh.insert(fresh.end(), entered.begin(), entered.end());
    used_.insert(rest.begin(), rest.end());
    std::vector<std::uint32_t> in_use(blocks.begin(),
                                      blocks.begin() + static_cast<std::ptrdiff_t>(at + rest.size()));
    for (std::size_t tier = 1; tier < 3 && sizes_[tier] > 0; ++tier) {
      std::vector<std::uint32_t> absent;
      for (const std::uint32_t block : tier == 1 ? fresh : entered_g2_)
        if (!has(tier, block)) absent.push_back(block);
      absent.resize(std::min(absent.size(), sizes_[tier]));
      enter(tier, absent);
    }
    entered_g2_.clear();
    used_.clear();
    if (is_lru_)
      for (auto i = in_use.rbegin(); i != in_use.rend(); ++i) renew(0, *i);
    return hits;
  }

 private:
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
  bool is_kept(std::size_t tier, std::uint32_t block) const {
    return (tier == 0 && used_.contains(block)) || (tier > 0 && held_.contains(block));
  }
  std::size_t room(std::size_t tier) const {
    std::size_t kept = 0;
    for (const std::uint32_t block : order_[tier]) kept += is_kept(tier, block) ? 1 : 0;
    return sizes_[tier] - kept;
  }
  // Room for all first; then those that are not there enter. Returns them.
  std::vector<std::uint32_t> enter(std::size_t tier, const std::vector<std::uint32_t>& blocks) {
    auto& order = order_[tier];
    for (auto i = order.begin(); order.size() + blocks.size() > sizes_[tier] && i != order.end();)
      i = is_kept(tier, *i) ? std::next(i) : order.erase(i);
    std::vector<std::uint32_t> entered;
    for (const std::uint32_t block : blocks) {
      if (has(tier, block)) continue;
      order.push_back(block);
      entered.push_back(block);
    }
    if (tier == 1) entered_g2_.insert(entered_g2_.end(), entered.begin(), entered.end());
    // What is released at once leaves from the last to the first.
    if (is_lru_)
      for (auto i = blocks.rbegin(); i != blocks.rend(); ++i) renew(tier, *i);
    return entered;
  }

  const std::array<std::size_t, 3> sizes_;
  const bool is_lru_;
  std::array<std::list<std::uint32_t>, 3> order_;
  std::set<std::uint32_t> used_;  // in G1, by this request
  std::set<std::uint32_t> held_;  // below, on the way up
  std::vector<std::uint32_t> entered_g2_;
};

}  // namespace ashlar::replay
