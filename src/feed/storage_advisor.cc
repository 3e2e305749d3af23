// Heat. A block's heat is the sum of its uses, each halved for every half-life since. It is stored as of the
// block's last use, so an event updates one number, and decayed when it is read.
//
// Several workers may hold the same block in one place, a shared volume: each holder counts separately, and a
// group lists a block once per place.
#include "ashlar/feed/storage_advisor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <tuple>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "events/json_writer.h"

namespace ashlar::feed {

using events::KvEvent;
using events::KvEventKind;
using tokens::SequenceHash;

namespace {

constexpr std::size_t kRemembered = 1 << 16;  // names without a holder, whose return would be a re-store

constexpr std::size_t kRememberedPlaces = 1024;  // without blocks

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::string in_quotes(std::string_view text) {
  std::string out;
  events::append_quoted(out, text);
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

std::string human_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string_view tier_name(events::TierId tier) {
  static constexpr std::string_view kNames[] = {events::G1::kName, events::G2::kName, events::G3::kName,
                                                events::G4::kName, events::Remote::kName};
  return tier.value() < std::size(kNames) ? kNames[tier.value()] : "own";
}

// Smaller is faster; tiers of users are the slowest.
std::uint8_t tier_speed(events::TierId tier) {
  const auto at = std::ranges::find(events::kAllStorageTiers, events::StorageTier{tier.value()});
  return at == events::kAllStorageTiers.end()
             ? tier.value()
             : static_cast<std::uint8_t>(at - events::kAllStorageTiers.begin());
}

}  // namespace

std::string_view to_string(Advice::Action action) noexcept {
  switch (action) {
    case Advice::Action::kPromote:
      return "promote";
    case Advice::Action::kDemote:
      return "demote";
    case Advice::Action::kCoalesce:
      return "coalesce";
    case Advice::Action::kCompact:
      return "compact";
  }
  return "unknown";
}

std::string_view to_string(Advice::Basis basis) noexcept {
  switch (basis) {
    case Advice::Basis::kAccesses:
      return "accesses";
    case Advice::Basis::kRestores:
      return "restores and age";
    case Advice::Basis::kLayout:
      return "layout";
  }
  return "unknown";
}

std::string Advice::to_json() const {
  std::string out = "{\"action\":\"";
  out += to_string(action);
  out += "\",\"from\":" + in_quotes(from);
  if (!to.empty()) out += ",\"to\":" + in_quotes(to);
  if (group) out += ",\"group\":\"" + group->to_string() + "\"";
  out += ",\"bytes\":" + std::to_string(bytes) + ",\"heat\":" + number(heat) +
         ",\"idle_seconds\":" + number(idle_seconds);
  out += ",\"basis\":\"";
  out += to_string(basis);
  out += "\",\"reason\":" + in_quotes(reason) + ",\"blocks\":[";
  for (std::size_t i = 0; i < blocks.size(); ++i)
    out += (i == 0 ? "\"" : ",\"") + blocks[i].to_string() + "\"";
  return out + "]}";
}

Result<void> StorageAdvisor::Options::validate() const {
  const auto wrong = [](const char* field, double value, const char* want) {
    return make_error(ErrorCode::kInvalidArgument, "%s is %g; it must be %s", field, value, want);
  };
  if (!(half_life_seconds > 0)) return wrong("half_life_seconds", half_life_seconds, "above 0");
  if (!(hot_heat > 0)) return wrong("hot_heat", hot_heat, "above 0");
  if (!(cold_seconds >= 0)) return wrong("cold_seconds", cold_seconds, "0 or more");
  if (!(scattered > 0 && scattered <= 1)) return wrong("scattered", scattered, "above 0 and up to 1");
  if (coalesce_blocks < 2) return wrong("coalesce_blocks", static_cast<double>(coalesce_blocks), "2 or more");
  return {};
}

Result<std::unique_ptr<StorageAdvisor>> StorageAdvisor::create(const Options& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return std::unique_ptr<StorageAdvisor>(new StorageAdvisor(options));
}

// ---- listening

StorageAdvisor::PlaceId StorageAdvisor::place_of(const KvEvent& event,
                                                 std::span<const events::LocationName> names) {
  std::string name(tier_name(event.tier));
  if (event.location != 0) {
    const auto at = std::ranges::find(names, event.location, &events::LocationName::number);
    name = at != names.end() ? at->name : name + "/" + std::to_string(event.location);
  }
  const PlaceName key(event.tier.value(), std::move(name));
  const auto [at, fresh] = place_ids_.try_emplace(key);
  if (!fresh) return at->second;
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<PlaceId>(places_.size()));
    places_.emplace_back();
  }
  at->second = free_places_.back();
  free_places_.pop_back();
  Place& place = places_[at->second] = {.name = key.second, .tier = event.tier};
  if (const auto before = gone_places_.find(key); before != gone_places_.end()) {
    place.history = before->second;
    gone_places_.erase(before);
  }
  return at->second;
}

