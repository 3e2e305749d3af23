// Eviction backends: fill, touch, revive, and evict + insert, beside a std::list with a std::unordered_map.
//
//   eviction_bench           every backend, 10,000 to 1,000,000 inactive blocks
//   eviction_bench NAME…     only these
//
// The comparison. A backend receives block ids, because the store's index has already found the block; the
// rival must find it by hash, and keeps a map for that. So a backend alone does less than the rival. "alone"
// is the backend without any look-up. "ours" is the backend behind the store's index (HashIndex) and its
// column of hashes, all kept up to date: the rival's whole job, and the basis of the ratio and the targets.
// block_bench measures what a user sees, a manager with its locks and guards (match_inactive + drop,
// allocate..register..drop).
//
// The rival is always an LRU: the ratio of another policy is its price relative to the simplest one.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/eviction.h"
#include "block/registry/hash_index.h"
#include "block/registry/hash_mix.h"
#include "list_map_lru.h"
#include "ratio.h"

namespace {

using namespace ashlar;
using bench::Comparison;
using bench::ListMapLru;
using block::BlockId;
using block::HashMix;
using block::InactivePool;
using tokens::SequenceHash;

constexpr std::uint32_t kSizes[] = {10'000, 100'000, 1'000'000};
constexpr std::size_t kPairs = 31;
constexpr std::uint32_t kChain = 64;
// More names than any subject evicts between two uses of one.
constexpr std::size_t kNames = std::size_t{1} << 22;
constexpr double kTarget = 3;

enum class Shape { kRandom, kChains };

// Names without any relation, or the blocks of chains, one after the other.
std::vector<SequenceHash> make_names(Shape shape) {
  Random random(7);
  std::vector<SequenceHash> names;
  names.reserve(kNames);
  while (names.size() < kNames) {
    const bool root = shape == Shape::kRandom || names.size() % kChain == 0;
    if (shape == Shape::kRandom) {
      const std::uint64_t parent = random.next();
      names.push_back(*SequenceHash::make(random.below(256), random.next(), parent));
    } else {
      names.push_back(root ? SequenceHash::root(random.next()) : *names.back().child(random.next()));
    }
  }
  return names;
}
const std::vector<SequenceHash>& names_of(Shape shape) {
  static const std::vector<SequenceHash> random = make_names(Shape::kRandom);
  static const std::vector<SequenceHash> chains = make_names(Shape::kChains);
  return shape == Shape::kRandom ? random : chains;
}

// A requested block: the name for the side that must look it up, the id for the other.
struct Wanted {
  SequenceHash hash;
  BlockId id;
};

std::unique_ptr<InactivePool> make_pool(const std::string& backend, std::uint32_t blocks) {
  const auto factory = block::eviction_by_name(backend);
  ASHLAR_CHECK(factory.has_value(), "%s", factory.error().to_string().c_str());
  const block::EvictionContext context(blocks,
                                       *block::BlockRegistry::create({.frequency = block::TinyLfuOptions{}}));
  auto pool = (*factory)(context);
  ASHLAR_CHECK(pool.has_value(), "%s", pool.error().to_string().c_str());
  // A quarter of the blocks is worth more, for the backends that asked.
  for (std::uint32_t id = 0; id < blocks && context.facts->keeps_retentions(); id += 4) {
    context.facts->set_retention(BlockId(id), {.priority = 80});
  }
  return *std::move(pool);
}

// The backend, which is told ids.
class Alone {
 public:
  Alone(const std::string& backend, std::uint32_t blocks)
      : pool_(make_pool(backend, blocks)), follows_(pool_->follows_registrations()) {}

  void add(BlockId id, const SequenceHash& hash) {
    if (follows_) pool_->registered(id, hash);
    pool_->insert(id, hash);
  }
  BlockId replace(const SequenceHash& hash) {
    BlockId victim;
    ASHLAR_CHECK(pool_->pop({&victim, 1}) == 1, "a pool of inactive blocks yields");
    add(victim, hash);
    return victim;
  }
  void revive(const Wanted& wanted) {
    pool_->remove(wanted.id);
    pool_->insert(wanted.id, wanted.hash);
  }
  void touch(const Wanted& wanted) { pool_->touch(wanted.id); }

 private:
  std::unique_ptr<InactivePool> pool_;
  bool follows_;
};

// The backend with what the store has around it: the index, and the hash of every block.
class Indexed {
 public:
  Indexed(const std::string& backend, std::uint32_t blocks)
      : pool_(make_pool(backend, blocks)),
        follows_(pool_->follows_registrations()),
        index_(blocks),
        hashes_(blocks) {}

