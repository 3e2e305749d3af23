#include "ashlar/testing/index_call_generator.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

namespace ashlar::testing {

using events::BlockName;
using events::StorageTier;
using events::StoredBlock;
using events::Worker;
using events::WorkerId;
using tokens::LocalHash;

namespace {

constexpr std::uint64_t kAllOnes = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kRemembered = 64;  // recent calls, lost names

std::uint64_t mix(std::uint64_t left, std::uint64_t right) {
  return Random(left * 0x9e3779b97f4a7c15U + right).next();
}

// The first ones are values that a structure might use for "none", or that differ in few bits.
std::uint64_t odd_value(std::size_t i, std::uint64_t salt) {
  constexpr std::array<std::uint64_t, 6> kFirst = {
      0, kAllOnes, 1, std::uint64_t{1} << 63, std::uint64_t{1} << 32, kAllOnes - 1};
  return i < kFirst.size() ? kFirst[i] : mix(salt, i);
}

std::uint8_t bit(StorageTier tier) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(tier));
}

}  // namespace

CallGeneratorOptions CallGeneratorOptions::varied(std::uint64_t seed) {
  Random random(mix(seed, 1));
  CallGeneratorOptions options;
  options.worker_ids = random.between<std::size_t>(1, 6);
  options.ranks = random.between<std::size_t>(1, 3);
  options.alphabet = random.between<std::size_t>(1, 5);
  options.chain_length = random.between<std::size_t>(2, 12);
  options.names_per_worker = random.between<std::size_t>(10, 100);
  if (random.chance(0.3)) options.lower_tiers = random.chance(0.5) ? 0 : 0.7;
  if (random.chance(0.2)) options.faults = 0.4;
  switch (random.below(6)) {
    case 0:  // few workers, long chains
      options.worker_ids = random.between<std::size_t>(1, 3);
      options.long_chains = 0.4;
      options.names_per_worker = 1500;
      break;
    case 1:  // many workers with little each: more than fit one word of a bit set
      options.worker_ids = random.between<std::size_t>(40, 80);
      options.names_per_worker = 12;
      options.chain_length = 5;
      options.long_chains = 0;
      break;
    default:
      break;
  }
  return options;
}

const IndexCallGenerator::Known* IndexCallGenerator::Book::find(BlockName name) const {
  const auto at = place.find(name);
  return at == place.end() ? nullptr : &all[at->second];
}

void IndexCallGenerator::Book::add(BlockName name, Path path, StorageTier tier) {
  const auto [at, is_new] = place.try_emplace(name, all.size());
  if (is_new) {
    all.push_back({name, path, 0});
    names_of[path].push_back(name);
  }
  all[at->second].tiers |= bit(tier);
}

void IndexCallGenerator::Book::take(BlockName name, StorageTier tier) {
  const auto at = place.find(name);
  if (at == place.end()) return;
  Known& known = all[at->second];
  known.tiers &= static_cast<std::uint8_t>(~bit(tier));
  if (known.tiers != 0) return;
  const Path path = known.path;
  place[all.back().name] = at->second;
  known = all.back();
  all.pop_back();
  place.erase(name);
  std::vector<BlockName>& names = names_of[path];
  std::erase(names, name);
  if (names.empty()) names_of.erase(path);
  lost.emplace_back(name, path);
  if (lost.size() > kRemembered) lost.pop_front();
}

IndexCallGenerator::IndexCallGenerator(std::uint64_t seed, CallGeneratorOptions options)
    : options_(options), random_(mix(seed, 0)), nodes_(1) {
  for (std::size_t i = 0; i < options_.worker_ids; ++i) {
    const WorkerId id(odd_value(i, mix(seed, 2)));
    for (std::size_t rank = 0; rank < options_.ranks; ++rank)
      workers_.push_back({id, static_cast<std::uint32_t>(odd_value(rank, 0))});
  }
  for (std::size_t i = 0; i < options_.alphabet; ++i) locals_.emplace_back(odd_value(i, mix(seed, 3)));
  for (const Worker& worker : workers_) books_[worker];
}

IndexCall IndexCallGenerator::next() {
  const Worker worker = pick_worker();
  const Book& book = books_[worker];
  std::optional<IndexCall> call;
  if (random_.chance(0.01)) {
    call = ClearCall{worker};
  } else if (random_.chance(0.007)) {
    call = RemoveWorkerCall{random_.chance(0.9) ? worker.id : WorkerId(random_.next())};
  } else if (!recent_.empty() && random_.chance(0.04)) {
    call = recent_[random_.below(recent_.size())];
  } else if (random_.chance(book.all.size() > options_.names_per_worker ? 0.65 : 0.35)) {
    call = make_remove(worker);
  } else {
    call = make_store(worker);
  }
  note(*call);
  recent_.push_back(*call);
  if (recent_.size() > kRemembered) recent_.pop_front();
  return *std::move(call);
}

