// Presence lies in the index. For the events at hand the feeder asks the index what the rank holds under
// their names, applies the events to these entries, sends the differences, and drops each entry that the
// index now tells. What stays: blocks without a parent or a local hash, blocks that some group of layers does
// not hold, and runs that the index refused. Where the sink cannot tell, all entries stay.
//
// Within one round entries are marked as indexed when they are gathered, so a child finds its parent within
// the same run; flush() unmarks a run that the index refused. At the start of a round nothing is gathered:
// what the sink tells is complete.
#include "ashlar/feed/index_feeder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/feed/engine_session.h"
#include "feed/feeder_rank.h"

namespace ashlar::feed {

using events::BlockName;
using events::BlockPresence;
using events::KvEvent;
using events::KvEventKind;
using events::StoreVerdict;
using tokens::SequenceHash;

namespace {

bool clears_all(const KvEvent& event) {
  return event.kind == KvEventKind::kResync ||
         (event.kind == KvEventKind::kCleared && event.tier == events::kAllTiers);
}
bool names_block(const KvEvent& event) {
  return event.kind == KvEventKind::kStored || event.kind == KvEventKind::kRemoved;
}
// Names and hashes of the same tokens are equal in all groups.
SequenceHash plain_hash(const KvEvent& event) {
  return event.group == 0 ? event.hash : event.hash.in_group(event.group);
}
SequenceHash plain_parent(const KvEvent& event) {
  return event.group == 0 ? event.parent_bits : event.parent_bits.in_group(event.group);
}
BlockName plain_name(const KvEvent& event) {
  return event.has_name ? event.name() : BlockName(plain_hash(event).chain());
}

}  // namespace

IndexFeeder::IndexFeeder(events::IndexSink& sink, events::WorkerId worker, std::size_t expected_blocks)
    : sink_(sink), worker_(worker) {
  if (expected_blocks == 0) return;
  ready_ = std::make_unique<FeederRank>(0);
  ready_->names.reserve(expected_blocks);
}
IndexFeeder::~IndexFeeder() = default;

FeederRank& IndexFeeder::rank_of(std::uint32_t number) {
  if (last_rank_ != nullptr && last_rank_->number == number) return *last_rank_;
  std::unique_ptr<FeederRank>& rank = ranks_[number];
  if (rank == nullptr) {
    rank = ready_ != nullptr ? std::move(ready_) : std::make_unique<FeederRank>(number);
    rank->number = number;
  }
  last_rank_ = rank.get();
  return *rank;
}

void IndexFeeder::apply(std::span<const KvEvent> events) {
  const auto is_needed = [](const KvEvent& event) {
    return event.kind == KvEventKind::kCleared || event.kind == KvEventKind::kResync ||
           EngineIngest::for_index(event);
  };
  counters_.events += events.size();
  while (!events.empty()) {
    const std::uint32_t number = EngineIngest::rank_of(events.front());
    // Usually all are of one rank, and needed: one pass tells.
    const std::uint32_t metadata = events.front().metadata;
    if (EngineIngest::for_index(events.front()) &&
        std::ranges::all_of(events, [=](const KvEvent& event) { return event.metadata == metadata; }))
      return apply_needed(rank_of(number), events);
    const auto of_rank = static_cast<std::size_t>(
        std::ranges::find_if(events,
                             [&](const KvEvent& event) { return EngineIngest::rank_of(event) != number; }) -
        events.begin());
    const std::span<const KvEvent> some = events.first(of_rank);
    events = events.subspan(of_rank);
    if (std::ranges::all_of(some, is_needed)) {
      apply_needed(rank_of(number), some);
      continue;
    }
    std::vector<KvEvent> needed;
    std::ranges::copy_if(some, std::back_inserter(needed), is_needed);
    counters_.tracked_only += some.size() - needed.size();
    apply_needed(rank_of(number), needed);
  }
}

void IndexFeeder::apply(std::uint32_t rank, std::span<const KvEvent> events) {
  counters_.events += events.size();
  apply_needed(rank_of(rank), events);
}

bool IndexFeeder::is_simple(const FeederRank& rank) const noexcept {
  return tells_ && rank.groups.size() == 1 && rank.entries.empty() && rank.orphans.empty();
}

void IndexFeeder::note_applied(FeederRank& rank, std::size_t blocks) noexcept {
  ++counters_.stores;
  ++counters_.verdicts[static_cast<std::size_t>(StoreVerdict::kApplied)];
  counters_.stored_blocks += blocks;
  rank.is_fresh = false;
}

void IndexFeeder::apply_needed(FeederRank& rank, std::span<const KvEvent> events) {
  while (!events.empty()) {
    if (const std::size_t sent = send_run(rank, events); sent != 0) {
      events = events.subspan(sent);
      continue;
    }
    std::size_t count = 0;
    while (count < std::min(events.size(), kRound) && !clears_all(events[count])) ++count;
    prepare(rank, events.first(count));
    for (const KvEvent& event : events.first(count)) apply(rank, event);
    flush();
    settle(rank);
    if (count < events.size() && clears_all(events[count])) {
      clear(rank);
      ++count;
    }
    events = events.subspan(count);
  }
}

// One group, and no block that waits: then all there is to know lies in the index. A store that it accepts
// leaves nothing to remember but names; without names a removal leaves nothing to forget. What it refuses
// takes the long way.
std::size_t IndexFeeder::send_run(FeederRank& rank, std::span<const KvEvent> events) {
  if (!is_simple(rank)) return 0;
  return events.front().kind == KvEventKind::kRemoved ? remove_run(rank, events) : store_run(rank, events);
}

std::size_t IndexFeeder::remove_run(FeederRank& rank, std::span<const KvEvent> events) {
  const KvEvent& first = events.front();
  if (!rank.names.empty() || first.tier.value() >= events::kStorageTiers) return 0;
  for (const KvEvent& event : events.first(std::min(events.size(), kRound))) {
    if (event.kind != KvEventKind::kRemoved || event.tier != first.tier || event.group != rank.groups.front())
      break;
    removals_.push_back(plain_name(event));
  }
  const std::size_t count = removals_.size();
  if (count == 0) return 0;
  counters_.removed_blocks +=
      sink_.remove({worker_, rank.number}, static_cast<events::StorageTier>(first.tier.value()), removals_);
  removals_.clear();
  rank.is_fresh = false;
  return count;
}

std::size_t IndexFeeder::store_run(FeederRank& rank, std::span<const KvEvent> events) {
  if (!begin_run(rank, events.front())) return 0;
  const std::uint16_t group = rank.groups.front();
  run_names_.clear();
  const KvEvent* last = nullptr;
  for (const KvEvent& event : events.first(std::min(events.size(), kRound))) {
    if (event.kind != KvEventKind::kStored || event.tier.value() != run_tier_ || !event.has_local ||
        event.group != group)
      break;
    if (last != nullptr && (!event.has_parent || event.parent_bits != last->hash)) break;
    const BlockName name = plain_name(event);
    if (event.has_name && !event.has_parent_name) {
      const std::uint64_t chain = plain_hash(event).chain();
      rank.names.prefetch(chain);
      run_names_.emplace_back(chain, name);
    }
    run_.push_back({.local = tokens::LocalHash(event.local_bits), .name = name});
    last = &event;
  }
  const std::size_t count = run_.size();
  if (count == 0) return 0;
  const StoreVerdict verdict = sink_.store({.worker = {worker_, rank.number},
                                            .tier = static_cast<events::StorageTier>(run_tier_),
                                            .parent = run_parent_,
                                            .start_position = run_position_,
                                            .blocks = run_});
  run_.clear();
  if (verdict != StoreVerdict::kApplied) return 0;
  for (const auto& [chain, name] : run_names_) rank.names.add(chain, name);
  note_applied(rank, count);
  return count;
}

// The rank, tier, parent and position of a run that begins with this event. False: the parent is not known
// for certain, or the index has the block already: then it may have all of them.
bool IndexFeeder::begin_run(FeederRank& rank, const KvEvent& first) {
  if (first.kind != KvEventKind::kStored || first.tier.value() >= events::kStorageTiers) return false;
  const SequenceHash hash = plain_hash(first);
  run_rank_ = rank.number;
  run_tier_ = first.tier.value();
  run_parent_.reset();
  run_position_ = hash.position();
  asked_.assign(1, plain_name(first));
  if (hash.position() != 0) {
    run_parent_ = first.parent_name();
    if (!run_parent_ && first.has_parent) run_parent_ = rank.names.only(plain_parent(first).chain());
    if (!run_parent_) return false;
    asked_.push_back(*run_parent_);
  }
  told_.resize(asked_.size());
  tells_ = sink_.presence({worker_, rank.number}, asked_, told_);
  if (!tells_ || told_[0].is_held()) return false;
  return !run_parent_ || (told_[1].is_held() && told_[1].position == plain_parent(first).position());
}

// Groups first: a block is present while all of them hold it, and those of the first round are known before
// anything is sent.
void IndexFeeder::prepare(FeederRank& rank, std::span<const KvEvent> events) {
  asked_.clear();
  asked_hashes_.clear();
  SequenceHash before;
  for (const KvEvent& event : events) {
    if (!names_block(event) || event.tier.value() >= events::kStorageTiers || !bit_of(rank, event.group))
      continue;
    const SequenceHash hash = plain_hash(event);
    asked_.push_back(plain_name(event));
    asked_hashes_.push_back(hash);
    if (event.kind == KvEventKind::kStored && event.has_parent && plain_parent(event) != before) {
      const SequenceHash parent = plain_parent(event);
      const auto ask = [&](BlockName name) {
        asked_.push_back(name);
        asked_hashes_.push_back(parent);
        return false;
      };
      if (const auto name = event.parent_name())
        ask(*name);
      else
        rank.names.any_of(parent.chain(), ask);
    }
    before = hash;
  }
  rank.is_fresh = false;
  load(rank, asked_, asked_hashes_);
}

void IndexFeeder::load(FeederRank& rank, std::span<const BlockName> names,
                       std::span<const SequenceHash> hashes) {
  if (!tells_ || names.empty()) return;
  told_.resize(names.size());
  tells_ = sink_.presence({worker_, rank.number}, names, told_);
  if (!tells_) return;
  for (std::size_t i = 0; i < names.size(); ++i) {
    FeederEntry* const entry = load(rank, told_[i]);
    if (entry != nullptr && !entry->has_hash && entry->position == hashes[i].position())
      entry->set_hash(hashes[i]);
  }
}

FeederEntry* IndexFeeder::load(FeederRank& rank, const BlockPresence& told) {
  auto at = rank.entries.find(told.name);
  if (at == rank.entries.end()) {
    if (!told.is_held()) return nullptr;
    at = rank.entries.try_emplace(told.name).first;
    FeederEntry& entry = at->second;
    entry.local = told.local;
    entry.has_local = true;
    entry.position = told.position;
    for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier)
      if (told.in_tier(static_cast<events::StorageTier>(tier))) entry.held[tier] = rank.required;
    rank.touched.push_back(told.name);
  }
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier)
    at->second.indexed[tier] = told.in_tier(static_cast<events::StorageTier>(tier));
  return &at->second;
}

