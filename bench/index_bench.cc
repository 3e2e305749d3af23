// Router index benchmarks, all structures on the same workloads.
//
//   index_bench                 store, remove, find and memory; then a writer churning beside readers
//   index_bench --large         the same with 10 million blocks in sequences and 1,000 workers
//   index_bench --scaling [N]   up to N readers on one index with a churning writer, beside as many private
//                               copies
//   index_bench --growth        the slowest finds and stores while an index grows from nothing to 10 million
//                               blocks
//   index_bench --replay [FILE] a trace of requests (JSON lines with hash_ids and timestamp), or a generated
//   one
//   index_bench --outline       the tree of GET /tree over a million blocks: the walk, and what is made of it
//   --structures a,b  --loads a,b  take only these
//
// The loads are those of index_workload.h; bench/peers/run_index runs them beside the published indexes.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "ashlar/base/check.h"
#include "index_floor.h"
#include "index_measure.h"
#include "index_replay.h"
#include "index_structures.h"
#include "index_workload.h"
#include "ratio.h"
#include "service/gateway/prefix_tree.h"

namespace {

using namespace ashlar;
using namespace ashlar::bench;

constexpr std::uint32_t kLargeSequences = 9766;
constexpr std::uint32_t kLargeWorkers = 1000;

struct Options {
  enum Part { kTables, kCosts, kScaling, kGrowth, kReplay, kOutline };
  Part part = kTables;
  bool large = false;
  std::size_t threads = std::max(2u, std::thread::hardware_concurrency());
  std::string trace;
  std::vector<std::string> structures{std::begin(kIndexStructures), std::end(kIndexStructures)};
  std::vector<std::string> loads{"shared25", "disjoint", "broad"};
};

IndexWorkload make_workload(const std::string& load_name, bool large) {
  IndexLoad load = IndexLoad::named(load_name).value();
  if (large) {
    load.sequences = kLargeSequences;
    load.added = 488;
    load.workers = kLargeWorkers;
  }
  return IndexWorkload::generate(load);
}

double per_block(double nanoseconds, std::span<const IndexEvent> events) {
  return nanoseconds / static_cast<double>(blocks_in(events));
}

// ---- store, remove, find, memory

// Of partial hits: a hit ends with the look at its last block.
double lookups_per_find(const index::PositionalIndexer& index, const IndexWorkload& workload) {
  std::vector<index::LocalHash> hashes(workload.depth);
  index::MatchScores scores;
  std::size_t lookups = 0;
  const auto& queries = workload.queries_of(kPartialHits);
  for (const IndexQuery& query : queries) {
    workload.expand(query, hashes);
    index.find_matches(hashes, scores, {});
    lookups += index::PositionalIndexer::lookups_of_last_find();
  }
  return static_cast<double>(lookups) / static_cast<double>(queries.size());
}

void print_costs(const IndexFeed& feed, const std::string& load, std::uint32_t event_size,
                 const std::string& structure) {
  const IndexWorkload& workload = feed.workload();
  const auto& stores = workload.events_of(kStores, event_size);
  const auto measure = [&](auto make) {
    auto index = make();
    std::vector<double> fills{feed.timed_apply(*index, stores)};
    const std::string before = fingerprint(*index, workload);
    const double hit = time_finds(*index, workload, kHits);
    const double partial = time_finds(*index, workload, kPartialHits);
    const double miss = time_finds(*index, workload, kMisses);
    double batched = 0;
    if constexpr (BatchedIndex<std::remove_cvref_t<decltype(*index)>>) {
      batched = time_batched_finds(*index, workload, kHits);
    }
    double lookups = 0;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*index)>, index::PositionalIndexer>)
      lookups = lookups_per_find(*index, workload);
    const auto sizes = index->sizes();
    ASHLAR_CHECK(sizes.blocks == workload.pairs, "%zu blocks, not %zu", sizes.blocks,
                 std::size_t{workload.pairs});
    const double tail = feed.timed_apply(*index, workload.events_of(kTailRemovals, event_size));
    ASHLAR_CHECK(index->sizes().blocks == 0, "nothing is left");
    fills.push_back(feed.timed_apply(*index, stores));
    ASHLAR_CHECK(fingerprint(*index, workload) == before, "a second fill answers as the first");
    const double random = feed.timed_apply(*index, workload.events_of(kRandomRemovals, event_size));
    std::printf("%-22s %-9s %6u %9.1f %9.1f %9.1f %9.0f %9.0f %9.0f %9.0f %9.1f %9.1f\n", structure.c_str(),
                load.c_str(), event_size, per_block(percentile(fills, 0.5), stores),
                per_block(tail, workload.events_of(kTailRemovals, event_size)),
                per_block(random, workload.events_of(kRandomRemovals, event_size)), hit, batched, partial,
                miss, static_cast<double>(sizes.bytes) / static_cast<double>(workload.pairs), lookups);
    std::fflush(stdout);
  };
  with_structure(structure, measure, workload.contents);
}

