#include "ashlar/testing/index_oracle.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::testing {

using events::BlockName;
using events::BlocksStored;
using events::IndexSink;
using events::StorageTier;
using events::StoredBlock;
using events::StoreVerdict;
using events::Worker;
using events::WorkerId;
using index::IndexSizes;
using index::MidChainRemoval;
using index::Score;
using tokens::LocalHash;

namespace {

template <class Names>
bool in_no_tier(const Names& names) {
  return std::ranges::all_of(names, [](const auto& of_tier) { return of_tier.empty(); });
}

std::string describe(const Worker& worker) {
  return "worker " + std::to_string(worker.id.value()) + " rank " + std::to_string(worker.rank);
}

}  // namespace

IndexOracle::IndexOracle(MidChainRemoval mid_chain)
    : mid_chain_(mid_chain), paths_(1), assignment_(index::MatchScores::next_assignment()) {}

IndexOracle::Content IndexOracle::content_after(Content parent, LocalHash local) {
  const auto [at, is_new] = paths_[parent].longer.try_emplace(local, static_cast<Content>(paths_.size()));
  const Content content = at->second;
  if (is_new) paths_.push_back({parent, local, paths_[parent].length + 1, {}});
  ASHLAR_CHECK(parent < content, "content %zu has a number below that of its prefix %zu",
               std::size_t{content}, std::size_t{parent});  // dump() counts on that order
  return content;
}

std::optional<StoreVerdict> IndexOracle::fault_of(const BlocksStored& event) {
  if (event.blocks.empty()) return StoreVerdict::kEmpty;
  if (!is_known(event.tier)) return StoreVerdict::kUnknownTier;
  static const Cache kNothing;
  const auto holder = workers_.find(event.worker);
  const Cache& cache = holder == workers_.end() ? kNothing : holder->second;
  Content content = kStart;
  if (event.parent) {
    const auto parent = cache.meanings.find(*event.parent);
    if (parent == cache.meanings.end()) return StoreVerdict::kUnknownParent;
    content = parent->second;
  }
  if (event.start_position && *event.start_position != paths_[content].length)
    return StoreVerdict::kWrongPosition;
  std::set<BlockName> seen;
  for (const StoredBlock& block : event.blocks) {
    content = content_after(content, block.local);
    if (!seen.insert(block.name).second) return StoreVerdict::kNameInUse;
    const auto meaning = cache.meanings.find(block.name);
    if (meaning != cache.meanings.end() && meaning->second != content) return StoreVerdict::kNameInUse;
  }
  return std::nullopt;
}

StoreVerdict IndexOracle::store(const BlocksStored& event) {
  if (const std::optional<StoreVerdict> fault = fault_of(event)) {
    switch (*fault) {
      case StoreVerdict::kEmpty:
        ++counters_.empty_stores;
        break;
      case StoreVerdict::kUnknownTier:
        ++counters_.unknown_tiers;
        break;
      case StoreVerdict::kUnknownParent:
        ++counters_.unknown_parents;
        break;
      case StoreVerdict::kWrongPosition:
        ++counters_.wrong_positions;
        break;
      case StoreVerdict::kNameInUse:
        ++counters_.names_in_use;
        break;
      case StoreVerdict::kApplied:
      case StoreVerdict::kFull:
        break;
    }
    return *fault;
  }
  const auto [holder, is_new] = workers_.try_emplace(event.worker);
  Cache& cache = holder->second;
  Content content = event.parent ? cache.meanings.at(*event.parent) : kStart;
  for (const StoredBlock& block : event.blocks) {
    content = content_after(content, block.local);
    cache.meanings[block.name] = content;
    ++counters_.stored;
    if (!cache.held[content][static_cast<std::size_t>(event.tier)].insert(block.name).second)
      ++counters_.repeated;
  }
  ASHLAR_CHECK(!event.start_position || paths_[content].length == *event.start_position + event.blocks.size(),
               "%zu blocks from position %u end at %u", event.blocks.size(), *event.start_position,
               paths_[content].length);
  if (is_new) renumber_slots();
  return StoreVerdict::kApplied;
}

events::BlockPresence IndexOracle::presence_of(const Cache& cache, BlockName name, Content content) const {
  events::BlockPresence found{name, paths_[content].last, paths_[content].length - 1, 0};
  const Names& names = cache.held.at(content);
  for (std::size_t tier = 0; tier < names.size(); ++tier)
    if (names[tier].contains(name)) found.tiers |= static_cast<std::uint8_t>(1u << tier);
  return found;
}