void IndexFeeder::load_all(FeederRank& rank) {
  flush();
  if (!tells_) return;
  told_.clear();
  tells_ = sink_.list({worker_, rank.number}, told_);
  for (const BlockPresence& told : told_) load(rank, told);
}

void IndexFeeder::settle(FeederRank& rank) {
  for (const BlockName name : rank.touched) {
    const auto at = rank.entries.find(name);
    if (at == rank.entries.end()) continue;
    at->second.parent_name.reset();
    if (tells_ && at->second.is_settled(rank.required)) rank.drop(at);
  }
  rank.touched.clear();
}

void IndexFeeder::apply(FeederRank& rank, const KvEvent& event) {
  if (event.kind == KvEventKind::kAccess) return;
  const std::size_t tier = event.tier.value();
  if (tier >= events::kStorageTiers) {
    ++counters_.other_tiers;
    return;
  }
  if (event.kind == KvEventKind::kCleared) return clear_tier(rank, tier);
  const std::optional<FeederRank::Groups> bit = bit_of(rank, event.group);
  if (!bit) {
    ++counters_.tracked_only;
    return;
  }
  const BlockName name = plain_name(event);
  if (event.kind == KvEventKind::kRemoved) {
    const auto at = rank.entries.find(name);
    if (at != rank.entries.end()) {
      at->second.held[tier] &= ~*bit;
      sync(rank, at->first, at->second);
      if (at->second.is_held()) return;
      rank.drop(at);
    }
    rank.names.erase(plain_hash(event).chain(), name);
    return;
  }
  FeederEntry& entry = rank.entries.try_emplace(name).first->second;
  if (!entry.has_hash) entry.set_hash(plain_hash(event));
  if (event.has_parent && !entry.has_parent) {
    entry.parent = plain_parent(event);
    entry.has_parent = true;
  }
  entry.parent_name = event.parent_name();
  entry.names_parent |= event.has_parent_name;
  if (const auto local = event.local(); local && !entry.has_local) {
    entry.local = *local;
    entry.has_local = true;
  }
  if (!entry.has_local) ++counters_.without_local;
  entry.held[tier] |= *bit;
  const bool before = entry.is_indexed();
  sync(rank, name, entry);
  if (!before && entry.is_indexed()) adopt(rank, entry.hash, name);
}

