// EngineRank: blocks that leave tiers: removals, clears, and the end of everything.
#include <algorithm>
#include <new>
#include <utility>

#include "feed/engine_rank.h"

namespace ashlar::feed {

using events::BlockName;
using events::EngineBatch;
using events::EngineEvent;
using events::KvEvent;
using events::KvEventKind;

template <class Tell>
void EngineRank::drop(const HeldBlocks::Found& found, std::size_t tier, Turn& turn, Tell&& tell) {
  EngineBlock& held = *found.block;
  held.set_tier(tier, false);
  if (tier == kDevice) held.copies = 0;
  --present_;
  ++turn.counters.removed;
  tell(held);
  if (held.tiers == 0) blocks_.erase(found);
}

void EngineRank::drop_all(const EngineKey& key, const HeldBlocks::Found& found, std::size_t tier,
                          Turn& turn) {
  drop(found, tier, turn,
       [&](const EngineBlock& held) { tell(KvEventKind::kRemoved, key, held, tier, turn.out); });
}

void EngineRank::on_removed(const EngineBatch& batch, const EngineEvent& event, std::size_t tier,
                            const NamesAhead& ahead, Turn& turn) {
  const std::uint32_t group = event.group.value_or(0);
  std::span<const BlockName> names = batch.names_of(event);
  if (names.size() <= EngineLookahead::kMost) return remove(names, group, tier, ahead, turn);
  numbers_.resize(EngineLookahead::kMost);
  while (!names.empty()) {
    const std::span<const BlockName> some = names.first(std::min(names.size(), EngineLookahead::kMost));
    const std::span<const HeldBlocks::Probe> probes = look_ahead(group, some);
    blocks_.prefetch_records(probes, std::span(numbers_).first(some.size()));
    remove(some, group, tier, {.probes = probes, .numbers = numbers_}, turn);
    names = names.subspan(some.size());
  }
}

void EngineRank::remove(std::span<const BlockName> names, std::uint32_t group, std::size_t tier,
                        const NamesAhead& ahead, Turn& turn) {
  if (turn.out.events() == nullptr) return remove_for_index(names, group, tier, ahead, turn);
  remove_each(names, group, tier, ahead, turn, [&](const HeldBlocks::Found& found) {
    drop_all({group, found.block->name}, found, tier, turn);
  });
}

// The names are written where they stay; what was written is told, also when there is no memory for the rest.
void EngineRank::remove_for_index(std::span<const BlockName> names, std::uint32_t group, std::size_t tier,
                                  const NamesAhead& ahead, Turn& turn) {
  IndexChanges& out = *turn.out.changes();
  out.make_room(KvEventKind::kRemoved, names.size());
  const std::size_t first = out.names.size();
  out.names.resize(first + names.size());
  out.name_hashes.resize(first + names.size());
  std::size_t end = first;
  const auto finish = [&]() noexcept {
    out.names.resize(end);
    out.name_hashes.resize(end);
    if (end == first) return;
    if (!continues(out, KvEventKind::kRemoved, group, tier)) {
      IndexChanges::Change& change = out.changes.emplace_back();
      change.kind = KvEventKind::kRemoved;
      change.tier = events::TierId(static_cast<std::uint8_t>(tier));
      change.group = static_cast<std::uint16_t>(group);
      change.rank = rank_;
      change.first = static_cast<std::uint32_t>(first);
    }
    out.changes.back().count += static_cast<std::uint32_t>(end - first);
  };
  try {
    remove_each(names, group, tier, ahead, turn, [&](const HeldBlocks::Found& found) {
      drop(found, tier, turn, [&](const EngineBlock& held) {
        ++next_sequence_;
        const bool is_indexed = blocks_.sequence(held.sequence).indexed;
        out.names[end] = held.name;
        out.name_hashes[end] = held.hash;
        end += is_indexed ? 1 : 0;
        out.tracked_only += is_indexed ? 0 : 1;
      });
    });
  } catch (const std::bad_alloc&) {
    finish();
    throw;
  }
  finish();
}

template <class Drop>
void EngineRank::remove_each(std::span<const BlockName> names, std::uint32_t group, std::size_t tier,
                             const NamesAhead& ahead, Turn& turn, Drop&& drop) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const EngineKey key{group, names[i]};
    const HeldBlocks::Found found = blocks_.look_up(key, ahead.probes[i], ahead.numbers[i]);
    EngineBlock* const at = found.block;
    if (at == nullptr || !at->in_tier(tier)) {
      if (waiting_.cancel(key, tier)) {
        ++turn.counters.cancelled;
      } else {
        ++turn.counters.unknown_removals;
        doubt_ = true;
      }
    } else if (tier == kDevice && at->copies > 1) {
      --at->copies;
      ++turn.counters.released;
    } else {
      drop(found);
    }
  }
}

void EngineRank::on_cleared(std::size_t tier, Turn& turn) {
  ++turn.counters.clears;
  ++turn.counters.tier_clears[tier];
  turn.counters.cancelled += waiting_.cancel_tier(tier);
  std::vector<std::pair<EngineKey, EngineBlock*>> held;
  blocks_.for_each([&](const EngineKey& key, EngineBlock& block) {
    if (block.in_tier(tier)) held.emplace_back(key, &block);
  });
  // Children before parents, in a deterministic order.
  std::ranges::sort(held, [](const auto& a, const auto& b) {
    if (const auto by = b.second->hash <=> a.second->hash; by != 0) return by < 0;
    return a.first < b.first;
  });
  for (const auto& [key, block] : held) drop_all(key, blocks_.look_up(key), tier, turn);
  if (tier == kDevice) doubt_ = false;
}

void EngineRank::clear(EngineIngestCounters& counters, ChangeOutput out) {
  counters.cancelled += waiting_.size();
  waiting_.clear();
  if (present_ == 0) return;
  counters.removed += present_;
  blocks_.clear();
  present_ = 0;
  const std::uint64_t sequence = next_sequence_++;
  if (IndexChanges* const changes = out.changes()) {
    changes->changes.push_back({.kind = KvEventKind::kCleared, .tier = events::kAllTiers, .rank = rank_});
    return;
  }
  KvEvent event;
  event.sequence = sequence;
  event.metadata = rank_;
  event.kind = KvEventKind::kCleared;
  event.tier = events::kAllTiers;
  out.events()->push_back(event);
}

}  // namespace ashlar::feed
