#include "ashlar/index/approximate_index.h"

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <ranges>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "base/entry_map.h"
#include "base/table_seed.h"
#include "index/adapters/content_trie.h"
#include "index/adapters/prediction_cache.h"
#include "index/adapters/prediction_list.h"
#include "index/adapters/without_predictions.h"

namespace ashlar::index {

Result<void> ApproximateOptions::validate() const {
  if (ttl <= Clock::Duration::zero() || ttl > kMaxTtl) {
    return make_error(ErrorCode::kInvalidArgument, "ttl is %lld ns; it must be above 0 and at most a year",
                      static_cast<long long>(ttl.count()));
  }
  if (clock == nullptr) return make_error(ErrorCode::kInvalidArgument, "clock is null");
  return {};
}

namespace detail {

namespace {

// Expirations per predict() or store(), besides twice the blocks of the call.
constexpr std::size_t kExpiredPerCall = 64;

constexpr std::uint8_t bit_of(StorageTier tier) noexcept {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(tier));
}

// Predictions of one worker that expire in one call to the inner index.
constexpr std::size_t kExpiredTogether = 128;

// A block of a prediction that the worker does not hold yet.
struct Fresh {
  Content content;
  StoredBlock block;
};

}  // namespace

struct PredictionLedger::State {
  State(IndexSink& index, const ApproximateOptions& chosen)
      : inner(index), options(chosen), salt(chosen.salt ? *chosen.salt : random_word()) {}

  std::int64_t bucket_now() const { return options.clock->now().time_since_epoch() / options.kBucket; }
  std::int64_t due_from_now() const {
    const Clock::Duration end = options.clock->now().time_since_epoch() + options.ttl;
    return (end + options.kBucket - Clock::Duration(1)) / options.kBucket;
  }

  Cache* find(const Worker& worker) const {
    const auto found = caches.find(worker);
    return found == caches.end() ? nullptr : found->second.get();
  }
  Cache& find_or_add(const Worker& worker) {
    if (Cache* const known = find(worker)) return *known;
    auto made = std::make_unique<Cache>();
    made->worker = worker;
    return *caches.emplace(worker, std::move(made)).first->second;
  }
  void forget_if_empty(Cache& cache) noexcept {
    if (!cache.held.empty()) return;
    caches.erase(Worker(cache.worker));
  }

  bool is_ours(const Cache& cache, BlockName name) const {
    const Meaning* const meaning = cache.names.find(name);
    return meaning != nullptr && meaning->tiers == 0;
  }

  // A name that the worker does not use now.
  BlockName fresh_name(const Cache& cache) {
    for (;;) {
      const BlockName name(spread_bits(salt + ++names_made));
      if (cache.names.find(name) == nullptr) return name;
    }
  }

  // The inner index's name for a content that the worker holds.
  static BlockName name_of(const Cache& cache, Content content) { return cache.held.find(content)->name; }

  void remove_ours(const Worker& worker, std::span<const BlockName> names) {
    if (names.empty()) return;
    const std::size_t removed = inner.remove(worker, StorageTier::kDevice, names);
    ours.removed += removed;
    ours.unknown_removals += names.size() - removed;
  }

  // Removes a prediction from the ledger; its name is still in the inner index.
  void forget_prediction(List::Id id) {
    const auto [owner, name, due, content, before, after] = list[id];
    list.remove(id);
    ASHLAR_DCHECK(owner->predicted != 0 && owner->held.find(content)->names == 0,
                  "a content is held for real or as predicted, never both");
    --owner->predicted;
    owner->names.erase(name);
    owner->held.erase(content);
    trie.release(content);
  }

  // Drops our predictions whose names the worker's call uses.
  template <class Names>
  void give_way(const Worker& worker, const Names& names) {
    Cache* const cache = find(worker);
    if (cache == nullptr || cache->predicted == 0) return;
    for (const BlockName name : names) {
      if (!is_ours(*cache, name)) continue;
      const List::Id id = cache->held.find(cache->names.find(name)->content)->prediction;
      forget_prediction(id);
      remove_ours(worker, std::span(&name, 1));
      ++counters.dropped;
      if (cache->predicted == 0) break;
    }
    forget_if_empty(*cache);
  }