void print_floor(const IndexFeed& feed, const std::string& load) {
  const IndexWorkload& workload = feed.workload();
  FindFloor floor(workload);
  const auto find = [&](std::string_view list) {
    return time_finds(workload, workload.queries_of(list),
                      [&](const IndexQuery& query, std::span<const index::LocalHash> hashes) {
                        floor.find(query, hashes);
                      });
  };
  NameTableFloor table(workload.contents);
  const auto stored = names_in(feed, workload.events_of(kStores, kEventSizes[0]));
  const auto removed = names_in(feed, workload.events_of(kTailRemovals, kEventSizes[0]));
  const auto count = [](const std::vector<std::uint64_t>& names) {
    return static_cast<double>(names.size());
  };
  const double store =
      time_calls([&] { ASHLAR_CHECK(table.insert(stored) == workload.contents, "names"); }, 1);
  const double look_up =
      time_calls([&] { ASHLAR_CHECK(table.look_up(removed) == removed.size(), "names"); }, 1);
  std::printf("%-22s %-9s %6s %9.1f %9.1f %9s %9.0f %9s %9.0f\n", "(floor)", load.c_str(), "",
              store / count(stored), look_up / count(removed), "", find(kHits), "", find(kPartialHits));
}

// ---- one writer beside readers

void print_churn(const IndexFeed& feed, const std::string& load, std::uint32_t event_size,
                 const std::string& structure, std::size_t most_readers) {
  const IndexWorkload& workload = feed.workload();
  with_structure(structure, [&](auto make) {
    auto index = make();
    feed.apply(*index, workload.events_of(kStores, event_size));
    const std::string before = fingerprint(*index, workload);
    for (std::size_t readers = 1;; readers = std::min(2 * readers, most_readers)) {
      const MixedResult result = run_mixed(*index, feed, workload.events_of(kChurn, event_size), readers);
      ASHLAR_CHECK(result.cut_short == 0, "%zu finds missed blocks that stayed",
                   std::size_t{result.cut_short});
      ASHLAR_CHECK(fingerprint(*index, workload) == before, "the churn ends as it began");
      std::printf("%-22s %-9s %6u %8zu %12.2f %12.3f %9.2f %9.2f\n", structure.c_str(), load.c_str(),
                  event_size, readers, 1e3 / result.write_ns, result.finds_per_second / 1e6,
                  result.find_p50 / 1e3, result.find_p99 / 1e3);
      std::fflush(stdout);
      if (readers >= most_readers) break;
    }
  });
}

