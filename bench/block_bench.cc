// Block layer benchmarks: match, drop and the full cycle, beside a naive manager, and over threads.
//
//   block_bench                 the table of ratios against NaiveBlockManager, one thread
//   block_bench --scaling [N]   1..N threads on one manager, as the share of N independent managers
//   block_bench --benchmark_…   Google Benchmark with its own flags
//
// Pool of 65,536 blocks, chains of 128; 400 chains are resident, four times as many take turns in the cycle.
#include <benchmark/benchmark.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/base/check.h"
#include "naive_block_manager.h"
#include "ratio.h"

namespace {

using namespace ashlar;
using block::BlockList;
using block::BlockManager;
using block::BlockRegistry;
using block::CompleteBlock;
using block::ImmutableBlock;
using block::KvReady;
using block::MutableBlock;
using events::G1;
using tokens::SequenceHash;

constexpr std::uint32_t kPool = 65536;
constexpr std::uint32_t kChain = 128;
constexpr std::uint32_t kBlockSize = 16;
constexpr std::size_t kResident = 400;
const std::vector<std::string> kBackends = {"lru", "hashmap_fifo"};

struct PromptChain {
  tokens::TokenSequence sequence;
  std::vector<SequenceHash> hashes;
};

std::vector<PromptChain> make_chains(std::size_t count, std::uint32_t salt = 0) {
  std::vector<PromptChain> chains;
  chains.reserve(count);
  for (std::size_t c = 0; c < count; ++c) {
    std::vector<std::uint32_t> tokens(kChain * kBlockSize);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::uint32_t>(i * 2654435761u + c * 97u + salt * 7919u);
    }
    auto sequence = tokens::TokenSequence::create(tokens, kBlockSize);
    ASHLAR_CHECK(sequence.has_value(), "a chain of tokens");
    std::vector<SequenceHash> hashes = sequence->sequence_hashes();
    chains.push_back({*std::move(sequence), std::move(hashes)});
  }
  return chains;
}

const std::vector<PromptChain>& chains() {
  static const std::vector<PromptChain> all = make_chains(4 * kPool / kChain);
  return all;
}

struct Ours {
  explicit Ours(const std::string& backend, bool frequency = true)
      : registry(*BlockRegistry::create(
            {.frequency = frequency ? std::optional(block::TinyLfuOptions{}) : std::nullopt})),
        manager(*BlockManager<G1>::builder()
                     .block_count(kPool)
                     .block_size(kBlockSize)
                     .registry(registry)
                     .with_backend(backend)
                     .build()) {}

  // Allocates, completes and registers one chain.
  BlockList<ImmutableBlock<G1>> put(const PromptChain& chain) {
    blocks.resize(chain.hashes.size());
    complete.resize(chain.hashes.size());
    manager.allocate_blocks(blocks).value();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      complete[i] = *std::move(blocks[i]).complete(chain.sequence.blocks()[i], KvReady::asserted_by_caller());
    }
    BlockList<ImmutableBlock<G1>> registered;
    manager.register_blocks(complete, registered.extend(blocks.size())).value();
    return registered;
  }

  BlockRegistry registry;
  BlockManager<G1> manager;
  std::vector<MutableBlock<G1>> blocks;
  std::vector<CompleteBlock<G1>> complete;
};

std::span<const SequenceHash> head(const PromptChain& chain, std::size_t n) {
  return std::span(chain.hashes).first(n);
}

// A turn over the resident chains.
struct NextChain {
  std::size_t next = 0;
  const PromptChain& operator()() { return chains()[next++ % kResident]; }
};

void print_ratio(const char* name, std::size_t n, const std::string& backend, bench::Comparison c,
                 double target) {
  const auto per_block = static_cast<double>(n);
  std::printf("%-26s %5zu  %-13s %9.1f %9.1f   %6.2f (%.2f..%.2f)", name, n, backend.c_str(),
              c.ours.median / per_block, c.rival.median / per_block, c.ratio.median, c.ratio.min,
              c.ratio.max);
  if (target > 0) std::printf("   target %.0f: %s", target, c.ratio.median >= target ? "ok" : "MISS");
  std::printf("\n");
}

