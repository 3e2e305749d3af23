#include "index/concurrent/holdings.h"

#include <algorithm>

namespace ashlar::index::concurrent {
namespace {

std::size_t place_of(StorageTier tier) {
  return static_cast<std::size_t>(tier);
}

}  // namespace

const std::set<BlockName>& Holdings::names_of(Content content, StorageTier tier) const {
  static const std::set<BlockName> none;
  const auto held = held_.find(content);
  return held == held_.end() ? none : held->second[place_of(tier)];
}

std::vector<BlockName> Holdings::names_in(StorageTier tier) const {
  std::vector<BlockName> names;
  for (auto held = held_.rbegin(); held != held_.rend(); ++held)
    for (const BlockName name : held->second[place_of(tier)]) names.push_back(name);
  return names;
}

BlockName Holdings::any_name_of(Content content) const {
  for (const std::set<BlockName>& names : held_.at(content))
    if (!names.empty()) return *names.begin();
  return {};
}

std::size_t Holdings::prefix_of(const Path& path) const {
  std::size_t length = 0;
  while (length < path.size() && holds(path.contents[length])) ++length;
  return length;
}

void Holdings::store(Content content, StorageTier tier, BlockName name, std::vector<Change>& changes) {
  std::set<BlockName>& names = held_[content][place_of(tier)];
  if (names.empty()) changes.push_back({worker_, content, tier, true});
  names.insert(name);
  meanings_[name] = content;
}

void Holdings::remove(StorageTier tier, std::span<const BlockName> names, std::vector<Change>& changes) {
  for (const BlockName name : names) {
    const auto meaning = meanings_.find(name);
    if (meaning == meanings_.end()) continue;
    const Content content = meaning->second;
    Names& held = held_.at(content);
    if (held[place_of(tier)].erase(name) == 0) continue;
    if (std::ranges::none_of(held, [&](const auto& of_tier) { return of_tier.contains(name); }))
      meanings_.erase(meaning);
    if (held[place_of(tier)].empty()) changes.push_back({worker_, content, tier, false});
    if (!std::ranges::all_of(held, [](const auto& of_tier) { return of_tier.empty(); })) continue;
    held_.erase(content);
    if (mid_chain_ == MidChainRemoval::kOrphan) forget_behind(content, changes);
  }
}

void Holdings::clear(std::vector<Change>& changes) {
  while (!held_.empty()) forget(held_.begin()->first, changes);
}

void Holdings::forget(Content content, std::vector<Change>& changes) {
  const auto held = held_.find(content);
  for (const StorageTier tier : kAllStorageTiers) {
    const std::set<BlockName>& names = held->second[place_of(tier)];
    if (!names.empty()) changes.push_back({worker_, content, tier, false});
    for (const BlockName name : names) meanings_.erase(name);
  }
  held_.erase(held);
}

void Holdings::forget_behind(Content content, std::vector<Change>& changes) {
  // Longer paths have larger numbers.
  std::set<Content> gone = {content};
  for (auto held = held_.upper_bound(content); held != held_.end();) {
    const Content next = (held++)->first;
    if (!gone.contains(paths_->parent(next))) continue;
    gone.insert(next);
    forget(next, changes);
  }
}

}  // namespace ashlar::index::concurrent