void StorageAdvisor::drop_place(PlaceId id) {
  const PlaceName key(places_[id].tier.value(), places_[id].name);
  if (gone_places_.size() >= kRememberedPlaces) gone_places_.clear();
  gone_places_[key] = places_[id].history;
  place_ids_.erase(key);
  places_[id] = {};
  free_places_.push_back(id);
}

void StorageAdvisor::put_on_shelf(Entry& entry) {
  Entry*& first = shelves_[{entry.first.worker, entry.first.tier}];
  entry.second.next = first;
  if (first != nullptr) first->second.before = &entry;
  first = &entry;
}

void StorageAdvisor::take_from_shelf(const Entry& entry) {
  const Live& live = entry.second;
  if (live.next != nullptr) live.next->second.before = live.before;
  if (live.before != nullptr) {
    live.before->second.next = live.next;
    return;
  }
  const auto shelf = shelves_.find({entry.first.worker, entry.first.tier});
  if (live.next != nullptr) {
    shelf->second = live.next;
  } else {
    shelves_.erase(shelf);
  }
}

// The event's value, else what was learned of the block or its parent, else the block itself.
SequenceHash StorageAdvisor::group_of(const KvEvent& event) {
  if (event.has_root) return event.root_bits;
  if (const auto at = known_.find(event.hash); at != known_.end()) return at->second.group;
  if (event.has_parent)
    if (const auto at = known_.find(event.parent_bits); at != known_.end()) return at->second.group;
  return event.hash;
}

void StorageAdvisor::store(const events::Worker& worker, const KvEvent& event, std::int64_t now,
                           std::span<const events::LocationName> names) {
  ++counters_.stored;
  const Holder holder{worker, event.tier, event.hash};
  remove(holder, Why::kReplaced, now);  // a stream announces it once; a snapshot may repeat it
  const SequenceHash group = group_of(event);
  const PlaceId place = place_of(event, names);
  Known& known = known_[event.hash];
  known.group = group;
  known.holders.push_back(holder);
  Block block{.hash = event.hash,
              .group = group,
              .parent = event.parent(),
              .bytes = event.has_parent_name ? 0 : event.bytes,
              .metadata = event.metadata,
              .stored_ns = now,
              .used_ns = now,
              .place = place};
  Place& at = places_[place];
  if (const auto before = gone_.find(holder); before != gone_.end()) {
    const Block& old = before->second.block;
    if (before->second.removed) {
      ++at.history.restored;
      block.heat = heat_at(old, now) + (basis() == Advice::Basis::kRestores ? 1 : 0);
    } else {
      block.heat = old.heat;
      block.used_ns = old.used_ns;
      block.stored_ns = old.stored_ns;
    }
    gone_.erase(before);
  }
  at.bytes += block.bytes;
  ++at.groups[group][event.hash];
  put_on_shelf(*blocks_.emplace(holder, Live{.block = block}).first);
}