void IndexFeeder::adopt(FeederRank& rank, const SequenceHash& parent, BlockName parent_name) {
  std::vector<std::pair<SequenceHash, BlockName>> parents = {{parent, parent_name}};
  while (!parents.empty() && !rank.orphans.empty()) {
    const auto [hash, known_as] = parents.back();
    parents.pop_back();
    std::vector<BlockName> names;
    const auto [first, last] = rank.orphans.equal_range(hash);
    for (auto at = first; at != last; ++at) names.push_back(at->second);
    rank.orphans.erase(first, last);
    for (const BlockName name : names) {
      FeederEntry& entry = rank.entries.at(name);
      entry.parent_name = known_as;
      sync(rank, name, entry);
      if (entry.is_indexed()) parents.emplace_back(entry.hash, name);
    }
  }
}

std::optional<std::uint32_t> IndexFeeder::bit_of(FeederRank& rank, std::uint16_t group) {
  using Groups = FeederRank::Groups;
  const auto known = std::ranges::find(rank.groups, group);
  const auto number = static_cast<std::size_t>(known - rank.groups.begin());
  if (known != rank.groups.end()) return Groups{1} << number;
  if (rank.groups.size() >= 32) return std::nullopt;
  // What the index has is held by the groups so far.
  if (!rank.groups.empty() && !rank.is_fresh) load_all(rank);
  rank.groups.push_back(group);
  rank.required |= Groups{1} << number;
  for (auto& [name, entry] : rank.entries) sync(rank, name, entry);
  flush();
  return Groups{1} << number;
}