  void add(BlockId id, const SequenceHash& hash) {
    hashes_[id.value()] = hash;
    index_.insert(HashMix::of(hash), id.value());
    if (follows_) pool_->registered(id, hash);
    pool_->insert(id, hash);
  }
  BlockId replace(const SequenceHash& hash) {
    BlockId victim;
    ASHLAR_CHECK(pool_->pop({&victim, 1}) == 1, "a pool of inactive blocks yields");
    index_.erase(HashMix::of(hashes_[victim.value()]), victim.value());
    add(victim, hash);
    return victim;
  }
  void revive(const Wanted& wanted) {
    const BlockId id = find(wanted.hash);
    pool_->remove(id);
    pool_->insert(id, wanted.hash);
  }
  void touch(const Wanted& wanted) { pool_->touch(find(wanted.hash)); }

 private:
  BlockId find(const SequenceHash& hash) const {
    const std::uint32_t slot =
        index_.find(HashMix::of(hash), [&](std::uint32_t at) { return hashes_[at] == hash; });
    ASHLAR_CHECK(slot != index_.kNone, "%s is here", hash.to_string().c_str());
    return BlockId(slot);
  }

  std::unique_ptr<InactivePool> pool_;
  bool follows_;
  block::detail::HashIndex index_;
  std::vector<SequenceHash> hashes_;
};

// The rival, which finds blocks itself.
class Rival {
 public:
  explicit Rival(std::uint32_t blocks) : lru_(blocks) {}

  void add(BlockId id, const SequenceHash& hash) { lru_.insert(id, hash); }
  BlockId replace(const SequenceHash& hash) {
    const std::optional<ListMapLru::Block> victim = lru_.pop();
    ASHLAR_CHECK(victim.has_value(), "a pool of inactive blocks yields");
    lru_.insert(victim->id, hash);
    return victim->id;
  }
  void revive(const Wanted& wanted) {
    const std::optional<BlockId> id = lru_.remove(wanted.hash);
    ASHLAR_CHECK(id.has_value(), "%s is here", wanted.hash.to_string().c_str());
    lru_.insert(*id, wanted.hash);
  }
  void touch(const Wanted& wanted) {
    ASHLAR_CHECK(lru_.touch(wanted.hash), "%s is here", wanted.hash.to_string().c_str());
  }

 private:
  ListMapLru lru_;
};

// Takes turns over a list.
template <class T>
class RoundRobin {
 public:
  explicit RoundRobin(std::span<const T> list) : list_(list) {}
  const T& operator()() {
    if (next_ == list_.size()) next_ = 0;
    return list_[next_++];
  }