bool IndexOracle::presence(const Worker& worker, std::span<const BlockName> names,
                           std::span<events::BlockPresence> out) const {
  const auto holder = workers_.find(worker);
  for (std::size_t i = 0; i < names.size(); ++i) {
    out[i] = {.name = names[i]};
    if (holder == workers_.end()) continue;
    const auto meaning = holder->second.meanings.find(names[i]);
    if (meaning != holder->second.meanings.end())
      out[i] = presence_of(holder->second, names[i], meaning->second);
  }
  return true;
}

bool IndexOracle::list(const Worker& worker, std::vector<events::BlockPresence>& out) const {
  const auto holder = workers_.find(worker);
  if (holder == workers_.end()) return true;
  for (const auto& [name, content] : holder->second.meanings)
    out.push_back(presence_of(holder->second, name, content));
  std::ranges::sort(out, {}, &events::BlockPresence::name);
  return true;
}

std::size_t IndexOracle::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  const auto holder = workers_.find(worker);
  if (holder == workers_.end() || !is_known(tier)) {
    counters_.unknown_removals += names.size();
    return 0;
  }
  std::size_t removed = 0;
  for (const BlockName name : names) removed += remove_name(holder->second, tier, name) ? 1 : 0;
  counters_.removed += removed;
  counters_.unknown_removals += names.size() - removed;
  if (holder->second.held.empty()) {
    workers_.erase(holder);
    renumber_slots();
  }
  return removed;
}

bool IndexOracle::remove_name(Cache& cache, StorageTier tier, BlockName name) {
  const auto meaning = cache.meanings.find(name);
  if (meaning == cache.meanings.end()) return false;
  const Content content = meaning->second;
  Names& names = cache.held.at(content);
  if (names[static_cast<std::size_t>(tier)].erase(name) == 0) return false;
  if (std::ranges::none_of(names, [&](const auto& of_tier) { return of_tier.contains(name); }))
    cache.meanings.erase(meaning);
  if (in_no_tier(names)) {
    cache.held.erase(content);
    if (mid_chain_ == MidChainRemoval::kOrphan) forget_behind(cache, content);
  }
  return true;
}

// Under this policy no block is held without its prefix, so the blocks held after a content are connected.
void IndexOracle::forget_behind(Cache& cache, Content content) {
  std::vector<Content> open = {content};
  while (!open.empty()) {
    const Path& path = paths_[open.back()];
    open.pop_back();
    for (const auto& [local, longer] : path.longer) {
      const auto held = cache.held.find(longer);
      if (held == cache.held.end()) continue;
      for (const std::set<BlockName>& of_tier : held->second)
        for (const BlockName name : of_tier) cache.meanings.erase(name);
      cache.held.erase(held);
      open.push_back(longer);
    }
  }
}

void IndexOracle::clear(const Worker& worker) {
  ++counters_.clears;
  if (workers_.erase(worker) != 0) renumber_slots();
}

void IndexOracle::remove_worker(WorkerId worker) {
  ++counters_.clears;
  if (std::erase_if(workers_, [&](const auto& entry) { return entry.first.id == worker; }) != 0)
    renumber_slots();
}

void IndexOracle::renumber_slots() {
  slots_.clear();
  for (const auto& [worker, cache] : workers_) slots_.push_back(worker);
  assignment_ = index::MatchScores::next_assignment();
}

void IndexOracle::find_matches(std::span<const LocalHash> locals, index::MatchScores& scores,
                               const index::FindOptions& options) const {
  scores.begin(assignment_, slots_);
  struct Walk {
    std::size_t slot = 0;
    const Cache* cache = nullptr;
    Score score;
  };
  std::vector<Walk> left;
  left.reserve(workers_.size());
  for (const auto& [worker, cache] : workers_) left.push_back({left.size(), &cache, {}});

  Content content = kStart;
  for (std::size_t position = 0; position < locals.size(); ++position) {
    const auto longer = paths_[content].longer.find(locals[position]);
    if (longer == paths_[content].longer.end()) break;
    content = longer->second;
    std::vector<Walk> still_left;
    for (Walk& walk : left) {
      const auto held = walk.cache->held.find(content);
      if (held == walk.cache->held.end()) {
        scores.set(walk.slot, walk.score);
        continue;
      }
      const auto fastest =
          static_cast<std::size_t>(*std::ranges::find_if(events::kAllStorageTiers, [&](StorageTier tier) {
            return !held->second[static_cast<std::size_t>(tier)].empty();
          }));
      if (fastest == 0 && walk.score.device_depth == walk.score.depth) ++walk.score.device_depth;
      ++walk.score.depth;
      ++walk.score.blocks[fastest];
      still_left.push_back(walk);
    }
    left.swap(still_left);
    if (left.empty()) break;
    if (options.early_exit && left.size() == 1) {
      if (position + 1 < locals.size()) scores.set_inexact();
      break;
    }
  }
  for (const Walk& walk : left) {
    const auto& blocks = walk.score.blocks;
    ASHLAR_CHECK(std::accumulate(blocks.begin(), blocks.end(), 0u) == walk.score.depth,
                 "the tiers of slot %zu add up to another depth than %u", walk.slot, walk.score.depth);
    scores.set(walk.slot, walk.score);
  }
}

