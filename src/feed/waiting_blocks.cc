#include "feed/waiting_blocks.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::feed {

std::size_t WaitingBlocks::expected_in(const OwnedEngineRun& run) {
  return static_cast<std::size_t>(std::ranges::count(run.gone, std::uint8_t{0}));
}

void WaitingBlocks::unlink(Places& table, const EngineKey& key, std::uint64_t number) {
  const auto at = table.find(key);
  if (at == table.end()) return;
  std::erase_if(at->second, [number](const Place& place) { return place.number == number; });
  if (at->second.empty()) table.erase(at);
}

OwnedEngineRun WaitingBlocks::take(std::uint64_t number) {
  const auto at = runs_.find(number);
  ASHLAR_CHECK(at != runs_.end(), "no run waits under this number");
  OwnedEngineRun run = std::move(at->second);
  runs_.erase(at);
  run_blocks_ -= run.names.size();
  expected_ -= expected_in(run);
  unlink(by_parent_, {run.head.group, *run.head.parent}, number);
  for (const events::BlockName name : run.names) unlink(by_name_, {run.head.group, name}, number);
  return run;
}

std::size_t WaitingBlocks::add_run(const EngineRun& run) {
  OwnedEngineRun owned(run);
  if (run.names.size() > limit_) return expected_in(owned);
  std::size_t dropped = 0;
  while (run_blocks_ + run.names.size() > limit_) dropped += expected_in(take(runs_.begin()->first));
  const std::uint64_t number = next_++;
  by_parent_[{run.group, *run.parent}].push_back({number, 0});
  for (std::size_t i = 0; i < run.names.size(); ++i) by_name_[run.key(i)].push_back({number, i});
  run_blocks_ += run.names.size();
  expected_ += expected_in(owned);
  runs_.emplace(number, std::move(owned));
  return dropped;
}

std::size_t WaitingBlocks::drop_placeholder(
    std::unordered_map<EngineKey, Placeholder, EngineKeyHash>::iterator at) {
  const auto count = static_cast<std::size_t>(std::ranges::count(at->second.tiers, true));
  placed_ -= count;
  placeholder_ages_.erase(at->second.number);
  placeholders_.erase(at);
  return count;
}

std::size_t WaitingBlocks::add_placeholder(const EngineKey& key, std::size_t tier) {
  if (limit_ == 0) return 1;
  auto at = placeholders_.find(key);
  std::size_t dropped = 0;
  if (at == placeholders_.end()) {
    if (placeholders_.size() >= limit_)
      dropped = drop_placeholder(placeholders_.find(placeholder_ages_.begin()->second));
    at = placeholders_.emplace(key, Placeholder{.number = next_++}).first;
    placeholder_ages_.emplace(at->second.number, key);
  }
  if (!at->second.tiers[tier]) ++placed_;
  at->second.tiers[tier] = true;
  return dropped;
}

std::vector<OwnedEngineRun> WaitingBlocks::take_runs(const EngineKey& parent) {
  std::vector<OwnedEngineRun> runs;
  const auto at = by_parent_.find(parent);
  if (at == by_parent_.end()) return runs;
  const std::vector<Place> places = at->second;
  for (const Place& place : places) runs.push_back(take(place.number));
  return runs;
}

WaitingBlocks::Tiers WaitingBlocks::take_placeholder(const EngineKey& key) {
  const auto at = placeholders_.find(key);
  if (at == placeholders_.end()) return {};
  const Tiers tiers = at->second.tiers;
  drop_placeholder(at);
  return tiers;
}

bool WaitingBlocks::expects(const EngineKey& key, std::size_t tier) const {
  const auto at = by_name_.find(key);
  if (at == by_name_.end()) return false;
  return std::ranges::any_of(at->second, [&](const Place& place) {
    const OwnedEngineRun& run = runs_.at(place.number);
    return run.head.tier == tier && run.gone[place.block] == 0;
  });
}

bool WaitingBlocks::cancel(const EngineKey& key, std::size_t tier) {
  if (const auto at = placeholders_.find(key); at != placeholders_.end() && at->second.tiers[tier]) {
    at->second.tiers[tier] = false;
    --placed_;
    if (std::ranges::count(at->second.tiers, true) == 0) drop_placeholder(at);
    return true;
  }
  const auto at = by_name_.find(key);
  if (at == by_name_.end()) return false;
  for (const Place& place : at->second) {
    OwnedEngineRun& run = runs_.at(place.number);
    if (run.head.tier != tier || run.gone[place.block] != 0) continue;
    run.gone[place.block] = 1;
    --expected_;
    return true;
  }
  return false;
}

std::size_t WaitingBlocks::cancel_tier(std::size_t tier) {
  std::size_t count = 0;
  for (auto at = runs_.begin(); at != runs_.end();) {
    const std::uint64_t number = at->first;
    const bool its = at->second.head.tier == tier;
    ++at;
    if (its) count += expected_in(take(number));
  }
  for (auto at = placeholders_.begin(); at != placeholders_.end();) {
    const auto here = at++;
    if (!here->second.tiers[tier]) continue;
    here->second.tiers[tier] = false;
    --placed_;
    ++count;
    if (std::ranges::count(here->second.tiers, true) == 0) drop_placeholder(here);
  }
  return count;
}

void WaitingBlocks::clear() {
  runs_.clear();
  by_parent_.clear();
  by_name_.clear();
  placeholders_.clear();
  placeholder_ages_.clear();
  run_blocks_ = expected_ = placed_ = 0;
}

}  // namespace ashlar::feed
