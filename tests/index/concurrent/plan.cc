#include "index/concurrent/plan.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::index::concurrent {

namespace {

constexpr std::array kCounters = {&IndexCounters::stored,          &IndexCounters::repeated,
                                  &IndexCounters::removed,         &IndexCounters::unknown_removals,
                                  &IndexCounters::unknown_parents, &IndexCounters::wrong_positions,
                                  &IndexCounters::names_in_use,    &IndexCounters::empty_stores,
                                  &IndexCounters::unknown_tiers,   &IndexCounters::full,
                                  &IndexCounters::clears};
static_assert(sizeof(IndexCounters) == kCounters.size() * sizeof(std::uint64_t));

}  // namespace

using testing::ClearCall;
using testing::RemoveCall;
using testing::RemoveWorkerCall;
using testing::StoreCall;

std::vector<Load> loads() {
  return {
      {.name = "TailsComeAndGo"},
      {.name = "BranchesSplitRuns", .extend = 10, .evict = 10, .longest_store = 200, .anchor = 20},
      {.name = "HolesComeAndGo", .extend = 15, .evict = 3, .cut = 12, .alias = 2},
      {.name = "WorkersComeAndGo", .extend = 12, .evict = 4, .clear = 2, .remove_worker = 2, .anchored = 0.3},
      {.name = "BlocksMoveBetweenTiers",
       .extend = 10,
       .evict = 6,
       .move = 10,
       .alias = 1,
       .lower_tiers = 0.3},
      // All is held throughout, in one tier or another.
      {.name = "FewBlocksChangeTiersAllTheTime",
       .extend = 1,
       .evict = 0,
       .move = 30,
       .faulty = 0,
       .anchored = 0,
       .workers = 2,
       .ranks = 1,
       .paths = {.stems = 1, .branches = 1, .stem_length = 6, .tail_length = 2}},
      {.name = "Everything",
       .extend = 20,
       .evict = 8,
       .cut = 6,
       .move = 6,
       .alias = 3,
       .clear = 1,
       .remove_worker = 1,
       .faulty = 2,
       .lower_tiers = 0.2,
       .longest_store = 100},
  };
}

std::ostream& operator<<(std::ostream& out, const Load& load) {
  return out << load.name;
}

Plan::Plan(const Paths& paths, const Load& load, std::vector<RunWorker> workers, MidChainRemoval mid_chain,
           std::size_t calls, std::uint64_t seed)
    : paths_(paths), load_(load), random_(seed), oracle_(mid_chain) {
  for (const RunWorker& who : workers) {
    const bool anchored = random_.chance(load.anchored);
    const std::size_t anchor = random_.between(load.anchor / 3, load.anchor);
    owned_.push_back({who, Holdings(paths, who.number, mid_chain), anchored, anchor,
                      random_.chance(0.5) ? 0 : who.number + 1});
  }
  add_first_stores();
  round_ = calls_.size();
  counters_[0] = oracle_.counters();
  while (calls_.size() < round_ + calls) add_random_call();
  back_ = calls_.size();
  counters_[1] = oracle_.counters();
  add_way_back();
  counters_[2] = oracle_.counters();
}

void Plan::add_counters(std::uint64_t whole_rounds, IndexCounters& sum) const {
  for (const auto field : kCounters)
    sum.*field += counters_[1].*field + whole_rounds * (counters_[2].*field - counters_[0].*field);
}

void Plan::add_first_stores() {
  for (Owned& owned : owned_) {
    for (const Path& path : paths_.stored()) {
      if (!owned.anchored && random_.chance(0.5)) continue;
      const std::size_t from = owned.holdings.prefix_of(path);
      const std::size_t count = std::min(path.size(), owned.anchor + random_.below(20));
      if (count <= from) continue;
      owned.first.push_back({calls_.size(), &path, from, count});
      add_store(owned, path, from, count - from, StorageTier::kDevice);
      for (std::size_t i = from; i < count; ++i) owned.kept.insert(name_of(owned, path.contents[i]));
    }
  }
}