void print_table() {
  std::printf("ns per block, median of interleaved runs; ratio = rival / ours (smallest..largest)\n");
  std::printf("%-26s %5s  %-13s %9s %9s   %s\n", "operation", "n", "backend", "ours", "rival", "ratio");
  for (const std::string& backend : kBackends) {
    Ours ours(backend, /*frequency=*/false);  // as the rival
    bench::NaiveBlockManager rival(kPool);
    for (std::size_t c = 0; c < kResident; ++c) {
      (void)ours.put(chains()[c]);
      (void)rival.allocate_and_register(chains()[c].hashes);
    }
    for (const std::size_t n : {8u, 32u, 128u}) {
      BlockList<ImmutableBlock<G1>> found;
      NextChain a, b;
      print_ratio("match_inactive + drop", n, backend,
                  bench::compare(
                      [&] {
                        ASHLAR_CHECK(ours.manager.match_blocks(head(a(), n), found) == n, "a resident chain");
                        found.clear();
                      },
                      [&] { ASHLAR_CHECK(rival.match(head(b(), n)).size() == n, "a resident chain"); }),
                  0);
    }
    for (const std::size_t n : {8u, 32u, 128u}) {
      std::vector<BlockList<ImmutableBlock<G1>>> held;
      std::vector<std::vector<bench::NaiveBlockManager::Ref>> rival_held;
      for (std::size_t c = 0; c < kResident; ++c) {
        held.push_back(ours.manager.match_blocks(chains()[c].hashes));
        rival_held.push_back(rival.match(chains()[c].hashes));
      }
      BlockList<ImmutableBlock<G1>> found;
      NextChain a, b;
      print_ratio("match_active + drop", n, backend,
                  bench::compare(
                      [&] {
                        ASHLAR_CHECK(ours.manager.match_blocks(head(a(), n), found) == n, "a held chain");
                        found.clear();
                      },
                      [&] { ASHLAR_CHECK(rival.match(head(b(), n)).size() == n, "a held chain"); }),
                  n == 128 ? 2 : 0);
    }
    for (const std::size_t n : {8u, 32u, 128u}) {
      // Only the drop is timed: hold all resident chains, drop them, many times over.
      std::vector<double> our_times, rival_times, ratios;
      for (int run = 0; run < 11; ++run) {
        std::vector<BlockList<ImmutableBlock<G1>>> held;
        std::vector<std::vector<bench::NaiveBlockManager::Ref>> rival_held;
        for (std::size_t c = 0; c < kResident; ++c) {
          held.push_back(ours.manager.match_blocks(head(chains()[c], n)));
          rival_held.push_back(rival.match(head(chains()[c], n)));
        }
        our_times.push_back(bench::time_calls([&] { held.clear(); }, 1) / kResident);
        rival_times.push_back(bench::time_calls([&] { rival_held.clear(); }, 1) / kResident);
        ratios.push_back(rival_times.back() / our_times.back());
      }
      print_ratio("bulk_drop", n, backend,
                  {bench::spread_of(our_times), bench::spread_of(rival_times), bench::spread_of(ratios)},
                  n == 128 ? 3 : 0);
    }
    std::size_t a = 0, b = 0;
    print_ratio(
        "allocate..register..drop", kChain, backend,
        bench::compare([&] { (void)ours.put(chains()[a++ % chains().size()]); },
                       [&] { (void)rival.allocate_and_register(chains()[b++ % chains().size()].hashes); }),
        0);
  }
}

// What a counted match of a block in use, and its drop, cannot do without: a look at the sketch, where a use
// is counted unless the counter is full, a reference more and a reference less. What writes is a locked
// instruction. The words are known here, and prefetched.
class LockedFloor {
 public:
  LockedFloor() : words_(kPool), sketch_(std::size_t{1} << 19) {}

  void match_and_drop(std::size_t first, const PromptChain& chain) {
    for (const SequenceHash& hash : chain.hashes) __builtin_prefetch(&use_of(hash), 1);
    for (std::size_t i = 0; i < kChain; ++i) {
      std::atomic<std::uint64_t>& word = words_[first + i];
      std::uint64_t seen = word.load(std::memory_order_relaxed);
      while (!word.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) {
      }
    }
    for (const SequenceHash& hash : chain.hashes) {
      std::atomic<std::uint64_t>& uses = use_of(hash);
      if (uses.load(std::memory_order_relaxed) < kFull) uses.fetch_add(1, std::memory_order_relaxed);
    }
    for (std::size_t i = kChain; i-- > 0;) words_[first + i].fetch_sub(1, std::memory_order_release);
  }