void IndexOracle::dump(IndexSink& sink) const {
  for (const auto& [worker, cache] : workers_) dump_worker(worker, cache, sink);
}

void IndexOracle::dump_worker(const Worker& worker, const Cache& cache, IndexSink& sink) const {
  // The held contents and all their prefixes. A prefix has the smaller number.
  std::set<Content> needed;
  for (const auto& [held, names] : cache.held)
    for (Content at = held; at != kStart && needed.insert(at).second;) at = paths_[at].parent;

  std::unordered_map<Content, BlockName> a_name;
  std::vector<BlockName> placeholders;
  std::uint64_t unused = 0;
  for (const Content content : needed) {
    const Path& path = paths_[content];
    const auto send = [&](StorageTier tier, BlockName name) {
      const StoredBlock block{path.last, name};
      BlocksStored event{worker, tier, std::nullopt, path.length - 1, {&block, 1}};
      if (path.parent != kStart) event.parent = a_name.at(path.parent);
      sink.store(event);
      a_name[content] = name;
    };
    const auto held = cache.held.find(content);
    if (held == cache.held.end()) {
      while (cache.meanings.contains(BlockName(unused))) ++unused;
      send(StorageTier::kDevice, placeholders.emplace_back(unused++));
      continue;
    }
    for (const StorageTier tier : events::kAllStorageTiers)
      for (const BlockName name : held->second[static_cast<std::size_t>(tier)]) send(tier, name);
  }
  if (!placeholders.empty()) sink.remove(worker, StorageTier::kDevice, placeholders);
}

IndexSizes IndexOracle::sizes() const {
  IndexSizes sizes;
  sizes.workers = workers_.size();
  std::unordered_set<Content> contents;
  for (const auto& [worker, cache] : workers_) {
    for (const auto& [content, names] : cache.held) {
      contents.insert(content);
      for (const std::set<BlockName>& of_tier : names) sizes.blocks += of_tier.empty() ? 0 : 1;
    }
  }
  sizes.contents = contents.size();
  return sizes;
}

std::string IndexOracle::describe(Content content) const {
  constexpr std::uint32_t kShown = 8;  // of the last blocks
  std::vector<Content> shown;
  for (Content at = content; at != kStart && shown.size() < kShown; at = paths_[at].parent)
    shown.push_back(at);
  std::string text = "content [";
  if (paths_[content].length > kShown) text += "… ";
  for (auto at = shown.rbegin(); at != shown.rend(); ++at)
    text.append(std::to_string(paths_[*at].last.value())).append(" ");
  return text.append("] of ").append(std::to_string(paths_[content].length)).append(" blocks");
}

std::string difference(const IndexOracle& left, const IndexOracle& right) {
  using Content = IndexOracle::Content;
  // The number in `right` of every content of `left`; a prefix has the smaller number.
  constexpr Content kMissing = static_cast<Content>(-1);
  std::vector<Content> in_right(left.paths_.size(), kMissing);
  in_right[IndexOracle::kStart] = IndexOracle::kStart;
  for (Content content = 1; content < left.paths_.size(); ++content) {
    const IndexOracle::Path& path = left.paths_[content];
    if (in_right[path.parent] == kMissing) continue;
    const auto& longer = right.paths_[in_right[path.parent]].longer;
    if (const auto at = longer.find(path.last); at != longer.end()) in_right[content] = at->second;
  }
  for (const auto& [worker, cache] : right.workers_)
    if (!left.workers_.contains(worker)) return describe(worker) + " is only on the right";
  for (const auto& [worker, cache] : left.workers_) {
    const auto other = right.workers_.find(worker);
    if (other == right.workers_.end()) return describe(worker) + " is only on the left";
    for (const auto& [content, names] : cache.held) {
      const std::string what = describe(worker) + ", " + left.describe(content);
      const auto same = other->second.held.find(in_right[content]);
      if (same == other->second.held.end()) return what + " is only on the left";
      for (const StorageTier tier : events::kAllStorageTiers) {
        const auto i = static_cast<std::size_t>(tier);
        if (names[i] != same->second[i])
          return what + " has other names in the tier " + std::string(to_string(tier));
      }
    }
    if (cache.held.size() != other->second.held.size())
      return describe(worker) + " holds more on the right: " + std::to_string(other->second.held.size()) +
             " contents, not " + std::to_string(cache.held.size());
  }
  return {};
}

}  // namespace ashlar::testing