void IndexFeeder::clear(FeederRank& rank) {
  ++counters_.clears;
  rank.clear();
  sink_.clear({worker_, rank.number});
}

void IndexFeeder::clear_tier(FeederRank& rank, std::size_t tier) {
  // Blocks that the index had before this feeder are of some group.
  const bool no_groups = rank.groups.empty();
  if (no_groups) bit_of(rank, 0);
  ++counters_.clears;
  load_all(rank);
  std::vector<BlockName> all;  // storing a block may load its parent
  for (const auto& [name, entry] : rank.entries) all.push_back(name);
  for (const BlockName name : all) {
    const auto at = rank.entries.find(name);
    at->second.held[tier] = 0;
    sync(rank, name, at->second);
    if (!at->second.is_held()) rank.drop(at);
  }
  // Of the names by hash those stay whose blocks do; all of them are among the entries now.
  std::vector<std::pair<std::uint64_t, BlockName>> names;
  rank.names.for_each([&](std::uint64_t chain, BlockName name) {
    if (rank.entries.contains(name)) names.emplace_back(chain, name);
  });
  rank.names.clear();
  for (const auto& [chain, name] : names) rank.names.add(chain, name);
  if (!no_groups) return;
  flush();
  settle(rank);
  rank.groups.clear();
  rank.required = 0;
}