void Plan::add_way_back() {
  for (Owned& owned : owned_) {
    std::vector<Change> changes;
    if (!owned.anchored) {
      owned.holdings.clear(changes);
      add(ClearCall{owned.who.worker}, std::move(changes));
    } else {
      for (const StorageTier tier : kAllStorageTiers) {
        std::vector<BlockName> names = owned.holdings.names_in(tier);
        if (tier == StorageTier::kDevice)
          std::erase_if(names, [&](BlockName name) { return owned.kept.contains(name); });
        if (!names.empty()) add_removal(owned, tier, std::move(names));
      }
    }
    for (const FirstStore& first : owned.first) {
      changes.clear();
      for (std::size_t i = first.from; i < first.to; ++i) {
        const Content content = first.path->contents[i];
        owned.holdings.store(content, StorageTier::kDevice, name_of(owned, content), changes);
      }
      add(testing::IndexCall(calls_[first.call].call), changes);
    }
  }
}

void Plan::add_random_call() {
  Owned& owned = owned_[random_.below(owned_.size())];
  const auto all = load_.extend + load_.evict + load_.cut + load_.move + load_.alias + load_.clear +
                   load_.remove_worker + load_.faulty;
  auto drawn = static_cast<unsigned>(random_.below(all));
  const auto is = [&](unsigned weight) {
    if (drawn < weight) return true;
    drawn -= weight;
    return false;
  };
  if (is(load_.extend)) return add_extension(owned);
  if (is(load_.evict)) return add_eviction(owned);
  if (is(load_.cut)) return add_cut(owned);
  if (is(load_.move)) return add_move(owned);
  if (is(load_.alias)) return add_alias(owned);
  if (is(load_.faulty)) return add_faulty_call(owned);
  const bool whole = is(load_.remove_worker);
  const auto is_meant = [&](const Owned& one) {
    return whole ? one.who.worker.id == owned.who.worker.id : &one == &owned;
  };
  for (const Owned& one : owned_)
    if (is_meant(one) && one.anchored) return;
  std::vector<Change> changes;
  for (Owned& one : owned_)
    if (is_meant(one)) one.holdings.clear(changes);
  if (whole) {
    add(RemoveWorkerCall{owned.who.worker.id}, std::move(changes));
  } else {
    add(ClearCall{owned.who.worker}, std::move(changes));
  }
  // The worker returns at once, perhaps behind another one in its slot.
  add_extension(owned);
}

void Plan::add_extension(Owned& owned) {
  const Path& path = any_path();
  std::size_t from = owned.holdings.prefix_of(path);
  if (from == path.size()) return;
  from -= std::min<std::size_t>(from, random_.below(3));  // some blocks once more
  const std::size_t count =
      random_.between(std::size_t{1}, std::min(path.size() - from, load_.longest_store));
  add_store(owned, path, from, count, any_tier());
}

void Plan::add_eviction(Owned& owned) {
  const Path& path = any_path();
  std::vector<BlockName> names;
  std::optional<StorageTier> tier;
  const std::size_t most = random_.between(std::size_t{1}, load_.longest_store);
  for (std::size_t i = path.size(); i-- > 0 && names.size() < most && !is_anchor(owned, i);) {
    const std::optional<StorageTier> holder = tier_of(owned, path.contents[i]);
    if (!holder) continue;
    if (!tier) tier = holder;
    for (const BlockName name : owned.holdings.names_of(path.contents[i], *tier)) names.push_back(name);
  }
  if (!names.empty()) add_removal(owned, *tier, std::move(names));
}

void Plan::add_cut(Owned& owned) {
  const Path& path = any_path();
  const std::size_t from = random_.below(path.size());
  const std::size_t to = std::min(path.size(), from + random_.between(1, 4));
  std::vector<BlockName> names;
  std::optional<StorageTier> tier;
  for (std::size_t i = from; i < to; ++i) {
    const std::optional<StorageTier> holder = tier_of(owned, path.contents[i]);
    if (!holder || is_anchor(owned, i)) continue;
    if (!tier) tier = holder;
    for (const BlockName name : owned.holdings.names_of(path.contents[i], *tier)) {
      names.push_back(name);
      if (random_.chance(0.3)) break;  // another name may stay
    }
  }
  if (!names.empty()) add_removal(owned, *tier, std::move(names));
}