void print_tables(const Options& options) {
  std::printf(
      "store and remove in ns per block, find in ns per query (hit/8: 8 queries per call, where there is "
      "such a\n"
      "call), memory in bytes per (worker, block), look-ups of a positional index per partial hit\n");
  std::printf("%-22s %-9s %6s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "structure", "load", "events", "store",
              "rm tail", "rm random", "hit", "hit/8", "partial", "miss", "bytes", "look-ups");
  for (const std::string& load : options.loads) {
    const IndexWorkload workload = make_workload(load, options.large);
    const IndexFeed feed(workload);
    print_floor(feed, load);
    for (const std::string& structure : options.structures)
      for (const std::uint32_t size : kEventSizes) print_costs(feed, load, size, structure);
  }
  if (options.part == Options::kCosts) return;
  std::printf(
      "\none writer churning beside readers: million blocks stored and removed per second, drain included; "
      "million\n"
      "finds per second, times in us\n");
  std::printf("%-22s %-9s %6s %8s %12s %12s %9s %9s\n", "structure", "load", "events", "readers",
              "M blocks/s", "M finds/s", "p50", "p99");
  for (const std::string& load : options.loads) {
    const IndexWorkload workload = make_workload(load, options.large);
    const IndexFeed feed(workload);
    for (const std::string& structure : options.structures)
      for (const std::uint32_t size : kEventSizes)
        if (is_concurrent(structure)) print_churn(feed, load, size, structure, options.threads - 1);
  }
}

// ---- readers on one index beside readers on copies

// Finds per second of one reader, its own preparation left out.
template <class Index>
double find_rate(const Index& index, const IndexWorkload& workload, std::size_t first,
                 const std::atomic<bool>& done) {
  const auto& queries = workload.queries_of(kMixed);
  std::vector<std::vector<index::LocalHash>> staged(kFindBatch,
                                                    std::vector<index::LocalHash>(workload.depth));
  index::MatchScores scores;
  double spent = 0;
  std::size_t finds = 0;
  do {
    for (auto& hashes : staged) workload.expand(queries[first++ % queries.size()], hashes);
    const auto start = BenchClock::now();
    for (const auto& hashes : staged) {
      index.find_matches(hashes, scores, {});
      keep(scores);
    }
    spent += nanoseconds_since(start);
    finds += kFindBatch;
    // relaxed: a hint to stop; the join orders everything else.
  } while (!done.load(std::memory_order_relaxed));
  return static_cast<double>(finds) / spent * 1e9;
}

// The sum over readers; each has its own of the `indexes`, or all have the only one, which `writing` then
// churns.
template <class Index>
double total_find_rate(std::span<const std::unique_ptr<Index>> indexes, std::size_t readers,
                       const IndexFeed& feed, bool writing) {
  constexpr auto kRun = std::chrono::milliseconds(200);
  const IndexWorkload& workload = feed.workload();
  std::atomic<bool> done{false};
  std::vector<double> rates(readers);
  std::barrier start(static_cast<std::ptrdiff_t>(readers) + 1);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < readers; ++r) {
    threads.emplace_back([&, r] {
      start.arrive_and_wait();
      rates[r] = find_rate(*indexes[writing ? 0 : r], workload, r * 97, done);
    });
  }
  start.arrive_and_wait();
  const auto end = BenchClock::now() + kRun;
  if (writing) {
    // Always a whole turn, so that the index is as it was.
    const auto& churn = workload.events_of(kChurn, 16);
    do {
      for (const IndexEvent& event : churn) {
        feed.apply(*indexes[0], event);
        if (BenchClock::now() >= end) done.store(true, std::memory_order_relaxed);
      }
    } while (!done.load(std::memory_order_relaxed));
  } else {
    std::this_thread::sleep_until(end);
    done.store(true, std::memory_order_relaxed);
  }
  threads.clear();
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

