// A run that no longer expects blocks may still be needed: its names lead from a parent to waiting children.
// keepers_ names one such run per name, `needed` counts its waiting names, and sweep() frees runs that reach
// zero.
#include "feed/waiting_blocks.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::feed {
namespace {

// Overhead: nodes and buckets of the tables.
constexpr std::size_t kRunBytes = 512;
constexpr std::size_t kBlockBytes = 256;
constexpr std::size_t kTextBytes = 32;

}  // namespace

std::size_t WaitingBlocks::bytes_of(const EngineRun& run) {
  std::size_t bytes = kRunBytes + run.names.size() * kBlockBytes +
                      run.needed_tokens().size() * sizeof(tokens::Token) + run.lora.size() + run.salt.size();
  // An array filled one by one may have twice the needed capacity.
  for (const events::EngineExtraKey& key : run.keys)
    bytes += 2 * sizeof(events::EngineExtraKey) + kTextBytes + key.value.size();
  return bytes;
}

void WaitingBlocks::begin_need(const EngineKey& key) {
  const auto keeper = keepers_.find(key);
  if (keeper != keepers_.end()) ++runs_.at(keeper->second).needed;
}

void WaitingBlocks::end_need(const EngineKey& key) {
  const auto keeper = keepers_.find(key);
  if (keeper != keepers_.end() && --runs_.at(keeper->second).needed == 0) idle_.push_back(keeper->second);
}

void WaitingBlocks::retire(std::uint64_t number, Run& run) {
  for (const events::BlockName name : run.owned.names) {
    const EngineKey key{run.owned.head.group, name};
    if (keepers_.try_emplace(key, number).second && is_needed(key)) ++run.needed;
  }
  if (run.needed == 0) idle_.push_back(number);
}

// A list instead of recursion: gone runs may form a long chain.
void WaitingBlocks::sweep() {
  while (!idle_.empty()) {
    const std::uint64_t number = idle_.back();
    idle_.pop_back();
    const auto at = runs_.find(number);
    if (at != runs_.end() && at->second.needed == 0) take(number);
  }
}

void WaitingBlocks::forget_place(const EngineKey& key, const Place& place) {
  const auto at = by_name_.find(key);
  at->second.erase(place);
  if (at->second.empty()) by_name_.erase(at);
}

WaitingBlocks::Run WaitingBlocks::take(std::uint64_t number) {
  const auto at = runs_.find(number);
  ASHLAR_CHECK(at != runs_.end(), "no run waits under number %llu", static_cast<unsigned long long>(number));
  Run run = std::move(at->second);
  const EngineRun& head = run.owned.head;
  run_blocks_ -= run.owned.names.size();
  expected_ -= run.expected;
  for (std::size_t i = 0; i < run.owned.names.size(); ++i) {
    const EngineKey key{head.group, run.owned.names[i]};
    if (run.owned.gone[i] == 0) forget_place(key, {head.tier, number, i});
    if (run.expected != 0) continue;  // no name needs it kept yet
    const auto keeper = keepers_.find(key);
    if (keeper != keepers_.end() && keeper->second == number) keepers_.erase(keeper);
  }
  runs_.erase(at);
  const EngineKey parent{head.group, *head.parent};
  const auto siblings = by_parent_.find(parent);
  siblings->second.erase(number);
  if (siblings->second.empty()) {
    by_parent_.erase(siblings);
    if (!is_needed(parent)) end_need(parent);
  }
  return run;
}

std::size_t WaitingBlocks::add_run(const EngineRun& run) {
  std::size_t expected = 0;
  for (std::size_t i = 0; i < run.names.size(); ++i) expected += run.is_gone(i) ? 0 : 1;
  const std::size_t bytes = bytes_of(run);
  if (run.names.size() > limit_ || bytes > budget_->limit()) return expected;
  std::size_t dropped = 0;
  const auto drop_oldest = [&] {
    dropped += take(runs_.begin()->first).expected;
    sweep();
  };
  while (run_blocks_ + run.names.size() > limit_) drop_oldest();
  ByteShare share = ByteShare::try_take(*budget_, bytes);
  while (!share.has_bytes() && !runs_.empty()) {
    drop_oldest();
    share = ByteShare::try_take(*budget_, bytes);
  }
  if (!share.has_bytes()) return dropped + expected;
  Run made(run, std::move(share));
  made.expected = expected;
  const std::uint64_t number = next_++;
  for (std::size_t i = 0; i < run.names.size(); ++i)
    if (!run.is_gone(i)) by_name_[run.key(i)].insert({run.tier, number, i});
  run_blocks_ += run.names.size();
  expected_ += made.expected;
  Run& added = runs_.emplace(number, std::move(made)).first->second;
  const EngineKey parent{run.group, *run.parent};
  if (!is_needed(parent)) begin_need(parent);
  by_parent_[parent].insert(number);
  if (added.expected == 0) retire(number, added);
  sweep();
  return dropped;
}