// --- Stores ---

StoreCall IndexCallGenerator::make_store(const Worker& worker) {
  const Book& book = books_[worker];
  StoreCall call;
  if (!book.lost.empty() && random_.chance(0.25)) {
    call = restore(worker);
  } else if (!book.all.empty() && random_.chance(options_.lower_tiers * 0.4)) {
    call = copy_to_tier(worker);
  } else {
    Locals goal;
    if (random_.chance(0.6)) {
      goal = locals_of(pick_path());
      if (random_.chance(0.3) && !goal.empty()) goal.resize(1 + random_.below(goal.size()));
    }
    if (goal.empty() || random_.chance(0.3)) extend(goal, pick_length());
    call = store_towards(worker, goal);
  }
  if (random_.chance(options_.faults)) make_faulty(call);
  return call;
}

// From the start, or after a block that the worker holds; a worker that holds all of it appends.
StoreCall IndexCallGenerator::store_towards(const Worker& worker, const Locals& goal) {
  const Book& book = books_[worker];
  std::vector<Path> prefixes = {0};
  std::vector<std::size_t> held;  // lengths
  Locals whole = goal;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    prefixes.push_back(path_after(prefixes.back(), whole[i]));
    if (book.names_of.contains(prefixes.back())) held.push_back(i + 1);
  }
  std::size_t begin = 0;
  if (!held.empty() && random_.chance(0.6))
    begin = random_.chance(0.6) ? held.back() : held[random_.below(held.size())];
  if (begin == whole.size()) {
    extend(whole, random_.between<std::size_t>(1, 3));
    for (std::size_t i = begin; i < whole.size(); ++i)
      prefixes.push_back(path_after(prefixes.back(), whole[i]));
  }

  StoreCall call{worker, pick_tier(), std::nullopt, std::nullopt, {}};
  if (begin > 0) {
    const std::vector<BlockName>& names = book.names_of.at(prefixes[begin]);
    call.parent = names[random_.below(names.size())];
  }
  if (random_.chance(0.5)) call.start_position = static_cast<std::uint32_t>(begin);
  const std::uint64_t drawn = random_.below(20);
  Naming naming = drawn < 11 ? Naming::kByContent : drawn < 15 ? Naming::kByWorker : Naming::kFresh;
  if (drawn >= 18 && whole.size() - begin <= 3) naming = Naming::kFromFew;
  for (std::size_t i = begin; i < whole.size(); ++i)
    call.blocks.push_back({whole[i], pick_name(naming, prefixes[i + 1], worker, book)});
  return call;
}

// Blocks that the worker lost return, under their old names if known.
StoreCall IndexCallGenerator::restore(const Worker& worker) {
  const Book& book = books_[worker];
  const auto [name, path] = book.lost[random_.below(book.lost.size())];
  const Path parent = nodes_[path].parent;
  if (parent != 0 && !book.names_of.contains(parent)) return store_towards(worker, locals_of(path));
  StoreCall call{worker, pick_tier(), std::nullopt, std::nullopt, {{nodes_[path].last, name}}};
  if (parent != 0) call.parent = book.names_of.at(parent).front();
  if (random_.chance(0.5)) call.start_position = nodes_[path].length - 1;
  return call;
}

// A run of held blocks is also in another tier, under the same names.
StoreCall IndexCallGenerator::copy_to_tier(const Worker& worker) {
  const Book& book = books_[worker];
  const Known& last = pick_known(book);
  StoreCall call{worker, pick_tier(), std::nullopt, std::nullopt, {{nodes_[last.path].last, last.name}}};
  const std::size_t most = random_.between<std::size_t>(1, options_.chain_length);
  Path before = nodes_[last.path].parent;
  while (before != 0 && call.blocks.size() < most && book.names_of.contains(before)) {
    call.blocks.push_back({nodes_[before].last, book.names_of.at(before).back()});
    before = nodes_[before].parent;
  }
  std::ranges::reverse(call.blocks);
  if (before != 0) {
    const auto names = book.names_of.find(before);
    call.parent = names == book.names_of.end() ? pick_strange_name(book) : names->second.front();
  }
  return call;
}

void IndexCallGenerator::make_faulty(StoreCall& call) {
  const Book& book = books_[call.worker];
  switch (random_.below(9)) {
    case 0:
      call.blocks.clear();
      break;
    case 1:
      call.parent = pick_strange_name(book);
      break;
    case 2:
      call.start_position = call.start_position.value_or(0) + (random_.chance(0.5) ? 1 : -1u);
      break;
    case 3:
      call.start_position = static_cast<std::uint32_t>(random_.next());
      break;
    case 4:  // a name twice
      call.blocks.push_back({pick_local(), call.blocks[random_.below(call.blocks.size())].name});
      break;
    case 5:  // the parent's own name
      if (call.parent) call.blocks[random_.below(call.blocks.size())].name = *call.parent;
      break;
    case 6:  // a name of other content
      if (!book.all.empty()) call.blocks[random_.below(call.blocks.size())].name = pick_known(book).name;
      break;
    case 7:
      call.parent.reset();
      break;
    default:  // somewhere else
      if (!book.all.empty()) call.parent = pick_known(book).name;
      break;
  }
}