  bool trie_has_room(std::size_t blocks) const noexcept {
    return blocks <= ContentTrie::kMaxContents - trie.size();
  }

  // Allocates all memory that learn() may need, and leaves the event's contents in `path`. Requires: `path`
  // is empty.
  void prepare_to_learn(Cache& cache, const BlocksStored& event);
  void learn(Cache& cache, const BlocksStored& event);
  // Undoes the preparation of a call that is not applied.
  void unprepare(const Worker& worker) noexcept;
  void unlearn(Cache& cache, StorageTier tier, BlockName name) noexcept;
  void add_to_several(Cache& cache, Content content, BlockName name) noexcept;
  // Allocates all memory that store_fresh() and book() may need, and leaves the contents in `path`. Requires:
  // `path` is empty.
  void prepare_to_predict(Cache& cache, std::span<const LocalHash> locals);
  StoreVerdict store_fresh(Cache& cache, std::span<const LocalHash> locals);
  void book(Cache& cache, std::int64_t due) noexcept;
  StoreVerdict predict(const Worker& worker, std::span<const LocalHash> locals, std::int64_t due);
  // Ends predictions that are due then, at most `limit`. Returns how many.
  std::size_t end_until(std::int64_t now, std::size_t limit);
  // Drops a worker's state; the inner index has been updated.
  void forget(Cache& cache) noexcept;
  // Per worker, the names of predictions with real blocks behind them.
  NamesByWorker predicted_stems() const;