void print_scaling(const Options& options) {
  std::printf(
      "readers on one index with a churning writer, as the share of readers on private copies without one\n"
      "M finds/s over all readers, median of 9 interleaved runs\n");
  std::printf("%-22s %-9s %8s %10s %10s   %s\n", "structure", "load", "readers", "one", "copies",
              "share (min..max)");
  for (const std::string& load : options.loads) {
    const IndexWorkload workload = make_workload(load, false);
    const IndexFeed feed(workload);
    for (const std::string& structure : options.structures) {
      if (!is_concurrent(structure)) continue;
      with_structure(structure, [&](auto make) {
        std::vector<decltype(make())> indexes;
        const std::size_t most = options.threads - 1;
        for (std::size_t i = 0; i < most; ++i) {
          indexes.push_back(make());
          feed.apply(*indexes.back(), workload.events_of(kStores, 16));
        }
        for (std::size_t readers = 1;; readers = std::min(2 * readers, most)) {
          std::vector<double> one, copies, shares;
          for (int run = 0; run < 9; ++run) {
            one.push_back(total_find_rate(std::span<const decltype(make())>(indexes), readers, feed, true));
            copies.push_back(
                total_find_rate(std::span<const decltype(make())>(indexes), readers, feed, false));
            shares.push_back(one.back() / copies.back());
          }
          const Spread share = spread_of(shares);
          std::printf("%-22s %-9s %8zu %10.2f %10.2f   %.2f (%.2f..%.2f)", structure.c_str(), load.c_str(),
                      readers, spread_of(one).median / 1e6, spread_of(copies).median / 1e6, share.median,
                      share.min, share.max);
          if (structure == "flash" && readers == 15) {
            std::printf("   target 0.80: %s", share.median >= 0.8 ? "ok" : "MISS");
          }
          std::printf("\n");
          std::fflush(stdout);
          if (readers >= most) break;
        }
      });
    }
  }
}

// ---- growth

// Times of single calls, by the wall and by the thread's own clock.
struct CallTimes {
  std::vector<double> wall;
  double longest_computed = 0;

  template <class F>
  void time(F&& call) {
    const double computed = thread_nanoseconds();
    const auto start = BenchClock::now();
    call();
    wall.push_back(nanoseconds_since(start));
    longest_computed = std::max(longest_computed, thread_nanoseconds() - computed);
  }
  double microseconds(double share) { return wall.empty() ? 0 : percentile(wall, share) / 1e3; }
};

template <class Index>
void grow(Index& index, const IndexFeed& feed, std::span<const IndexEvent> stores, CallTimes& finds,
          CallTimes& events) {
  const IndexWorkload& workload = feed.workload();
  std::atomic<std::uint32_t> stored{0};  // sequences that are there
  std::atomic<bool> done{false};
  finds.wall.reserve(std::size_t{1} << 23);
  events.wall.reserve(stores.size());
  const std::jthread reader([&] {
    index::MatchScores scores;
    std::vector<index::LocalHash> hashes(workload.depth);
    // relaxed: a hint to stop; the join orders everything else.
    for (std::uint64_t turn = 0; !done.load(std::memory_order_relaxed); ++turn) {
      // acquire: pairs with the writer's release; what it counts is in the index.
      const std::uint32_t known = stored.load(std::memory_order_acquire);
      const auto sequence = static_cast<std::uint32_t>(mix(turn) % std::max(known, 1u));
      workload.expand({sequence, workload.depth, 0}, hashes);
      finds.time([&] { index.find_matches(hashes, scores, {}); });
      ASHLAR_CHECK(known == 0 || scores.longest() == workload.depth, "a stored sequence is found whole");
    }
  });
  for (const IndexEvent& event : stores) {
    events.time([&] { feed.apply(index, event); });
    // release: pairs with the reader's acquire.
    if (event.end == workload.depth) stored.store(event.sequence + 1, std::memory_order_release);
  }
  done.store(true, std::memory_order_relaxed);
}

void print_growth(const Options& options) {
  std::printf(
      "while an index grows from nothing to 10 million blocks, one writer and one reader; times of single "
      "calls in\n"
      "us, `computed` without the time in which another thread had the processor\n");
  std::printf("%-22s %-9s %6s   %9s %9s %9s %9s   %11s %9s %9s\n", "structure", "load", "events", "find p99",
              "p99.9", "max", "computed", "store p99.9", "max", "computed");
  for (const std::string& load : options.loads) {
    const IndexWorkload workload = make_workload(load, true);
    const IndexFeed feed(workload);
    for (const std::string& structure : options.structures) {
      if (!is_concurrent(structure) || structure == "flash_pool")
        continue;  // a queue answers before it applies
      for (const std::uint32_t size : kEventSizes) {
        CallTimes finds, events;
        with_structure(structure, [&](auto make) {
          grow(*make(), feed, workload.events_of(kStores, size), finds, events);
        });
        std::printf("%-22s %-9s %6u   %9.2f %9.2f %9.2f %9.2f   %11.2f %9.2f %9.2f\n", structure.c_str(),
                    load.c_str(), size, finds.microseconds(0.99), finds.microseconds(0.999),
                    finds.microseconds(1.0), finds.longest_computed / 1e3, events.microseconds(0.999),
                    events.microseconds(1.0), events.longest_computed / 1e3);
        std::fflush(stdout);
      }
    }
  }
}