BlockName IndexCallGenerator::pick_name(Naming naming, Path path, const Worker& worker, const Book& book) {
  const auto names = book.names_of.find(path);
  if (names != book.names_of.end() && random_.chance(0.75))
    return names->second[random_.below(names->second.size())];
  switch (naming) {
    case Naming::kByContent:
      return BlockName(mix(nodes_[path].mixed, 10));
    case Naming::kByWorker:
      return BlockName(mix(nodes_[path].mixed, 11 + worker.id.value() + worker.rank));
    case Naming::kFresh:
      break;
    case Naming::kFromFew: {
      const std::uint64_t few = random_.below(24);
      return BlockName(few == 0 ? kAllOnes : few - 1);
    }
  }
  return BlockName(mix(++fresh_, 12));
}

BlockName IndexCallGenerator::pick_strange_name(const Book& book) {
  if (!book.lost.empty() && random_.chance(0.4)) return book.lost[random_.below(book.lost.size())].first;
  const Book& other = books_[pick_worker()];
  if (!other.all.empty() && random_.chance(0.5)) return pick_known(other).name;
  return BlockName(random_.next());
}

// --- Removals ---

RemoveCall IndexCallGenerator::make_remove(const Worker& worker) {
  const Book& book = books_[worker];
  RemoveCall call{worker, pick_tier(), {}};
  if (book.all.empty()) {
    call.names.push_back(pick_strange_name(book));
    return call;
  }
  const Known* known = &pick_known(book);
  const auto add_run_upwards = [&](Path path, std::size_t most) {
    for (; path != 0 && call.names.size() < most; path = nodes_[path].parent) {
      const auto names = book.names_of.find(path);
      if (names == book.names_of.end()) continue;
      for (const BlockName name : names->second)
        if ((book.find(name)->tiers & bit(call.tier)) != 0) call.names.push_back(name);
    }
  };
  const std::uint64_t kind = random_.below(20);
  if (kind < 8 || kind == 19) {  // from the end of a chain; some from its front
    for (int i = 0; i < 4; ++i) {
      const Known& other = pick_known(book);
      if (nodes_[other.path].length > nodes_[known->path].length) known = &other;
    }
    call.tier = pick_tier_of(*known);
    const bool whole = random_.chance(book.all.size() > options_.names_per_worker / 2 ? 0.4 : 0.1);
    add_run_upwards(known->path, whole ? SIZE_MAX : 1 + random_.below(options_.chain_length));
    if (kind == 19) std::ranges::reverse(call.names);
  } else if (kind < 12) {  // a leaf
    Path leaf = known->path;
    for (bool deeper = true; deeper;) {
      deeper = false;
      for (const auto& [local, longer] : nodes_[leaf].longer) {
        if (!book.names_of.contains(longer)) continue;
        leaf = longer;
        deeper = true;
        break;
      }
    }
    known = book.find(book.names_of.at(leaf).front());
    call.tier = pick_tier_of(*known);
    call.names.push_back(known->name);
  } else if (kind < 16) {  // anywhere
    call.tier = pick_tier_of(*known);
    call.names.push_back(known->name);
  } else {  // several, anywhere
    call.tier = pick_tier_of(*known);
    for (auto left = 1 + random_.below(6); left > 0; --left) call.names.push_back(pick_known(book).name);
  }
  if (random_.chance(options_.faults)) make_faulty(call);
  return call;
}

void IndexCallGenerator::make_faulty(RemoveCall& call) {
  const Book& book = books_[call.worker];
  switch (random_.below(5)) {
    case 0:
      call.names.clear();
      break;
    case 1:
      call.tier = pick_tier();
      break;
    case 2:
      if (!call.names.empty()) call.names.push_back(call.names[random_.below(call.names.size())]);
      break;
    default: {
      const auto at = static_cast<std::ptrdiff_t>(random_.below(call.names.size() + 1));
      call.names.insert(call.names.begin() + at, pick_strange_name(book));
    }
  }
}

// --- Books ---