  IndexSink& inner;
  const ApproximateOptions options;
  const std::uint64_t salt;
  std::uint64_t names_made = 0;
  std::map<Worker, std::unique_ptr<Cache>> caches;  // those with known content
  ContentTrie trie;
  List list;
  std::uint64_t full_here = 0;  // stores refused before the inner index
  IndexCounters ours;           // our own calls' share of the inner index's counters
  PredictionCounters counters;
  // Reused storage of calls.
  std::vector<Content> path;
  std::vector<Fresh> fresh;
  std::vector<StoredBlock> run;
  std::vector<BlockName> ended;
  std::set<std::pair<Content, BlockName>> spare;  // memory for `several`
};

// Events that the index will refuse may be prepared too; which ones does not matter.
void PredictionLedger::State::prepare_to_learn(Cache& cache, const BlocksStored& event) {
  path.reserve(event.blocks.size());
  ended.reserve(event.blocks.size());
  Content content = ContentTrie::kRoot;
  if (event.parent) {
    const Meaning* const parent = cache.names.find(*event.parent);
    if (parent == nullptr) return;
    content = parent->content;
  }
  std::size_t names = 0;
  std::size_t contents = 0;
  std::size_t several = 0;
  for (const StoredBlock& block : event.blocks) {
    content = trie.find_or_add(content, block.local);
    path.push_back(content);
    if (cache.names.find(block.name) != nullptr) continue;
    ++names;
    const Holding* const held = cache.held.find(content);
    if (held == nullptr)
      ++contents;
    else if (held->names > 0)
      several += held->names == 1 ? 2 : 1;
  }
  cache.names.reserve(cache.names.size() + names);
  cache.held.reserve(cache.held.size() + contents);
  while (spare.size() < several) spare.emplace(static_cast<Content>(spare.size()), BlockName{});
}

void PredictionLedger::State::unprepare(const Worker& worker) noexcept {
  // The unheld contents of a path form a chain.
  trie.trim(path.empty() ? ContentTrie::kRoot : path.back());
  list.shrink_if_empty();
  spare.clear();
  if (Cache* const cache = find(worker)) forget_if_empty(*cache);
}

void PredictionLedger::State::add_to_several(Cache& cache, Content content, BlockName name) noexcept {
  ASHLAR_DCHECK(!spare.empty(), "prepare_to_learn() takes the memory for every name");
  auto node = spare.extract(spare.begin());
  node.value() = {content, name};
  cache.several.insert(std::move(node));
}

// Records an applied store; predictions of its contents end.
void PredictionLedger::State::learn(Cache& cache, const BlocksStored& event) {
  ended.clear();
  for (std::size_t i = 0; i < event.blocks.size(); ++i) {
    const StoredBlock& block = event.blocks[i];
    const Content content = path[i];
    const auto [meaning, is_new_name] = cache.names.insert(Meaning::of(block.name));
    meaning->content = content;
    meaning->tiers |= bit_of(event.tier);
    if (!is_new_name) continue;
    const auto [holding, is_new] = cache.held.insert(Holding::of(content));
    if (is_new) {
      trie.hold(content);
    } else if (holding->names == 0) {
      ended.push_back(holding->name);
      list.remove(holding->prediction);
      --cache.predicted;
      cache.names.erase(holding->name);
    }
    if (holding->names == 0) holding->name = block.name;
    if (++holding->names == 2) add_to_several(cache, content, holding->name);
    if (holding->names > 1) add_to_several(cache, content, block.name);
  }
  counters.replaced += ended.size();
  remove_ours(cache.worker, ended);
}

// Records that a name has left a tier, if the worker held it there.
void PredictionLedger::State::unlearn(Cache& cache, StorageTier tier, BlockName name) noexcept {
  Meaning* const meaning = cache.names.find(name);
  if (meaning == nullptr || (meaning->tiers & bit_of(tier)) == 0) return;
  meaning->tiers &= static_cast<std::uint8_t>(~bit_of(tier));
  if (meaning->tiers != 0) return;
  const Content content = meaning->content;
  cache.names.erase(name);
  Holding& holding = *cache.held.find(content);
  ASHLAR_DCHECK(holding.names != 0, "a worker's own name stands for a prediction");
  --holding.names;
  if (holding.names == 0) {
    cache.held.erase(content);
    trie.release(content);
    return;
  }
  cache.several.erase({content, name});
  if (holding.name == name) holding.name = cache.several.lower_bound({content, BlockName(0)})->second;
  if (holding.names == 1) cache.several.erase({content, holding.name});
}

void PredictionLedger::State::prepare_to_predict(Cache& cache, std::span<const LocalHash> locals) {
  path.reserve(locals.size());
  fresh.reserve(locals.size());
  run.reserve(locals.size());
  ended.reserve(locals.size());
  Content content = ContentTrie::kRoot;
  std::size_t missing = 0;
  for (const LocalHash local : locals) {
    content = trie.find_or_add(content, local);
    path.push_back(content);
    missing += cache.held.find(content) == nullptr ? 1 : 0;
  }
  cache.names.reserve(cache.names.size() + missing);
  cache.held.reserve(cache.held.size() + missing);
  list.reserve_more(missing);
}

// Stores the blocks of `path` that the worker does not hold, run by run, and leaves them in `fresh`. All or
// none.
StoreVerdict PredictionLedger::State::store_fresh(Cache& cache, std::span<const LocalHash> locals) {
  fresh.clear();
  StoreVerdict verdict = StoreVerdict::kApplied;
  for (std::size_t i = 0; i < path.size() && verdict == StoreVerdict::kApplied;) {
    if (cache.held.find(path[i]) != nullptr) {
      ++i;
      continue;
    }
    // A run follows a block that the worker holds.
    const std::size_t start = i;
    const auto parent = start == 0 ? std::nullopt : std::optional(name_of(cache, path[start - 1]));
    run.clear();
    for (; i < path.size() && cache.held.find(path[i]) == nullptr; ++i) {
      run.push_back({locals[i], fresh_name(cache)});
      fresh.push_back({path[i], run.back()});
    }
    verdict = inner.store({cache.worker, StorageTier::kDevice, parent, std::nullopt, run});
    if (verdict == StoreVerdict::kApplied) {
      ours.stored += run.size();
    } else {
      fresh.resize(fresh.size() - run.size());
    }
  }
  if (verdict == StoreVerdict::kApplied) return verdict;
  // A sound call can only fail with kFull; other verdicts would mean that another writer changed the index.
  if (verdict == StoreVerdict::kFull) ++ours.full;
  if (verdict == StoreVerdict::kUnknownParent) ++ours.unknown_parents;
  if (verdict == StoreVerdict::kNameInUse) ++ours.names_in_use;
  ended.clear();
  for (const Fresh& stored : fresh) ended.push_back(stored.block.name);
  remove_ours(cache.worker, ended);
  return verdict;
}

// Records `path` as predicted: blocks in `fresh` start, other predictions on it are renewed.
void PredictionLedger::State::book(Cache& cache, std::int64_t due) noexcept {
  auto next = fresh.begin();
  for (const Content content : path) {
    if (next != fresh.end() && next->content == content) {
      const BlockName name = next->block.name;
      trie.hold(content);
      cache.names.insert(Meaning::of(name)).first->content = content;
      Holding& holding = *cache.held.insert(Holding::of(content)).first;
      holding.name = name;
      holding.prediction = list.add(&cache, content, name, due);
      ++cache.predicted;
      ++next;
    } else if (const Holding& holding = *cache.held.find(content); holding.names == 0) {
      if (list[holding.prediction].due != due) list.renew(holding.prediction, due);
      ++counters.renewed;
    }
  }
  counters.predicted += fresh.size();
}

void PredictionLedger::State::forget(Cache& cache) noexcept {
  cache.held.for_each([&](const Holding& holding) {
    if (holding.names == 0) {
      list.remove(holding.prediction);
      ++counters.dropped;
    }
    trie.release(holding.content);
  });
  cache.held.clear();
  forget_if_empty(cache);
}

NamesByWorker PredictionLedger::State::predicted_stems() const {
  NamesByWorker stems;
  for (const auto& entry : caches) {
    const auto& worker = entry.first;
    const auto& cache = entry.second;
    if (cache->predicted == 0) continue;
    std::unordered_set<Content> seen;
    cache->held.for_each([&](const Holding& real) {
      if (real.names == 0) return;
      // Up to the next real block; blocks above it are found from there.
      for (Content at = trie.parent(real.content); at != ContentTrie::kRoot; at = trie.parent(at)) {
        const Holding* const above = cache->held.find(at);
        if (above != nullptr && above->names > 0) break;
        if (!seen.insert(at).second) break;
        if (above != nullptr) stems[worker].insert(above->name);
      }
    });
  }
  return stems;
}

PredictionLedger::PredictionLedger(IndexSink& inner, const ApproximateOptions& options)
    : state_(std::make_unique<State>(inner, options)) {}
PredictionLedger::~PredictionLedger() = default;

StoreVerdict PredictionLedger::store(const BlocksStored& event) {
  State& state = *state_;
  if (!is_known(event.tier)) return state.inner.store(event);
  expire(kExpiredPerCall + 2 * event.blocks.size());
  if (event.parent) state.give_way(event.worker, std::span(&*event.parent, 1));
  state.give_way(event.worker, std::views::transform(event.blocks, &StoredBlock::name));
  if (!state.trie_has_room(event.blocks.size())) {
    ++state.full_here;
    return StoreVerdict::kFull;
  }
  Cache* cache = nullptr;
  state.path.clear();
  try {
    cache = &state.find_or_add(event.worker);
    state.prepare_to_learn(*cache, event);
  } catch (const std::bad_alloc&) {
    state.unprepare(event.worker);
    ++state.full_here;
    return StoreVerdict::kFull;
  }
  const StoreVerdict verdict = state.inner.store(event);
  if (verdict == StoreVerdict::kApplied)
    state.learn(*cache, event);
  else
    state.unprepare(event.worker);
  return verdict;
}

std::size_t PredictionLedger::remove(const Worker& worker, StorageTier tier,
                                     std::span<const BlockName> names) {
  State& state = *state_;
  if (!is_known(tier)) return state.inner.remove(worker, tier, names);
  state.give_way(worker, names);
  const std::size_t removed = state.inner.remove(worker, tier, names);
  if (Cache* const cache = state.find(worker)) {
    for (const BlockName name : names) state.unlearn(*cache, tier, name);
    state.forget_if_empty(*cache);
  }
  return removed;
}

void PredictionLedger::clear(const Worker& worker) {
  state_->inner.clear(worker);
  if (Cache* const cache = state_->find(worker)) state_->forget(*cache);
}

void PredictionLedger::remove_worker(WorkerId worker) {
  state_->inner.remove_worker(worker);
  for (;;) {
    const auto at = state_->caches.lower_bound({worker, 0});
    if (at == state_->caches.end() || at->first.id != worker) return;
    state_->forget(*at->second);
  }
}

StoreVerdict PredictionLedger::predict(const Worker& worker, std::span<const LocalHash> locals) {
  State& state = *state_;
  if (locals.empty()) {
    ++state.counters.refused;
    return StoreVerdict::kEmpty;
  }
  if (locals.size() > state.options.most) {
    ++state.counters.refused;
    return StoreVerdict::kFull;
  }
  expire(kExpiredPerCall + 2 * locals.size());
  make_room(locals.size());
  return state.predict(worker, locals, state.due_from_now());
}

StoreVerdict PredictionLedger::State::predict(const Worker& worker, std::span<const LocalHash> locals,
                                              std::int64_t due) {
  if (!trie_has_room(locals.size()) || locals.size() > List::kMost - list.size()) {
    ++counters.refused;
    return StoreVerdict::kFull;
  }
  StoreVerdict verdict = StoreVerdict::kFull;
  Cache* cache = nullptr;
  path.clear();
  try {
    cache = &find_or_add(worker);
    prepare_to_predict(*cache, locals);
    verdict = store_fresh(*cache, locals);
  } catch (const std::bad_alloc&) {
    verdict = StoreVerdict::kFull;
  }
  if (verdict == StoreVerdict::kApplied) {
    book(*cache, due);
  } else {
    ++counters.refused;
    unprepare(worker);
  }
  return verdict;
}

std::vector<PredictedBlock> PredictionLedger::predictions() const {
  const State& state = *state_;
  const std::int64_t now = state.bucket_now();
  std::vector<PredictedBlock> blocks;
  std::unordered_map<Content, std::uint32_t> places;  // of one worker: 1 + the place in `blocks`
  std::vector<Content> climb;
  for (const auto& [worker, cache] : state.caches) {
    if (cache->predicted == 0) continue;
    places.clear();
    cache->held.for_each([&](const Holding& holding) {
      if (holding.names != 0 || state.list[holding.prediction].due <= now) return;
      for (Content at = holding.content; at != ContentTrie::kRoot && !places.contains(at);
           at = state.trie.parent(at))
        climb.push_back(at);
      for (; !climb.empty(); climb.pop_back()) {
        const Content content = climb.back();
        const Holding* const held = cache->held.find(content);
        const Content parent = state.trie.parent(content);
        blocks.push_back({.worker = worker,
                          .parent = parent == ContentTrie::kRoot ? 0 : places.at(parent),
                          .local = state.trie.local(content),
                          .due = held != nullptr && held->names == 0 ? state.list[held->prediction].due : 0});
        places[content] = static_cast<std::uint32_t>(blocks.size());
      }
    });
  }
  return blocks;
}

// A block expires no sooner than those behind it. So whole paths are predicted in the order in which their
// last blocks expire: a block that lasts longer is renewed by its own path.
void PredictionLedger::restore(std::span<const PredictedBlock> blocks) {
  State& state = *state_;
  std::vector<bool> is_continued(blocks.size());
  for (const PredictedBlock& block : blocks)
    if (block.parent != 0 && blocks[block.parent - 1].due == block.due) is_continued[block.parent - 1] = true;
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].due != 0 && !is_continued[i]) ends.push_back(i);
  std::ranges::sort(ends, {}, [&](std::size_t end) { return std::pair(blocks[end].due, end); });
  std::vector<LocalHash> locals;
  for (const std::size_t end : ends) {
    locals.clear();
    for (std::size_t at = end + 1; at != 0; at = blocks[at - 1].parent)
      locals.push_back(blocks[at - 1].local);
    std::ranges::reverse(locals);
    (void)state.predict(blocks[end].worker, locals, blocks[end].due);
  }
}