// ---- replay

void print_timed_replay(const Options& options, const Replay& replay) {
  std::printf(
      "at the times of the trace, compressed: M blocks/s stored and removed, times in us since an event was "
      "due\n");
  std::printf("%-22s %12s %10s %10s %10s %10s %10s\n", "structure", "faster", "offered", "achieved",
              "late p99", "find p50", "find p99");
  for (const std::string& structure : options.structures) {
    if (!is_concurrent(structure)) continue;
    with_structure(structure, [&](auto make) {
      for (const double seconds : {1.0, 0.1, 0.02}) {
        auto index = make();
        const TimedResult timed = play_timed(*index, replay, seconds);
        const bool keeps_up = timed.achieved_blocks >= 0.95 * timed.offered_blocks;
        std::printf("%-22s %11.0fx %10.2f %10.2f %10.1f %10.1f %10.1f%s\n", structure.c_str(), timed.faster,
                    timed.offered_blocks / 1e6, timed.achieved_blocks / 1e6, timed.late_p99 / 1e3,
                    timed.find_p50 / 1e3, timed.find_p99 / 1e3, keeps_up ? "" : "   falls behind");
        std::fflush(stdout);
      }
    });
  }
}

int print_replay(const Options& options) {
  std::vector<IndexRequest> trace;
  if (options.trace.empty()) {
    trace = generate_trace();
  } else {
    auto read = read_trace(options.trace);
    if (!read) {
      std::fprintf(stderr, "index_bench: %s\n", read.error().to_string().c_str());
      return 2;
    }
    trace = *std::move(read);
  }
  const ReplayOptions workers;
  const Replay replay = Replay::plan(trace, workers);
  std::printf(
      "%zu requests of %zu blocks on %u workers with %zu blocks each: %zu blocks stored, %zu removed, %.1f "
      "%% found\n",
      trace.size(), replay.locals.size(), workers.workers, workers.cache_blocks, replay.stored.size(),
      replay.removed.size(),
      100.0 * static_cast<double>(replay.hits) / static_cast<double>(replay.locals.size()));
  std::printf("in order: one thread does all; apart: a writer beside a reader; times in ns\n");
  std::printf("%-22s   %14s %8s %8s   %14s %8s %8s\n", "structure", "in order M/s", "find p50", "p99",
              "apart M/s", "find p50", "p99");
  for (const std::string& structure : options.structures) {
    with_structure(structure, [&](auto make) {
      auto index = make();
      const ReplayResult ordered = play(*index, replay);
      ASHLAR_CHECK(ordered.wrong == 0, "%zu finds were wrong", ordered.wrong);
      std::printf("%-22s   %14.2f %8.0f %8.0f", structure.c_str(), ordered.block_operations_per_second / 1e6,
                  ordered.find_p50, ordered.find_p99);
      if (is_concurrent(structure)) {
        index = make();
        const ReplayResult apart = play_apart(*index, replay);
        std::printf("   %14.2f %8.0f %8.0f", apart.block_operations_per_second / 1e6, apart.find_p50,
                    apart.find_p99);
      }
      std::printf("\n");
      std::fflush(stdout);
    });
  }
  print_timed_replay(options, replay);
  return 0;
}

// ---- the tree of the live page