 private:
  static constexpr std::uint64_t kFull = 15;
  std::atomic<std::uint64_t>& use_of(const SequenceHash& hash) {
    return sketch_[static_cast<std::size_t>(hash.chain()) % sketch_.size()];
  }
  std::vector<std::atomic<std::uint64_t>> words_;
  std::vector<std::atomic<std::uint64_t>> sketch_;
};

void print_floor() {
  Ours ours("lru");
  LockedFloor floor;
  std::vector<BlockList<ImmutableBlock<G1>>> held;
  for (std::size_t c = 0; c < kResident; ++c) held.push_back(ours.put(chains()[c]));
  BlockList<ImmutableBlock<G1>> found;
  NextChain a;
  std::size_t b = 0;
  print_ratio("counted match_active + drop, beside its locked instructions", kChain, "lru",
              bench::compare(
                  [&] {
                    ASHLAR_CHECK(ours.manager.match_blocks(a().hashes, found) == kChain, "a held chain");
                    found.clear();
                  },
                  [&] {
                    const std::size_t chain = b++ % kResident;
                    floor.match_and_drop(chain * kChain, chains()[chain]);
                  }),
              0);
}

// ---- thread scaling

enum class Load { kActiveDistinct, kActiveShared, kInactiveDistinct, kCycle };

const char* name_of(Load load) {
  switch (load) {
    case Load::kActiveDistinct:
      return "match_active + drop, distinct sequences";
    case Load::kActiveShared:
      return "match_active + drop, one shared prefix";
    case Load::kInactiveDistinct:
      return "match_inactive + drop, distinct sequences";
    case Load::kCycle:
      return "allocate..register..drop";
  }
  return "";
}

// What one thread does in a turn with a manager: matches and drops a chain, or puts one through the full
// cycle.
std::uint64_t take_turn(Ours& ours, Load load, const PromptChain& chain,
                        BlockList<ImmutableBlock<G1>>& found) {
  if (load == Load::kCycle) {
    auto fresh = *ours.manager.allocate_blocks(chain.hashes.size());
    BlockList<CompleteBlock<G1>> complete;
    complete.reserve(fresh.size());
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      complete.push_back(
          *std::move(fresh[i]).complete(chain.sequence.blocks()[i], KvReady::asserted_by_caller()));
    }
    return ours.manager.register_blocks(std::move(complete))->size();
  }
  const std::uint64_t hits = ours.manager.match_blocks(chain.hashes, found);
  found.clear();
  return hits;
}
std::uint64_t take_turn(bench::NaiveBlockManager& rival, Load load, const PromptChain& chain,
                        BlockList<ImmutableBlock<G1>>&) {
  return load == Load::kCycle ? rival.allocate_and_register(chain.hashes).size()
                              : rival.match(chain.hashes).size();
}

// Blocks handled per second by `threads` threads; with `apart`, each thread has a manager of its own.
template <class Manager>
double throughput(std::vector<std::unique_ptr<Manager>>& managers, std::size_t threads, Load load,
                  bool apart) {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> total{0};
  std::barrier start(static_cast<std::ptrdiff_t>(threads) + 1);
  const std::size_t share = (load == Load::kCycle ? chains().size() : kResident) / threads;
  std::vector<std::jthread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      Manager& manager = *managers[apart ? t : 0];
      BlockList<ImmutableBlock<G1>> found;
      std::uint64_t blocks = 0;
      start.arrive_and_wait();
      for (std::size_t turn = 0; !stop.load(std::memory_order_relaxed); ++turn) {
        const std::size_t c = load == Load::kActiveShared ? 0 : t * share + turn % share;
        blocks += take_turn(manager, load, chains()[c], found);
      }
      total.fetch_add(blocks);
    });
  }
  start.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stop.store(true);
  workers.clear();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(total.load()) / elapsed.count();
}