std::size_t PredictionLedger::expire(std::size_t limit) {
  if (state_->list.size() == 0) return 0;
  const std::size_t expired = state_->end_until(state_->bucket_now(), limit);
  state_->counters.expired += expired;
  return expired;
}

// What expires together ends together: an index that was restored has it in another order.
void PredictionLedger::make_room(std::size_t blocks) {
  State& state = *state_;
  while (state.list.size() != 0 && state.list.size() > state.options.most - blocks)
    state.counters.evicted += state.end_until(state.list[state.list.front()].due, SIZE_MAX);
}

std::size_t PredictionLedger::State::end_until(std::int64_t now, std::size_t limit) {
  const auto is_due = [&] { return list.front() != List::kNone && list[list.front()].due <= now; };
  std::size_t expired = 0;
  while (expired < limit && is_due()) {
    // Adjacent predictions of one worker go in one call.
    Cache* const owner = list[list.front()].owner;
    const Worker worker = owner->worker;
    std::array<BlockName, kExpiredTogether> gone;
    std::size_t count = 0;
    for (; count < gone.size() && expired < limit && is_due() && list[list.front()].owner == owner;
         ++expired) {
      gone[count++] = list[list.front()].name;
      forget_prediction(list.front());
    }
    forget_if_empty(*owner);
    remove_ours(worker, std::span(gone).first(count));
  }
  return expired;
}