void IndexCallGenerator::note(const IndexCall& call) {
  if (const auto* store = std::get_if<StoreCall>(&call)) {
    note_store(*store);
  } else if (const auto* remove = std::get_if<RemoveCall>(&call)) {
    for (const BlockName name : remove->names) books_[remove->worker].take(name, remove->tier);
  } else if (const auto* clear = std::get_if<ClearCall>(&call)) {
    books_[clear->worker] = {};
  } else {
    for (auto& [worker, book] : books_)
      if (worker.id == std::get<RemoveWorkerCall>(call).worker) book = {};
  }
}

// Faulty stores leave the books unchanged.
void IndexCallGenerator::note_store(const StoreCall& call) {
  Book& book = books_[call.worker];
  Path path = 0;
  if (call.parent) {
    const Known* parent = book.find(*call.parent);
    if (parent == nullptr) return;
    path = parent->path;
  }
  if (call.start_position && *call.start_position != nodes_[path].length) return;
  std::vector<Path> paths;
  std::set<BlockName> seen;
  for (const StoredBlock& block : call.blocks) {
    path = paths.emplace_back(path_after(path, block.local));
    const Known* known = book.find(block.name);
    if (!seen.insert(block.name).second || (known != nullptr && known->path != path)) return;
  }
  for (std::size_t i = 0; i < paths.size(); ++i) book.add(call.blocks[i].name, paths[i], call.tier);
}

// --- Queries ---

std::vector<LocalHash> IndexCallGenerator::next_query() {
  if (random_.chance(0.02)) return {};
  Locals query = locals_of(pick_path());
  if (query.empty()) extend(query, pick_length());
  const std::size_t size = query.size();
  switch (random_.below(6)) {
    case 0:
      query.resize(1 + random_.below(size));
      break;
    case 1:
      extend(query, random_.between<std::size_t>(1, 5));
      break;
    case 2:  // another block somewhere, known elsewhere or not at all
      query[pick_boundary(size - 1)] = random_.chance(0.5) ? pick_local() : LocalHash(random_.next());
      break;
    case 3:
      query.resize(1 + pick_boundary(size - 1));
      extend(query, random_.between<std::size_t>(1, 40));
      break;
    default:
      break;
  }
  return query;
}

// --- Draws ---

Worker IndexCallGenerator::pick_worker() {
  return workers_[random_.below(workers_.size())];
}

StorageTier IndexCallGenerator::pick_tier() {
  if (!random_.chance(options_.lower_tiers)) return StorageTier::kDevice;
  return events::kAllStorageTiers[1 + random_.below(events::kStorageTiers - 1)];
}

StorageTier IndexCallGenerator::pick_tier_of(const Known& known) {
  std::vector<StorageTier> tiers;
  for (const StorageTier tier : events::kAllStorageTiers)
    if ((known.tiers & bit(tier)) != 0) tiers.push_back(tier);
  return tiers[random_.below(tiers.size())];
}

IndexCallGenerator::Path IndexCallGenerator::pick_path() {
  const Book& book = books_[pick_worker()];
  if (!book.all.empty() && random_.chance(0.7)) return pick_known(book).path;
  return static_cast<Path>(random_.below(nodes_.size()));
}

std::size_t IndexCallGenerator::pick_length() {
  constexpr std::array<std::size_t, 12> kLong = {31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 256, 300};
  if (random_.chance(options_.long_chains)) return kLong[random_.below(kLong.size())];
  return 1 + random_.below(options_.chain_length);
}

std::size_t IndexCallGenerator::pick_boundary(std::size_t most) {
  constexpr std::array<std::size_t, 14> kBoundaries = {0,  1,  7,  8,   31,  32,  33,
                                                       63, 64, 65, 127, 128, 129, 256};
  const std::size_t boundary = kBoundaries[random_.below(kBoundaries.size())];
  return boundary <= most && random_.chance(0.6) ? boundary : random_.below(most + 1);
}

// The first of the alphabet is likelier, so that long chains share long prefixes.
LocalHash IndexCallGenerator::pick_local() {
  return random_.chance(0.6) ? locals_.front() : locals_[random_.below(locals_.size())];
}

// --- Paths ---

IndexCallGenerator::Path IndexCallGenerator::path_after(Path parent, LocalHash local) {
  const auto [at, is_new] = nodes_[parent].longer.try_emplace(local, static_cast<Path>(nodes_.size()));
  const Path path = at->second;
  if (is_new)
    nodes_.push_back(
        {parent, local, nodes_[parent].length + 1, mix(nodes_[parent].mixed + 1, local.value()), {}});
  return path;
}

IndexCallGenerator::Locals IndexCallGenerator::locals_of(Path path) const {
  Locals locals;
  for (; path != 0; path = nodes_[path].parent) locals.push_back(nodes_[path].last);
  std::ranges::reverse(locals);
  return locals;
}

void IndexCallGenerator::extend(Locals& locals, std::size_t by) {
  for (; by > 0; --by) locals.push_back(pick_local());
}

}  // namespace ashlar::testing