void StorageAdvisor::remove(const Holder& holder, Why why, std::int64_t now) {
  const auto at = blocks_.find(holder);
  if (at == blocks_.end()) return;
  const Block& block = at->second.block;
  Place& place = places_[block.place];
  if (removal_hook_ != nullptr && why == Why::kRemoved)
    removals_.emplace_back(holder, holding_of(holder, block));
  if (removal_hook_ != nullptr && why == Why::kReset)
    unconfirmed_[holder.worker].try_emplace(holder, holding_of(holder, block));
  place.bytes -= block.bytes;
  if (why == Why::kRemoved) {
    ++counters_.removed;
    place.history.removed_bytes = removed_at(place, now) + static_cast<double>(block.bytes);
    place.history.removed_ns = now;
  }
  const auto group = place.groups.find(block.group);
  if (const auto member = group->second.find(block.hash); --member->second == 0) group->second.erase(member);
  if (group->second.empty()) place.groups.erase(group);
  // Places that the operator named stay: blocks may be moved there.
  if (place.groups.empty() && std::ranges::find(options_.order, place.name) == options_.order.end())
    drop_place(block.place);
  const auto known = known_.find(holder.hash);
  std::erase(known->second.holders, holder);
  if (known->second.holders.empty()) known_.erase(known);
  if (gone_.size() > kRemembered + blocks_.size()) gone_.clear();
  gone_[holder] = {.block = block, .removed = why == Why::kRemoved};
  take_from_shelf(*at);
  blocks_.erase(at);
}

void StorageAdvisor::remove_all(const events::Worker& worker, events::TierId tier, Why why,
                                std::int64_t now) {
  const bool all = tier == events::kAllTiers;
  for (auto at = shelves_.lower_bound({worker, all ? events::TierId(0) : tier});
       at != shelves_.end() && at->first.first == worker && (all || at->first.second == tier);) {
    const auto shelf = at++;  // removed with its last block
    for (Entry* entry = shelf->second; entry != nullptr;) {
      const Holder holder = entry->first;
      entry = entry->second.next;
      remove(holder, why, now);
    }
  }
}

double StorageAdvisor::faded(double value, std::int64_t since, std::int64_t now) const {
  return value * std::exp2(-std::max(0.0, seconds(now) - seconds(since)) / options_.half_life_seconds);
}

// A hit in one tier is a use of the block in every tier.
void StorageAdvisor::access(const KvEvent& event, std::int64_t now) {
  counters_.accesses += event.block;
  const auto known = known_.find(event.hash);
  if (known == known_.end()) return;
  for (const Holder& holder : known->second.holders) {
    Block& block = blocks_.at(holder).block;
    block.heat = heat_at(block, now) + event.block;
    block.used_ns = std::max(block.used_ns, now);
  }
}

void StorageAdvisor::on_events(const events::EventBatch& batch) {
  latest_ns_ = std::max(latest_ns_, batch.published_ns);
  incarnations_[batch.stream.worker] = batch.stream.incarnation;
  for (const KvEvent& event : batch.events) {
    switch (event.kind) {
      case KvEventKind::kStored:
        store(batch.stream.worker, event, batch.published_ns, batch.locations);
        break;
      case KvEventKind::kRemoved:
        remove({batch.stream.worker, event.tier, event.hash}, Why::kRemoved, batch.published_ns);
        break;
      case KvEventKind::kAccess:
        access(event, batch.published_ns);
        break;
      case KvEventKind::kCleared:
        remove_all(batch.stream.worker, event.tier, Why::kRemoved, batch.published_ns);
        break;
      case KvEventKind::kResync:
        break;
    }
  }
  if (batch.kind == events::BatchKind::kSnapshot && batch.part + 1 == batch.parts) {
    if (const auto waiting = unconfirmed_.find(batch.stream.worker); waiting != unconfirmed_.end()) {
      for (auto& [holder, holding] : waiting->second) removals_.emplace_back(holder, std::move(holding));
      unconfirmed_.erase(waiting);
    }
  }
  report_removals();
}

void StorageAdvisor::on_reset(const events::StreamId& stream) {
  ++counters_.resets;
  const auto [known, fresh] = incarnations_.try_emplace(stream.worker, stream.incarnation);
  remove_all(stream.worker, events::kAllTiers, Why::kReset, 0);
  if (known->second != stream.incarnation) unconfirmed_.erase(stream.worker);
  known->second = stream.incarnation;
}