void print_scaling(std::size_t most) {
  std::printf(
      "threads on one LRU manager, as the share of as many independent managers, and beside the rival under "
      "the same threads\nM blocks/s, median of 9 interleaved runs\n");
  std::printf("%-42s %7s %9s %9s %9s   %-20s %s\n", "load", "threads", "one", "apart", "rival",
              "share of apart", "ratio to rival");
  for (const Load load :
       {Load::kActiveDistinct, Load::kActiveShared, Load::kInactiveDistinct, Load::kCycle}) {
    std::vector<std::unique_ptr<bench::NaiveBlockManager>> rival;
    std::vector<std::vector<bench::NaiveBlockManager::Ref>> rival_held;
    std::vector<std::unique_ptr<Ours>> managers;
    std::vector<BlockList<ImmutableBlock<G1>>> held;
    const bool hold = load == Load::kActiveDistinct || load == Load::kActiveShared;
    rival.push_back(std::make_unique<bench::NaiveBlockManager>(kPool));
    for (std::size_t c = 0; c < kResident; ++c) {
      auto registered = rival[0]->allocate_and_register(chains()[c].hashes);
      if (hold) rival_held.push_back(std::move(registered));
    }
    for (std::size_t m = 0; m < most; ++m) {
      managers.push_back(std::make_unique<Ours>("lru"));
      for (std::size_t c = 0; c < kResident; ++c) {
        auto registered = managers[m]->put(chains()[c]);
        if (hold) held.push_back(std::move(registered));
      }
    }
    for (std::size_t threads = 1; threads <= most; threads *= 2) {
      std::vector<double> one, apart, naive, shares, ratios;
      for (int run = 0; run < 9; ++run) {
        one.push_back(throughput(managers, threads, load, false));
        apart.push_back(throughput(managers, threads, load, true));
        naive.push_back(throughput(rival, threads, load, false));
        shares.push_back(one.back() / apart.back());
        ratios.push_back(one.back() / naive.back());
      }
      const bench::Spread share = bench::spread_of(shares);
      const bench::Spread ratio = bench::spread_of(ratios);
      std::printf("%-42s %7zu %9.1f %9.1f %9.1f   %.2f (%.2f..%.2f)    %.2f (%.2f..%.2f)", name_of(load),
                  threads, bench::spread_of(one).median / 1e6, bench::spread_of(apart).median / 1e6,
                  bench::spread_of(naive).median / 1e6, share.median, share.min, share.max, ratio.median,
                  ratio.min, ratio.max);
      const double target = load != Load::kActiveDistinct ? 0
                            : threads == 2                ? 0.85
                            : threads == 16               ? 0.65
                                                          : 0;
      if (target > 0) std::printf("   share target %.2f: %s", target, share.median >= target ? "ok" : "MISS");
      std::printf("\n");
    }
  }
}

// ---- Google Benchmark

void match(benchmark::State& state, const std::string& backend, bool active) {
  Ours ours(backend);
  std::vector<BlockList<ImmutableBlock<G1>>> held;
  for (std::size_t c = 0; c < kResident; ++c) {
    auto registered = ours.put(chains()[c]);
    if (active) held.push_back(std::move(registered));
  }
  BlockList<ImmutableBlock<G1>> found;
  NextChain turn;
  const auto n = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(ours.manager.match_blocks(head(turn(), n), found));
    found.clear();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void cycle(benchmark::State& state, const std::string& backend) {
  Ours ours(backend);
  std::size_t next = 0;
  for (auto _ : state) (void)ours.put(chains()[next++ % chains().size()]);
  state.SetItemsProcessed(state.iterations() * kChain);
}

void register_benchmarks() {
  for (const std::string& backend : kBackends) {
    for (const bool active : {true, false}) {
      benchmark::RegisterBenchmark(((active ? "match_active/" : "match_inactive/") + backend).c_str(),
                                   [=](benchmark::State& state) { match(state, backend, active); })
          ->Arg(8)
          ->Arg(32)
          ->Arg(128);
    }
    benchmark::RegisterBenchmark(("cycle/" + backend).c_str(),
                                 [=](benchmark::State& state) { cycle(state, backend); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  // An engine has threads. In a process with one, the standard library counts shared_ptr references without
  // atomics.
  std::jthread second([](std::stop_token stop) {
    std::mutex mu;
    std::unique_lock<std::mutex> lock(mu);
    std::condition_variable_any().wait(lock, stop, [] { return false; });
  });
  if (argc > 1 && std::strcmp(argv[1], "--scaling") == 0) {
    print_scaling(argc > 2 ? std::stoul(argv[2]) : std::max(1u, std::thread::hardware_concurrency()));
    return 0;
  }
  if (argc > 1) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    register_benchmarks();
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  }
  print_table();
  print_floor();
  return 0;
}
