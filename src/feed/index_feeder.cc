// Entries are marked as indexed when they are gathered, so a child finds its parent within the same run;
// flush() unmarks a run that the index refused.
#include "ashlar/feed/index_feeder.h"

#include <algorithm>

#include "ashlar/base/check.h"
#include "ashlar/feed/engine_session.h"

namespace ashlar::feed {

using events::BlockName;
using events::KvEvent;
using events::KvEventKind;
using events::StoreVerdict;

void IndexFeeder::apply(std::span<const KvEvent> events) {
  for (const KvEvent& event : events) {
    ++counters_.events;
    const bool whole = event.kind == KvEventKind::kCleared || event.kind == KvEventKind::kResync;
    if (!whole && !EngineIngest::for_index(event)) {
      ++counters_.tracked_only;
      continue;
    }
    const std::uint32_t rank = EngineIngest::rank_of(event);
    apply(rank, ranks_[rank], event);
  }
  flush();
}

void IndexFeeder::apply(std::uint32_t rank, std::span<const KvEvent> events) {
  Rank& state = ranks_[rank];
  for (const KvEvent& event : events) {
    ++counters_.events;
    apply(rank, state, event);
  }
  flush();
}

void IndexFeeder::apply(std::uint32_t rank_number, Rank& rank, const KvEvent& event) {
  if (event.kind == KvEventKind::kAccess) return;
  if (event.kind == KvEventKind::kResync ||
      (event.kind == KvEventKind::kCleared && event.tier == events::kAllTiers))
    return clear(rank_number, rank);
  const std::size_t tier = event.tier.value();
  if (tier >= events::kStorageTiers) {
    ++counters_.other_tiers;
    return;
  }
  if (event.kind == KvEventKind::kCleared) {
    ++counters_.clears;
    for (auto at = rank.entries.begin(); at != rank.entries.end();) {
      const auto here = at++;
      here->second.held[tier] = 0;
      sync(rank_number, rank, here->first, here->second);
      if (!here->second.is_held()) forget(rank, here);
    }
    return;
  }
  const std::optional<Groups> bit = bit_of(rank_number, rank, event.group);
  if (!bit) {
    ++counters_.tracked_only;
    return;
  }
  if (event.kind == KvEventKind::kRemoved) {
    const auto at = rank.entries.find(event.name());
    if (at == rank.entries.end()) return;
    at->second.held[tier] &= ~*bit;
    sync(rank_number, rank, at->first, at->second);
    if (!at->second.is_held()) forget(rank, at);
    return;
  }
  const auto [at, added] = rank.entries.try_emplace(event.name());
  Entry& entry = at->second;
  if (added) {
    entry.hash = event.hash;
    entry.parent = event.parent_bits;
    entry.has_parent = event.has_parent;
    entry.group = event.group;
    rank.by_hash.emplace(event.hash, event.name());
  } else if (event.has_parent && !entry.has_parent && entry.group == event.group) {
    entry.parent = event.parent_bits;
    entry.has_parent = true;
  }
  if (const auto local = event.local(); local && !entry.has_local) {
    entry.local = *local;
    entry.has_local = true;
  }
  if (!entry.has_local) ++counters_.without_local;
  entry.held[tier] |= *bit;
  const bool before = entry.is_indexed();
  sync(rank_number, rank, at->first, entry);
  if (!before && entry.is_indexed()) adopt(rank_number, rank, entry.hash);
}

void IndexFeeder::adopt(std::uint32_t rank_number, Rank& rank, const tokens::SequenceHash& parent) {
  std::vector<tokens::SequenceHash> parents = {parent};
  while (!parents.empty()) {
    const tokens::SequenceHash hash = parents.back();
    parents.pop_back();
    std::vector<BlockName> names;
    const auto [first, last] = rank.orphans.equal_range(hash);
    for (auto at = first; at != last; ++at) names.push_back(at->second);
    rank.orphans.erase(first, last);
    for (const BlockName name : names) {
      Entry& entry = rank.entries.at(name);
      sync(rank_number, rank, name, entry);
      if (entry.is_indexed()) parents.push_back(entry.hash);
    }
  }
}

namespace {

using Links = std::unordered_multimap<tokens::SequenceHash, BlockName>;

Links::iterator find_link(Links& links, const tokens::SequenceHash& hash, BlockName name) {
  const auto [first, last] = links.equal_range(hash);
  for (auto at = first; at != last; ++at)
    if (at->second == name) return at;
  return links.end();
}

}  // namespace

std::optional<IndexFeeder::Groups> IndexFeeder::bit_of(std::uint32_t rank_number, Rank& rank,
                                                       std::uint16_t group) {
  const auto known = std::ranges::find(rank.groups, group);
  const auto number = static_cast<std::size_t>(known - rank.groups.begin());
  if (known != rank.groups.end()) return Groups{1} << number;
  if (rank.groups.size() >= 32) return std::nullopt;
  rank.groups.push_back(group);
  rank.required |= Groups{1} << number;
  for (auto& [name, entry] : rank.entries) sync(rank_number, rank, name, entry);
  return Groups{1} << number;
}

void IndexFeeder::clear(std::uint32_t rank_number, Rank& rank) {
  flush();
  ++counters_.clears;
  rank = {};
  sink_.clear({worker_, rank_number});
}

void IndexFeeder::forget(Rank& rank, Entries::iterator at) {
  ASHLAR_DCHECK(!at->second.is_indexed(), "the index still has the block that is forgotten");
  rank.by_hash.erase(find_link(rank.by_hash, at->second.hash, at->first));
  if (at->second.has_parent) {
    const auto orphan = find_link(rank.orphans, at->second.parent, at->first);
    if (orphan != rank.orphans.end()) rank.orphans.erase(orphan);
  }
  rank.entries.erase(at);
}

void IndexFeeder::sync(std::uint32_t rank_number, Rank& rank, BlockName name, Entry& entry) {
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) {
    const bool wanted = entry.has_local && entry.held[tier] == rank.required;
    if (wanted == entry.indexed[tier]) continue;
    entry.indexed[tier] = wanted;
    if (wanted) {
      store(rank_number, rank, name, entry, tier);
    } else {
      remove(rank_number, name, tier);
    }
  }
}