void StorageAdvisor::set_removal_hook(RemovalHook* hook) {
  removal_hook_ = hook;
  if (hook == nullptr) unconfirmed_.clear();
}

void StorageAdvisor::report_removals() {
  // The hook may look around, so everything is settled first.
  std::vector<std::pair<Holder, BlockHolding>> gone;
  gone.swap(removals_);
  std::ranges::sort(
      gone, {}, [](const auto& one) { return std::tuple(one.first.hash, one.first.tier, one.first.worker); });
  for (auto& [holder, holding] : gone) {
    if (removal_hook_ == nullptr) return;
    if (blocks_.contains(holder)) continue;
    BlockRemoval removal{.holding = std::move(holding)};
    list(holder.hash, removal.left);
    if (const Result<void> heard = removal_hook_->on_removed(removal); !heard) {
      ++counters_.hook_failures;
      last_hook_error_ = heard.error().to_string();
    }
  }
}

// ---- looking up

BlockHolding StorageAdvisor::holding_of(const Holder& holder, const Block& block) const {
  return {.hash = holder.hash,
          .parent = block.parent,
          .group = block.group,
          .worker = holder.worker,
          .tier = holder.tier,
          .place = places_[block.place].name,
          .bytes = block.bytes,
          .metadata = block.metadata,
          .heat = heat_at(block, latest_ns_)};
}

void StorageAdvisor::list(const SequenceHash& hash, std::vector<BlockHolding>& out) const {
  const auto known = known_.find(hash);
  if (known == known_.end()) return;
  std::vector<std::pair<const Holder*, const Block*>> held;
  for (const Holder& holder : known->second.holders) held.emplace_back(&holder, &blocks_.at(holder).block);
  std::ranges::sort(held, {}, [&](const auto& one) {
    const Place& place = places_[one.second->place];
    return std::tuple(speed_of(place), place.name, one.first->worker);
  });
  for (const auto& [holder, block] : held) out.push_back(holding_of(*holder, *block));
}

std::vector<BlockHolding> StorageAdvisor::find(const SequenceHash& hash) const {
  std::vector<BlockHolding> out;
  list(hash, out);
  return out;
}

std::vector<BlockHolding> StorageAdvisor::group(const SequenceHash& prefix) const {
  const auto known = known_.find(prefix);
  const SequenceHash group = known == known_.end() ? prefix : known->second.group;
  std::set<SequenceHash> hashes;  // by position
  for (const auto& [name, id] : place_ids_)
    if (const auto at = places_[id].groups.find(group); at != places_[id].groups.end())
      for (const auto& [hash, holders] : at->second) hashes.insert(hash);
  std::vector<BlockHolding> out;
  for (const SequenceHash& hash : hashes) list(hash, out);
  return out;
}

void StorageAdvisor::check_invariants() const {
  std::size_t on_shelves = 0;
  for (const auto& [shelf, first] : shelves_) {
    ASHLAR_CHECK(first != nullptr && first->second.before == nullptr, "a shelf begins with its first block");
    for (const Entry* entry = first; entry != nullptr; entry = entry->second.next, ++on_shelves)
      ASHLAR_CHECK(Shelf(entry->first.worker, entry->first.tier) == shelf,
                   "a block is in another worker's list");
  }
  ASHLAR_CHECK(on_shelves == blocks_.size(), "%zu blocks are alive, %zu stand on shelves", blocks_.size(),
               on_shelves);
  std::vector<std::uint64_t> bytes(places_.size());
  for (const auto& [holder, live] : blocks_) {
    const Place& place = places_[live.block.place];
    const auto group = place.groups.find(live.block.group);
    ASHLAR_CHECK(group != place.groups.end() && group->second.contains(holder.hash),
                 "a place lists every block it has");
    ASHLAR_CHECK(known_.contains(holder.hash), "the name of a block that is alive is known");
    bytes[live.block.place] += live.block.bytes;
  }
  for (const auto& [name, id] : place_ids_)
    ASHLAR_CHECK(
        places_[id].bytes == bytes[id], "the blocks of a place add up to %llu bytes, counted are %llu",
        static_cast<unsigned long long>(bytes[id]), static_cast<unsigned long long>(places_[id].bytes));
  ASHLAR_CHECK(place_ids_.size() + free_places_.size() == places_.size(),
               "a place number is free or has a name");
}