std::size_t WaitingBlocks::drop_placeholder(Table<Placeholder>::iterator at) {
  const EngineKey key = at->first;
  const auto count = static_cast<std::size_t>(std::ranges::count(at->second.tiers, true));
  placed_ -= count;
  placeholder_ages_.erase(at->second.number);
  placeholders_.erase(at);
  if (!is_needed(key)) end_need(key);
  sweep();
  return count;
}

std::size_t WaitingBlocks::add_placeholder(const EngineKey& key, std::size_t tier) {
  if (limit_ == 0) return 1;
  auto at = placeholders_.find(key);
  std::size_t dropped = 0;
  if (at == placeholders_.end()) {
    ByteShare share;
    if (placeholders_.size() < limit_) share = ByteShare::try_take(*budget_, kPlaceholderBytes);
    if (!share.has_bytes() && !placeholders_.empty()) {
      dropped = drop_placeholder(placeholders_.find(placeholder_ages_.begin()->second));
      share = ByteShare::try_take(*budget_, kPlaceholderBytes);
    }
    if (!share.has_bytes()) return dropped + 1;
    if (!is_needed(key)) begin_need(key);
    at = placeholders_.emplace(key, Placeholder{.number = next_++, .share = std::move(share)}).first;
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
  const std::vector<std::uint64_t> numbers(at->second.begin(), at->second.end());
  for (const std::uint64_t number : numbers) runs.push_back(take(number).owned);
  sweep();
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
  const auto oldest = at->second.lower_bound({.tier = tier});
  return oldest != at->second.end() && oldest->tier == tier;
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
  const auto oldest = at->second.lower_bound({.tier = tier});
  if (oldest == at->second.end() || oldest->tier != tier) return false;
  const Place place = *oldest;
  forget_place(key, place);
  Run& run = runs_.at(place.number);
  run.owned.gone[place.block] = 1;
  --expected_;
  if (--run.expected == 0) retire(place.number, run);
  sweep();
  return true;
}

std::size_t WaitingBlocks::cancel_tier(std::size_t tier) {
  std::size_t count = 0;
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, run] : runs_)
    if (run.owned.head.tier == tier) numbers.push_back(number);
  for (const std::uint64_t number : numbers) count += take(number).expected;
  sweep();
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

void WaitingBlocks::check_invariants() const {
  ASHLAR_CHECK(idle_.empty(), "runs that are no longer needed are swept before a call returns");
  ASHLAR_CHECK(run_blocks_ <= limit_ && placeholders_.size() <= limit_,
               "%zu blocks and %zu names wait, %zu may", run_blocks_, placeholders_.size(), limit_);
  std::size_t blocks = 0;
  std::size_t expected = 0;
  for (const auto& [number, run] : runs_) {
    blocks += run.owned.names.size();
    expected += run.expected;
    ASHLAR_CHECK(run.expected != 0 || run.needed != 0, "a run whose blocks are all gone is kept for a child");
    ASHLAR_CHECK(run.expected == static_cast<std::size_t>(std::ranges::count(run.owned.gone, 0)),
                 "%zu blocks of a run are expected, others are not gone", run.expected);
    const auto siblings = by_parent_.find({run.owned.head.group, *run.owned.head.parent});
    ASHLAR_CHECK(siblings != by_parent_.end() && siblings->second.contains(number),
                 "a run is found by the parent that it waits for");
  }
  ASHLAR_CHECK(blocks == run_blocks_ && expected == expected_,
               "%zu of %zu blocks are expected, counted: %zu of %zu", expected, blocks, expected_,
               run_blocks_);
  std::size_t places = 0;
  for (const auto& [key, of_name] : by_name_) places += of_name.size();
  ASHLAR_CHECK(places == expected, "%zu expected blocks are found by name, %zu are in runs", places,
               expected);
  std::size_t placed = 0;
  for (const auto& [key, placeholder] : placeholders_)
    placed += static_cast<std::size_t>(std::ranges::count(placeholder.tiers, true));
  ASHLAR_CHECK(placed == placed_ && placeholder_ages_.size() == placeholders_.size(),
               "%zu tiers wait for tokens, %zu are counted", placed, placed_);
}

void WaitingBlocks::clear() {
  runs_.clear();
  by_parent_.clear();
  by_name_.clear();
  keepers_.clear();
  placeholders_.clear();
  placeholder_ages_.clear();
  run_blocks_ = expected_ = placed_ = 0;
}

}  // namespace ashlar::feed
