// The changes of an EngineIngest. Where the index held nothing of the rank at the start, and nothing waits, a
// change goes to it as it lies; else it takes the way of events.
#include <algorithm>
#include <optional>
#include <span>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "feed/feeder_rank.h"

namespace ashlar::feed {

using events::BlockName;
using events::KvEvent;
using events::KvEventKind;
using events::StoreVerdict;
using tokens::SequenceHash;

namespace {

// Appends the events of `count` blocks of a change, from `first` on, as an EngineIngest tells them.
void expand(const IndexChanges& changes, const IndexChanges::Change& change, std::size_t first,
            std::size_t count, std::vector<KvEvent>& out) {
  const bool stores = change.kind == KvEventKind::kStored;
  for (std::size_t i = first; i < first + count; ++i) {
    const std::size_t at = change.first + i;
    const SequenceHash& hash = stores ? changes.block_hashes[at] : changes.name_hashes[at];
    KvEvent event{.hash = hash.in_group(change.group)};
    event.kind = change.kind;
    event.tier = change.tier;
    event.group = change.group;
    event.set_name(stores ? changes.blocks[at].name : changes.names[at]);
    if (stores) {
      event.set_local(changes.blocks[at].local);
      const std::optional<SequenceHash> parent =
          i == 0 ? change.parent : std::optional(changes.block_hashes[at - 1]);
      const std::optional<BlockName> name = i == 0 ? change.parent_name : changes.blocks[at - 1].name;
      if (parent) event.set_parent(parent->in_group(change.group));
      if (!parent || name) event.set_parent_name(name);
    }
    out.push_back(event);
  }
}

}  // namespace

void IndexFeeder::apply(const IndexChanges& changes) {
  counters_.events += changes.tracked_only;
  counters_.tracked_only += changes.tracked_only;
  std::span<const IndexChanges::Change> left = changes.changes;
  while (!left.empty()) {
    const std::uint32_t number = left.front().rank;
    const auto other =
        std::ranges::find_if(left, [=](const IndexChanges::Change& change) { return change.rank != number; });
    const auto of_rank = static_cast<std::size_t>(other - left.begin());
    apply_changes(rank_of(number), changes, left.first(of_rank));
    left = left.subspan(of_rank);
  }
}

void IndexFeeder::apply(std::uint32_t number, const IndexChanges& changes) {
  apply_changes(rank_of(number), changes, changes.changes);
}

void IndexFeeder::apply_changes(FeederRank& rank, const IndexChanges& all,
                                std::span<const IndexChanges::Change> changes) {
  while (!changes.empty()) {
    if (changes.front().kind == KvEventKind::kCleared) {
      ++counters_.events;
      clear(rank);
      changes = changes.subspan(1);
      continue;
    }
    const auto cleared = std::ranges::find(changes, KvEventKind::kCleared, &IndexChanges::Change::kind);
    const auto before = static_cast<std::size_t>(cleared - changes.begin());
    apply_blocks(rank, all, changes.first(before));
    changes = changes.subspan(before);
  }
}

// Groups first, as in prepare().
void IndexFeeder::apply_blocks(FeederRank& rank, const IndexChanges& all,
                               std::span<const IndexChanges::Change> changes) {
  if (!rank.is_all_told) {
    rank.is_all_told = sink_.holds_nothing({worker_, rank.number});
    rank.source = changes.front().rank;
  }
  for (const IndexChanges::Change& change : changes) {
    counters_.events += change.count;
    if (rank.groups.size() != 1 || rank.groups.front() != change.group) bit_of(rank, change.group);
    // Two ranks of an engine that are one here may tell the same block.
    if (change.rank != rank.source) rank.is_all_told = false;
  }
  expanded_.clear();
  const auto apply_expanded = [&] {
    if (!expanded_.empty()) apply_needed(rank, expanded_);
    expanded_.clear();
  };
  for (const IndexChanges::Change& change : changes) {
    std::size_t done = 0;
    if (expanded_.empty()) done = send_change(rank, all, change);
    while (done < change.count) {
      const std::size_t count = std::min(change.count - done, kRound - expanded_.size());
      expand(all, change, done, count, expanded_);
      done += count;
      if (expanded_.size() == kRound) apply_expanded();
    }
    // What comes behind goes with them, unless it can go as it is.
    if (rank.groups.size() == 1) apply_expanded();
  }
  apply_expanded();
}

std::size_t IndexFeeder::send_change(FeederRank& rank, const IndexChanges& changes,
                                     const IndexChanges::Change& change) {
  if (!*rank.is_all_told || !is_simple(rank) || change.group != rank.groups.front()) return 0;
  const auto tier = static_cast<events::StorageTier>(change.tier.value());
  const events::Worker worker{worker_, rank.number};
  const bool removes = change.kind == KvEventKind::kRemoved;
  if (removes ? !rank.names.empty() : change.parent && !change.parent_name) return 0;  // the latter waits
  std::optional<BlockName> parent = change.parent_name;
  for (std::size_t sent = 0; sent < change.count;) {
    const std::size_t at = change.first + sent;
    const std::size_t count = std::min(change.count - sent, kRound);
    sent += count;
    if (removes) {
      counters_.removed_blocks += sink_.remove(worker, tier, std::span(changes.names).subspan(at, count));
      rank.is_fresh = false;
      continue;
    }
    const std::span<const events::StoredBlock> run = std::span(changes.blocks).subspan(at, count);
    const StoreVerdict verdict = sink_.store({.worker = worker,
                                              .tier = tier,
                                              .parent = parent,
                                              .start_position = changes.block_hashes[at].position(),
                                              .blocks = run});
    if (verdict != StoreVerdict::kApplied) return sent - count;
    note_applied(rank, run.size());
    parent = run.back().name;
  }
  return change.count;
}

}  // namespace ashlar::feed