// ---- advising

std::pair<std::size_t, std::uint8_t> StorageAdvisor::speed_of(const Place& place) const {
  const auto at = std::ranges::find(options_.order, place.name);
  return {static_cast<std::size_t>(at - options_.order.begin()), tier_speed(place.tier)};
}

std::vector<StorageAdvisor::PlaceId> StorageAdvisor::by_speed() const {
  std::vector<PlaceId> out;
  out.reserve(place_ids_.size());
  for (const auto& [name, id] : place_ids_) out.push_back(id);
  std::ranges::sort(out, [&](PlaceId a, PlaceId b) {
    return std::tuple(speed_of(places_[a]), places_[a].name) <
           std::tuple(speed_of(places_[b]), places_[b].name);
  });
  return out;
}

std::vector<Advice> StorageAdvisor::advise(std::int64_t now_ns) const {
  std::vector<Advice> out;
  const std::vector<PlaceId> speed = by_speed();
  // Blocks of a place by name: heat and idle time come from their holders.
  struct Use {
    double heat = 0;
    std::int64_t used_ns = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<std::unordered_map<SequenceHash, Use>> uses(places_.size());
  for (const auto& [holder, live] : blocks_) {
    const Block& block = live.block;
    Use& use = uses[block.place][block.hash];
    use.heat += heat_at(block, now_ns);
    use.used_ns = std::max(use.used_ns, block.used_ns);
    use.bytes = std::max(use.bytes, block.bytes);
  }
  const auto is_storage = [](const Place& place) {
    return place.tier.value() >= events::G3::kIndex && place.tier != events::kTierId<events::Remote>;
  };
  for (std::size_t at = 0; at < speed.size(); ++at) {
    const Place& place = places_[speed[at]];
    if (!is_storage(place)) continue;
    const auto neighbour = [&](int step) -> const Place* {
      for (std::size_t i = at + static_cast<std::size_t>(step); i < speed.size();
           i += static_cast<std::size_t>(step))
        if (is_storage(places_[speed[i]]) && speed_of(places_[speed[i]]) != speed_of(place))
          return &places_[speed[i]];
      return nullptr;
    };
    // Blocks not yet present, with their bytes.
    const auto move_to = [&](const Place& to, Advice advice) {
      const auto there = to.groups.find(*advice.group);
      if (there != to.groups.end())
        std::erase_if(advice.blocks, [&](const SequenceHash& hash) { return there->second.contains(hash); });
      if (advice.blocks.empty()) return;
      advice.bytes = 0;
      for (const SequenceHash& hash : advice.blocks) advice.bytes += uses[speed[at]].at(hash).bytes;
      advice.to = to.name;
      out.push_back(std::move(advice));
    };
    const Place* faster = neighbour(-1);
    const Place* slower = neighbour(1);
    for (const auto& [group, members] : place.groups) {
      Advice advice{.basis = basis(), .from = place.name, .group = group, .reason = {}};
      for (const auto& [hash, holders] : members) advice.blocks.push_back(hash);
      std::ranges::sort(advice.blocks);
      std::int64_t used = 0;
      for (const SequenceHash& hash : advice.blocks) {
        const Use& use = uses[speed[at]].at(hash);
        advice.heat += use.heat;
        advice.bytes += use.bytes;
        used = std::max(used, use.used_ns);
      }
      advice.heat /= static_cast<double>(advice.blocks.size());
      advice.idle_seconds = std::max(0.0, seconds(now_ns) - seconds(used));
      if (advice.heat >= options_.hot_heat && faster != nullptr) {
        advice.action = Advice::Action::kPromote;
        advice.reason = "heat " + number(advice.heat) + " per block, at least " + number(options_.hot_heat);
        move_to(*faster, advice);
      } else if (advice.idle_seconds >= options_.cold_seconds && slower != nullptr) {
        advice.action = Advice::Action::kDemote;
        advice.reason =
            "unused for " + number(advice.idle_seconds) + " s, at least " + number(options_.cold_seconds);
        move_to(*slower, advice);
      }
      const bool small = advice.bytes != 0 && advice.bytes / advice.blocks.size() < options_.small_object;
      if (small && advice.blocks.size() >= options_.coalesce_blocks) {
        advice.action = Advice::Action::kCoalesce;
        advice.basis = Advice::Basis::kLayout;
        advice.to.clear();
        advice.reason = std::to_string(advice.blocks.size()) + " objects of " +
                        human_bytes(advice.bytes / advice.blocks.size()) + " each, all of one prefix";
        out.push_back(std::move(advice));
      }
    }
    const double gone = removed_at(place, now_ns);
    const double all = static_cast<double>(place.bytes) + gone;
    if (gone >= static_cast<double>(options_.compact_bytes) && gone >= options_.scattered * all) {
      out.push_back({.action = Advice::Action::kCompact,
                     .basis = Advice::Basis::kLayout,
                     .from = place.name,
                     .bytes = place.bytes,
                     .reason = human_bytes(static_cast<std::uint64_t>(gone)) + " of " +
                               human_bytes(static_cast<std::uint64_t>(all)) + " were removed lately"});
    }
  }
  std::ranges::sort(out, [](const Advice& a, const Advice& b) {
    return std::tuple(a.action, -a.heat, -a.idle_seconds, a.from, a.group) <
           std::tuple(b.action, -b.heat, -b.idle_seconds, b.from, b.group);
  });
  return out;
}

std::size_t StorageAdvisor::act(std::span<const Advice> advice, AdviceHook& hook) {
  std::size_t done = 0;
  for (const Advice& one : advice) {
    if (const Result<void> acted = hook.on_advice(one); !acted) {
      ++counters_.hook_failures;
      last_hook_error_ = acted.error().to_string();
      continue;
    }
    ++done;
    if (one.action != Advice::Action::kCompact) continue;
    for (Place& place : places_)
      if (place.name == one.from) place.history.removed_bytes = 0;
    for (auto& [name, history] : gone_places_)
      if (name.second == one.from) history.removed_bytes = 0;
  }
  return done;
}

std::vector<StorageAdvisor::PlaceSummary> StorageAdvisor::places() const {
  std::vector<PlaceSummary> out;
  for (const PlaceId id : by_speed()) {
    const Place& place = places_[id];
    PlaceSummary summary{.name = place.name,
                         .tier = place.tier,
                         .groups = place.groups.size(),
                         .bytes = place.bytes,
                         .removed_bytes = static_cast<std::uint64_t>(removed_at(place, latest_ns_)),
                         .restored = place.history.restored};
    for (const auto& [group, members] : place.groups) summary.blocks += members.size();
    out.push_back(summary);
  }
  return out;
}

std::string StorageAdvisor::table() const {
  std::string out;
  char line[256];
  std::snprintf(line, sizeof line, "%-28s %-6s %10s %8s %12s %12s %9s\n", "place", "tier", "blocks", "groups",
                "bytes", "removed", "restored");
  out += line;
  for (const PlaceSummary& place : places()) {
    std::snprintf(line, sizeof line, "%-28.28s %-6s %10zu %8zu %12s %12s %9llu\n",
                  printable(place.name).c_str(), std::string(tier_name(place.tier)).c_str(), place.blocks,
                  place.groups, human_bytes(place.bytes).c_str(), human_bytes(place.removed_bytes).c_str(),
                  static_cast<unsigned long long>(place.restored));
    out += line;
  }
  out += "hotness from ";
  out += to_string(basis());
  out += "\n";
  return out;
}

}  // namespace ashlar::feed