std::optional<BlockName> IndexFeeder::indexed_name(const Rank& rank, const tokens::SequenceHash& hash) const {
  const auto [first, last] = rank.by_hash.equal_range(hash);
  for (auto named = first; named != last; ++named)
    if (rank.entries.at(named->second).is_indexed()) return named->second;
  return std::nullopt;
}

void IndexFeeder::store(std::uint32_t rank_number, Rank& rank, BlockName name, const Entry& entry,
                        std::size_t tier) {
  const bool follows = !run_.empty() && run_rank_ == rank_number && run_tier_ == tier && entry.has_parent &&
                       entry.parent == run_end_;
  if (!follows) {
    flush();
    run_rank_ = rank_number;
    run_tier_ = tier;
    run_parent_.reset();
    run_position_ = entry.hash.position();
    if (run_position_ > 0) {
      if (entry.has_parent) run_parent_ = indexed_name(rank, entry.parent);
      if (!run_parent_) {
        ++counters_.verdicts[static_cast<std::size_t>(StoreVerdict::kUnknownParent)];
        rank.entries.at(name).indexed[tier] = false;
        if (entry.has_parent && find_link(rank.orphans, entry.parent, name) == rank.orphans.end())
          rank.orphans.emplace(entry.parent, name);
        return;
      }
    }
  }
  ASHLAR_DCHECK(removals_.empty(), "stores and removals are sent apart, in their order");
  run_.push_back({.local = entry.local, .name = name});
  run_end_ = entry.hash;
}

void IndexFeeder::remove(std::uint32_t rank_number, BlockName name, std::size_t tier) {
  if (!run_.empty() || (!removals_.empty() && (run_rank_ != rank_number || run_tier_ != tier))) flush();
  run_rank_ = rank_number;
  run_tier_ = tier;
  removals_.push_back(name);
}

void IndexFeeder::flush() {
  const events::Worker worker{worker_, run_rank_};
  const auto tier = static_cast<events::StorageTier>(run_tier_);
  if (!run_.empty()) {
    const StoreVerdict verdict = sink_.store({.worker = worker,
                                              .tier = tier,
                                              .parent = run_parent_,
                                              .start_position = run_position_,
                                              .blocks = run_});
    ++counters_.stores;
    ++counters_.verdicts[std::min(static_cast<std::size_t>(verdict), counters_.verdicts.size() - 1)];
    if (verdict == StoreVerdict::kApplied) {
      counters_.stored_blocks += run_.size();
    } else {
      Rank& rank = ranks_[run_rank_];
      for (const events::StoredBlock& block : run_)
        if (const auto at = rank.entries.find(block.name); at != rank.entries.end())
          at->second.indexed[run_tier_] = false;
    }
    run_.clear();
  }
  if (!removals_.empty()) {
    const std::size_t removed = sink_.remove(worker, tier, removals_);
    counters_.removed_blocks += removed;
    counters_.missing_removals += removals_.size() - removed;
    ASHLAR_DCHECK(removed <= removals_.size(), "an index removed %zu of %zu names", removed,
                  removals_.size());
    removals_.clear();
  }
}

void IndexFeeder::check_invariants() const {
  ASHLAR_CHECK(run_.empty() && removals_.empty(), "apply() sends everything that it gathers");
  for (const auto& [number, rank] : ranks_) check_invariants(rank);
}

void IndexFeeder::check_invariants(const Rank& rank) {
  ASHLAR_CHECK(
      rank.required == (rank.groups.size() == 32 ? ~Groups{0} : (Groups{1} << rank.groups.size()) - 1),
      "%zu groups have a bit each", rank.groups.size());
  ASHLAR_CHECK(rank.by_hash.size() == rank.entries.size(), "%zu blocks are found by hash, %zu by name",
               rank.by_hash.size(), rank.entries.size());
  for (const auto& [hash, name] : rank.by_hash)
    ASHLAR_CHECK(rank.entries.at(name).hash == hash, "a block is found under another block's hash");
  for (const auto& [parent, name] : rank.orphans) {
    const Entry& entry = rank.entries.at(name);
    ASHLAR_CHECK(entry.has_parent && entry.parent == parent, "an orphan waits for another block's parent");
  }
  for (const auto& [name, entry] : rank.entries) {
    ASHLAR_CHECK(entry.is_held(), "a block that no tier holds is forgotten");
    for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) {
      ASHLAR_CHECK((entry.held[tier] & ~rank.required) == 0, "an unknown group holds a block");
      ASHLAR_CHECK(!entry.indexed[tier] || (entry.has_local && entry.held[tier] == rank.required),
                   "the index has a block in tier %zu that some group does not hold", tier);
    }
  }
}

}  // namespace ashlar::feed