void PredictionLedger::dump(IndexSink& sink, const std::function<void(IndexSink&)>& dump_inner) const {
  const auto stems = state_->predicted_stems();
  const auto is_left_out = [&](const Worker& worker, BlockName name) {
    const Cache* const cache = state_->find(worker);
    if (cache == nullptr || !state_->is_ours(*cache, name)) return false;
    const auto of_worker = stems.find(worker);
    return of_worker == stems.end() || !of_worker->second.contains(name);
  };
  WithoutPredictions filter(sink, is_left_out);
  dump_inner(filter);
  for (const auto& [worker, names] : stems)
    sink.remove(worker, StorageTier::kDevice, std::vector(names.begin(), names.end()));
}

IndexCounters PredictionLedger::without_predictions(const IndexCounters& inner) const {
  const IndexCounters& ours = state_->ours;
  IndexCounters theirs = inner;
  theirs.stored -= ours.stored;
  theirs.removed -= ours.removed;
  theirs.unknown_removals -= ours.unknown_removals;
  theirs.unknown_parents -= ours.unknown_parents;
  theirs.names_in_use -= ours.names_in_use;
  theirs.full -= ours.full;
  theirs.full += state_->full_here;
  return theirs;
}

std::size_t PredictionLedger::predicted() const noexcept {
  return state_->list.size();
}

std::size_t PredictionLedger::bytes() const noexcept {
  std::size_t bytes = state_->trie.bytes() + state_->list.bytes();
  for (const auto& entry : state_->caches)
    bytes += sizeof(entry) + kTreeNode + sizeof(Cache) + entry.second->bytes();
  return bytes;
}

PredictionCounters PredictionLedger::counters() const noexcept {
  return state_->counters;
}

}  // namespace detail
}  // namespace ashlar::index