void IndexFeeder::sync(FeederRank& rank, BlockName name, FeederEntry& entry) {
  rank.touched.push_back(name);
  for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) {
    const bool wanted = entry.has_local && entry.held[tier] == rank.required;
    if (wanted == entry.indexed[tier]) continue;
    if (wanted) {
      store(rank, name, entry, tier);
    } else {
      entry.indexed[tier] = false;
      remove(rank.number, name, tier);
    }
  }
}

std::optional<BlockName> IndexFeeder::indexed_parent(FeederRank& rank, const FeederEntry& child) {
  if (!child.has_parent) return std::nullopt;
  const SequenceHash& hash = child.parent;
  std::optional<BlockName> found;
  const auto is_it = [&](BlockName name) {
    if (!rank.entries.contains(name)) load(rank, std::span(&name, 1), std::span(&hash, 1));
    const auto at = rank.entries.find(name);
    if (at == rank.entries.end() || !at->second.is_indexed()) return false;
    const FeederEntry& entry = at->second;
    if (entry.position != hash.position() || (entry.has_hash && entry.hash != hash)) return false;
    found = name;
    return true;
  };
  if (!child.parent_name || !is_it(*child.parent_name)) rank.names.any_of(hash.chain(), is_it);
  return found;
}

void IndexFeeder::store(FeederRank& rank, BlockName name, FeederEntry& entry, std::size_t tier) {
  const bool follows = !run_.empty() && run_rank_ == rank.number && run_tier_ == tier && entry.has_parent &&
                       entry.parent == run_end_;
  if (!follows) {
    flush();
    const std::uint32_t position = entry.position;
    std::optional<BlockName> parent;
    if (position > 0) {
      parent = indexed_parent(rank, entry);
      if (!parent) {
        ++counters_.verdicts[static_cast<std::size_t>(StoreVerdict::kUnknownParent)];
        if (entry.has_parent && rank.find_orphan(entry.parent, name) == rank.orphans.end())
          rank.orphans.emplace(entry.parent, name);
        return;
      }
    }
    run_rank_ = rank.number;
    run_tier_ = tier;
    run_parent_ = parent;
    run_position_ = position;
  }
  ASHLAR_DCHECK(removals_.empty(), "stores and removals are sent apart, in their order");
  ASHLAR_DCHECK(entry.has_hash, "a block is stored by an event, which has its hash");
  entry.indexed[tier] = true;
  if (!entry.names_parent) rank.names.add(entry.hash.chain(), name);
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
      FeederRank& rank = rank_of(run_rank_);
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

std::size_t IndexFeeder::kept() const noexcept {
  std::size_t count = 0;
  for (const auto& [number, rank] : ranks_) count += rank->entries.size();
  return count;
}

void IndexFeeder::check_invariants() const {
  ASHLAR_CHECK(run_.empty() && removals_.empty(), "apply() sends everything that it gathers");
  for (const auto& [number, rank] : ranks_) check_invariants(*rank);
}

void IndexFeeder::check_invariants(const FeederRank& rank) const {
  using Groups = FeederRank::Groups;
  ASHLAR_CHECK(
      rank.required == (rank.groups.size() == 32 ? ~Groups{0} : (Groups{1} << rank.groups.size()) - 1),
      "%zu groups have a bit each", rank.groups.size());
  for (const auto& [parent, name] : rank.orphans) {
    const FeederEntry& entry = rank.entries.at(name);
    ASHLAR_CHECK(entry.has_parent && entry.parent == parent, "an orphan waits for another block's parent");
  }
  for (const auto& [name, entry] : rank.entries) {
    ASHLAR_CHECK(entry.is_held(), "a block that no tier holds is forgotten");
    ASHLAR_CHECK(!tells_ || !entry.is_settled(rank.required), "the index tells what is kept here");
    for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) {
      ASHLAR_CHECK((entry.held[tier] & ~rank.required) == 0, "an unknown group holds a block");
      ASHLAR_CHECK(!entry.indexed[tier] || (entry.has_local && entry.held[tier] == rank.required),
                   "the index has a block in tier %zu that some group does not hold", tier);
    }
  }
}

}  // namespace ashlar::feed