void Plan::add_move(Owned& owned) {
  const Path& path = any_path();
  const std::size_t held = owned.holdings.prefix_of(path);
  if (held == 0) return;
  const std::size_t from = random_.below(held);
  const std::size_t count = random_.between(std::size_t{1}, std::min<std::size_t>(held - from, 20));
  const StorageTier to = kAllStorageTiers[random_.below(kStorageTiers)];
  const std::optional<StorageTier> source = tier_of(owned, path.contents[from]);
  add_store(owned, path, from, count, to);
  if (!source || *source == to) return;
  std::vector<BlockName> names;
  for (std::size_t i = from; i < from + count; ++i) {
    if (*source == StorageTier::kDevice && is_anchor(owned, i)) continue;
    for (const BlockName name : owned.holdings.names_of(path.contents[i], *source)) names.push_back(name);
  }
  if (!names.empty()) add_removal(owned, *source, std::move(names));
}

void Plan::add_alias(Owned& owned) {
  const Path& path = any_path();
  const std::size_t held = owned.holdings.prefix_of(path);
  if (held == 0) return;
  const std::size_t from = random_.below(held);
  add_store(owned, path, from, 1, any_tier(), random_.between(1, 2));
}

void Plan::add_faulty_call(Owned& owned) {
  const Path& path = any_path();
  const BlockName nobodys(random_.next() | 1);
  switch (random_.below(4)) {
    case 0:
      return add(
          StoreCall{owned.who.worker, any_tier(), nobodys, {}, {{path.locals[0], BlockName(random_.next())}}},
          {});
    case 1:
      return add(
          StoreCall{owned.who.worker, any_tier(), {}, 7, {{path.locals[0], BlockName(random_.next())}}}, {});
    case 2:
      return add(
          StoreCall{
              owned.who.worker, any_tier(), {}, {}, {{path.locals[0], nobodys}, {path.locals[0], nobodys}}},
          {});
    default:
      return add(RemoveCall{owned.who.worker, any_tier(), {nobodys}}, {});
  }
}

void Plan::add_store(Owned& owned, const Path& path, std::size_t from, std::size_t count, StorageTier tier,
                     std::uint64_t alias) {
  StoreCall call{owned.who.worker, tier, {}, {}, {}};
  if (from > 0) call.parent = owned.holdings.any_name_of(path.contents[from - 1]);
  if (random_.chance(0.3)) call.start_position = static_cast<std::uint32_t>(from);
  std::vector<Change> changes;
  for (std::size_t i = from; i < from + count; ++i) {
    const BlockName name = name_of(owned, path.contents[i], alias);
    call.blocks.push_back({path.locals[i], name});
    owned.holdings.store(path.contents[i], tier, name, changes);
  }
  add(std::move(call), std::move(changes));
}

void Plan::add_removal(Owned& owned, StorageTier tier, std::vector<BlockName> names) {
  std::vector<Change> changes;
  owned.holdings.remove(tier, names, changes);
  add(RemoveCall{owned.who.worker, tier, std::move(names)}, std::move(changes));
}

void Plan::add(testing::IndexCall call, std::vector<Change> changes) {
  const testing::CallAnswer answer = testing::apply(call, oracle_);
  const bool refused = answer.verdict.has_value() && *answer.verdict != StoreVerdict::kApplied;
  ASHLAR_CHECK(!refused || changes.empty(), "a planned call is refused: %s", to_string(call).c_str());
  calls_.push_back({std::move(call), std::move(changes), answer});
}

const Path& Plan::any_path() {
  return paths_.stored()[random_.below(paths_.stored().size())];
}

StorageTier Plan::any_tier() {
  if (!random_.chance(load_.lower_tiers)) return StorageTier::kDevice;
  return kAllStorageTiers[random_.between(std::size_t{1}, kStorageTiers - 1)];
}

std::optional<StorageTier> Plan::tier_of(const Owned& owned, Content content) {
  std::optional<StorageTier> found;
  for (const StorageTier tier : kAllStorageTiers)
    if (owned.holdings.holds(content, tier) && (!found || random_.chance(0.5))) found = tier;
  return found;
}

BlockName Plan::name_of(const Owned& owned, Content content, std::uint64_t alias) {
  return BlockName(Random((owned.naming << 40) + (alias << 36) + content).next());
}

}  // namespace ashlar::index::concurrent