void print_outline(const index::FlashIndex& index, const std::string& load) {
  constexpr int kRuns = 9;
  std::vector<double> walks, trees, views;
  std::uint64_t blocks = 0;
  std::size_t elements = 0;
  for (int run = 0; run < kRuns; ++run) {
    auto start = BenchClock::now();
    index::IndexOutline outline;
    index.outline(outline);
    walks.push_back(nanoseconds_since(start) / 1e6);
    start = BenchClock::now();
    const service::PrefixTree tree(std::move(outline));
    trees.push_back(nanoseconds_since(start) / 1e6);
    start = BenchClock::now();
    auto view = tree.view({.depth = 1, .limit = 200});
    keep(view);
    views.push_back(nanoseconds_since(start) / 1e6);
    blocks = tree.blocks();
    elements = tree.elements();
  }
  std::printf("%-9s %9llu %9zu   %9.2f %9.2f %9.2f\n", load.c_str(), static_cast<unsigned long long>(blocks),
              elements, spread_of(walks).median, spread_of(trees).median, spread_of(views).median);
  std::fflush(stdout);
}

void print_outlines(const Options& options) {
  std::printf(
      "GET /tree of `flash`: median times in ms of the walk, the tree made of it, and 200 elements\n");
  std::printf("%-9s %9s %9s   %9s %9s %9s\n", "load", "blocks", "elements", "walk", "tree", "view");
  for (const std::string& load : options.loads) {
    const IndexWorkload workload = make_workload(load, options.large);
    index::FlashIndex index;
    IndexFeed(workload).apply(index, workload.events_of(kStores, kEventSizes[0]));
    print_outline(index, load);
  }
  // Every block is a branch of its own.
  index::FlashIndex index;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    const index::StoredBlock block{index::LocalHash(mix(i)), index::BlockName(mix(~i))};
    const auto verdict = index.store({.worker = {index::WorkerId(i % 128), 0},
                                      .tier = index::StorageTier::kDevice,
                                      .parent = std::nullopt,
                                      .start_position = std::nullopt,
                                      .blocks = std::span(&block, 1)});
    ASHLAR_CHECK(verdict == index::StoreVerdict::kApplied, "%s", events::to_string(verdict).data());
  }
  print_outline(index, "branches");
}

// ---- command line

constexpr const char* kUsage =
    "usage: index_bench [--large | --costs | --scaling [N] | --growth | --replay [FILE] | --outline]\n"
    "                   [--structures a,b] [--loads a,b]";

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "index_bench: %s\n%s\n", what.c_str(), kUsage);
  std::exit(2);
}

std::size_t readers_in(const std::string& text) {
  std::size_t readers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), readers);
  if (error != std::errc() || end != text.data() + text.size() || readers == 0 || readers > 1024)
    refuse("--scaling " + text + ": readers are a number from 1 to 1024");
  return readers;
}

std::vector<std::string> choose(const std::string& text, const std::vector<std::string>& known) {
  std::vector<std::string> chosen;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    chosen.push_back(text.substr(at, comma - at));
    if (std::ranges::find(known, chosen.back()) == known.end()) refuse("unknown name " + chosen.back());
    at = comma + 1;
  }
  return chosen;
}

Options parse(std::span<char*> args) {
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string option = args[i];
    const bool has_value = i + 1 < args.size() && args[i + 1][0] != '-';
    if (option == "--large") {
      options.large = true;
    } else if (option == "--costs") {
      options.part = Options::kCosts;
    } else if (option == "--scaling") {
      options.part = Options::kScaling;
      if (has_value) options.threads = readers_in(args[++i]) + 1;
    } else if (option == "--help") {
      std::puts(kUsage);
      std::exit(0);
    } else if (option == "--growth") {
      options.part = Options::kGrowth;
    } else if (option == "--outline") {
      options.part = Options::kOutline;
    } else if (option == "--replay") {
      options.part = Options::kReplay;
      if (has_value) options.trace = args[++i];
    } else if (option == "--structures" && has_value) {
      options.structures = choose(args[++i], options.structures);
    } else if (option == "--loads" && has_value) {
      options.loads = choose(args[++i], options.loads);
    } else {
      refuse("unknown option " + option);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  switch (options.part) {
    case Options::kTables:
    case Options::kCosts:
      print_tables(options);
      return 0;
    case Options::kScaling:
      print_scaling(options);
      return 0;
    case Options::kGrowth:
      print_growth(options);
      return 0;
    case Options::kOutline:
      print_outlines(options);
      return 0;
    case Options::kReplay:
      return print_replay(options);
  }
  return 0;
}