 private:
  std::span<const T> list_;
  std::size_t next_ = 0;
};

// The names of the blocks of a full pool, in random order.
std::vector<Wanted> wanted_of(std::span<const SequenceHash> names, std::uint32_t blocks) {
  std::vector<Wanted> wanted;
  wanted.reserve(blocks);
  for (std::uint32_t id = 0; id < blocks; ++id) wanted.push_back({names[id], BlockId(id)});
  Random(11).shuffle(wanted);
  return wanted;
}

// Whether two subjects that keep the same order evict the same blocks: a fixed mix of all operations on both.
template <class Ours>
void check_victims(Ours ours, Rival rival, std::span<const SequenceHash> names, std::uint32_t blocks) {
  std::vector<Wanted> here;
  for (std::uint32_t id = 0; id < blocks; ++id) {
    here.push_back({names[id], BlockId(id)});
    ours.add(BlockId(id), names[id]);
    rival.add(BlockId(id), names[id]);
  }
  Random random(13);
  for (std::size_t step = 0, fresh = blocks; step < std::min<std::size_t>(3 * blocks, 300'000); ++step) {
    const Wanted wanted = here[random.below(blocks)];
    switch (random.below(3)) {
      case 0:
        ours.revive(wanted);
        rival.revive(wanted);
        break;
      case 1:
        ours.touch(wanted);
        rival.touch(wanted);
        break;
      default: {
        const BlockId victim = ours.replace(names[fresh]);
        ASHLAR_CHECK(victim == rival.replace(names[fresh]), "step %zu: the victims differ", step);
        here[victim.value()].hash = names[fresh++];
      }
    }
  }
}

struct Row {
  const std::string& backend;
  Shape shape;
  std::uint32_t blocks;
};

void print_row(const Row& row, const char* operation, const Comparison& alone, const Comparison& ours,
               double target) {
  std::printf("%-14s %-20s %-7s %9u %9.1f %9.1f %9.1f   %6.2f (%.2f..%.2f)", operation, row.backend.c_str(),
              row.shape == Shape::kRandom ? "random" : "chains", row.blocks, alone.ours.median,
              ours.ours.median, ours.rival.median, ours.ratio.median, ours.ratio.min, ours.ratio.max);
  if (target > 0) std::printf("   target %.0f: %s", target, ours.ratio.median >= target ? "ok" : "MISS");
  std::printf("\n");
  std::fflush(stdout);
}

// From empty to full in kPairs parts, in turns.
template <class Ours>
Comparison compare_fill(Ours& ours, Rival& rival, std::span<const SequenceHash> names, std::uint32_t blocks) {
  std::vector<double> our_times, rival_times, ratios;
  for (std::size_t part = 0; part < kPairs; ++part) {
    const auto begin = static_cast<std::uint32_t>(blocks * part / kPairs);
    const auto end = static_cast<std::uint32_t>(blocks * (part + 1) / kPairs);
    const auto fill = [&](auto& subject) {
      return bench::time_calls(
                 [&] {
                   for (std::uint32_t id = begin; id < end; ++id) subject.add(BlockId(id), names[id]);
                 },
                 1) /
             (end - begin);
    };
    double our_time = 0;
    double rival_time = 0;
    if (part % 2 == 0) {
      our_time = fill(ours);
      rival_time = fill(rival);
    } else {
      rival_time = fill(rival);
      our_time = fill(ours);
    }
    our_times.push_back(our_time);
    rival_times.push_back(rival_time);
    ratios.push_back(rival_time / our_time);
  }
  return {bench::spread_of(our_times), bench::spread_of(rival_times), bench::spread_of(ratios)};
}

// fill, touch, revive, evict + insert, of one subject beside the rival.
struct EvictionTimes {
  Comparison fill, touch, revive, replace;
};
template <class Ours>
EvictionTimes measure(const Row& row) {
  const std::vector<SequenceHash>& names = names_of(row.shape);
  const std::vector<Wanted> wanted = wanted_of(names, row.blocks);
  Ours ours(row.backend, row.blocks);
  Rival rival(row.blocks);
  EvictionTimes measured;
  measured.fill = compare_fill(ours, rival, names, row.blocks);
  RoundRobin<Wanted> a(wanted), b(wanted);
  measured.touch = bench::compare([&] { ours.touch(a()); }, [&] { rival.touch(b()); }, kPairs);
  measured.revive = bench::compare([&] { ours.revive(a()); }, [&] { rival.revive(b()); }, kPairs);
  const std::span<const SequenceHash> fresh(names.begin() + row.blocks, names.end());
  RoundRobin<SequenceHash> c(fresh), d(fresh);
  measured.replace = bench::compare([&] { benchmark::DoNotOptimize(ours.replace(c())); },
                                    [&] { benchmark::DoNotOptimize(rival.replace(d())); }, kPairs);
  return measured;
}

void print_backend(const std::string& backend) {
  const bool is_lru = backend == "lru" || backend == "hashmap_lru";
  const bool follows = make_pool(backend, 1)->follows_registrations();
  for (const Shape shape : {Shape::kRandom, Shape::kChains}) {
    // The order of registrations, and so the shape of the names, matters to backends that follow them.
    if (shape == Shape::kChains && !follows) continue;
    for (const std::uint32_t blocks : kSizes) {
      if (is_lru) check_victims(Indexed(backend, blocks), Rival(blocks), names_of(shape), blocks);
      const Row row{backend, shape, blocks};
      const EvictionTimes alone = measure<Alone>(row);
      const EvictionTimes ours = measure<Indexed>(row);
      const double target = is_lru && blocks == 1'000'000 ? kTarget : 0;
      print_row(row, "fill", alone.fill, ours.fill, 0);
      print_row(row, "touch", alone.touch, ours.touch, 0);
      print_row(row, "revive", alone.revive, ours.revive, target);
      print_row(row, "evict + insert", alone.replace, ours.replace, target);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> backends(argv + 1, argv + argc);
  if (backends.empty()) backends = block::eviction_names();
  for (const std::string& backend : backends) {
    if (const auto known = block::eviction_by_name(backend); !known) {
      std::fprintf(stderr, "eviction_bench: %s\n", known.error().to_string().c_str());
      return 1;
    }
  }
  std::printf(
      "ns per operation, median of %zu interleaved runs; ratio = rival / ours (smallest..largest)\n"
      "alone: the backend, told ids; ours: with the store's index, found by hash; rival: a std::list and a "
      "std::unordered_map, LRU\nthe victims of lru and hashmap_lru are those of the rival, or this stops\n",
      kPairs);
  std::printf("%-14s %-20s %-7s %9s %9s %9s %9s   %s\n", "operation", "backend", "names", "blocks", "alone",
              "ours", "rival", "ratio");
  for (const std::string& backend : backends) print_backend(backend);
  return 0;
}
