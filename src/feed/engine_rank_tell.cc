// EngineRank: what is told of a change, as an event or to an index.
#include <algorithm>
#include <utility>

#include "base/append_each.h"
#include "feed/engine_rank.h"

namespace ashlar::feed {

using events::BlockName;
using events::KvEvent;
using events::KvEventKind;

namespace {

// Hashes of group 0 become those of its own.
void move_to_group(KvEvent& event, std::uint32_t group) {
  event.hash = event.hash.in_group(group);
  if (event.has_parent) event.parent_bits = event.parent_bits.in_group(group);
  event.root_bits = event.root_bits.in_group(group);
}

}  // namespace

void EngineRank::tell_run(const EngineRun& run, std::span<const BlockName> names,
                          const std::optional<BlockName>& parent_name, bool is_indexed, ChangeOutput out) {
  if (out.events() != nullptr) return tell_run_events(run, names, parent_name, is_indexed, *out.events());
  IndexChanges& changes = *out.changes();
  if (!is_indexed) {
    changes.tracked_only += names.size();
    changes.tracked_tiers |= static_cast<std::uint8_t>(1u << run.tier);
    return;
  }
  const std::size_t first = changes.blocks.size();
  const tokens::BlockHashes* const hashes = content_.blocks.data();
  append_each(changes.blocks, names.size(),
              [=](std::size_t i) { return events::StoredBlock{.local = hashes[i].local, .name = names[i]}; });
  append_each(changes.block_hashes, names.size(), [=](std::size_t i) { return hashes[i].sequence; });
  changes.changes.push_back({.kind = KvEventKind::kStored,
                             .tier = events::TierId(static_cast<std::uint8_t>(run.tier)),
                             .group = static_cast<std::uint16_t>(run.group),
                             .rank = rank_,
                             .first = static_cast<std::uint32_t>(first),
                             .count = static_cast<std::uint32_t>(names.size()),
                             .parent = content_.has_parent ? std::optional(content_.parent) : std::nullopt,
                             .parent_name = parent_name});
}

// They share most; each has its own hashes and names.
void EngineRank::tell_run_events(const EngineRun& run, std::span<const BlockName> names,
                                 const std::optional<BlockName>& parent_name, bool is_indexed,
                                 std::vector<KvEvent>& out) {
  const std::size_t before = out.size();
  KvEvent like;
  fill_shared(like, KvEventKind::kStored, run.group, content_.root, is_indexed, run.tier);
  like.has_parent = true;
  out.resize(before + names.size(), like);
  const std::span<KvEvent> events = std::span(out).subspan(before);
  for (std::size_t i = 0; i < names.size(); ++i) {
    KvEvent& event = events[i];
    event.hash = content_.blocks[i].sequence;
    event.sequence = next_sequence_ + i;
    event.name_bits = names[i].value();
    event.local_bits = content_.blocks[i].local.value();
  }
  for (std::size_t i = 1; i < names.size(); ++i) {
    KvEvent& event = events[i];
    event.parent_bits = content_.blocks[i - 1].sequence;
    event.set_parent_name(names[i - 1]);
  }
  KvEvent& first = events.front();
  first.set_parent(content_.has_parent ? std::optional(content_.parent) : std::nullopt);
  if (!content_.has_parent || parent_name) first.set_parent_name(parent_name);
  if (run.group != 0)
    for (KvEvent& event : events) move_to_group(event, run.group);
}

// Whether the last change is of that kind, group and tier.
bool EngineRank::continues(const IndexChanges& out, KvEventKind kind, std::uint32_t group,
                           std::size_t tier) const {
  if (out.changes.empty()) return false;
  const IndexChanges::Change& last = out.changes.back();
  return last.kind == kind && last.tier.value() == tier && last.group == group && last.rank == rank_;
}

void EngineRank::tell(KvEventKind kind, const EngineKey& key, const EngineBlock& held, std::size_t tier,
                      ChangeOutput out) {
  if (out.events() != nullptr) return tell_event(kind, key, held, tier, *out.events());
  ++next_sequence_;
  tell_index(kind, key, held, tier, *out.changes());
}

// A block continues the last run, and a name the last removal, where it can.
void EngineRank::tell_index(KvEventKind kind, const EngineKey& key, const EngineBlock& held, std::size_t tier,
                            IndexChanges& out) {
  const bool stores = kind == KvEventKind::kStored;
  if (!blocks_.sequence(held.sequence).indexed) {
    ++out.tracked_only;
    if (stores) out.tracked_tiers |= static_cast<std::uint8_t>(1u << tier);
    return;
  }
  const bool is_like_last = continues(out, kind, key.group, tier) &&
                            (!stores || (held.has_parent && out.block_hashes.back() == held.parent));
  out.make_room(kind, 1);
  if (!is_like_last) {
    IndexChanges::Change change{
        .kind = kind,
        .tier = events::TierId(static_cast<std::uint8_t>(tier)),
        .group = static_cast<std::uint16_t>(key.group),
        .rank = rank_,
        .first = static_cast<std::uint32_t>(stores ? out.blocks.size() : out.names.size())};
    if (stores && held.has_parent) {
      change.parent = held.parent;
      if (holds(key.group, held.parent_name, held.parent)) change.parent_name = held.parent_name;
    }
    out.changes.push_back(change);
  }
  ++out.changes.back().count;
  if (stores) {
    out.blocks.push_back({.local = held.local, .name = key.name});
    out.block_hashes.push_back(held.hash);
  } else {
    out.names.push_back(key.name);
    out.name_hashes.push_back(held.hash);
  }
}

// Written where it stays: a copy would wait for its own parts.
void EngineRank::tell_event(KvEventKind kind, const EngineKey& key, const EngineBlock& held, std::size_t tier,
                            std::vector<KvEvent>& out) {
  const std::uint64_t sequence = next_sequence_++;  // also if there is no memory for it: it is lost then
  static constexpr KvEvent kBlank;                  // clearing a new one takes g++ a loop
  out.push_back(kBlank);
  KvEvent& event = out.back();
  const EngineSequence& shared = blocks_.sequence(held.sequence);
  fill_shared(event, kind, key.group, shared.root, shared.indexed, tier);
  event.hash = held.hash;
  event.sequence = sequence;
  event.name_bits = key.name.value();
  event.local_bits = held.local.value();
  event.has_parent = held.has_parent;
  event.parent_bits = held.parent;
  if (kind == KvEventKind::kStored && shared.indexed) {
    if (!held.has_parent)
      event.set_parent_name(std::nullopt);
    else if (holds(key.group, held.parent_name, held.parent))
      event.set_parent_name(held.parent_name);
  }
  if (key.group != 0) move_to_group(event, key.group);
}

void EngineRank::fill_shared(KvEvent& event, KvEventKind kind, std::uint32_t group,
                             const tokens::SequenceHash& root, bool is_indexed, std::size_t tier) const {
  event.root_bits = root;
  event.metadata = rank_ | (is_indexed ? 0 : EngineIngest::kTrackedOnly);
  event.group = static_cast<std::uint16_t>(group);
  event.kind = kind;
  event.tier = events::TierId(static_cast<std::uint8_t>(tier));
  event.has_root = true;
  event.has_name = true;
  event.has_local = true;
}

}  // namespace ashlar::feed
