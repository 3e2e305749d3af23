// index_measure: feeding an index from a workload, asking it, and what that costs.
//
// An index is any type that models index::Indexer; readers beside a writer need one that allows it. Times are
// of the thread that calls; percentiles are of single calls. The hashes of a query are written just before it
// is asked, as a router has just hashed its request, and that is never timed.
//
// Thread safety: free functions; IndexFeed is immutable.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/index/indexer.h"
#include "index_workload.h"

namespace ashlar::bench {

using BenchClock = std::chrono::steady_clock;

inline double nanoseconds_since(BenchClock::time_point start) {
  return std::chrono::duration<double, std::nano>(BenchClock::now() - start).count();
}

// What this thread has computed so far; times between two readings leave out when another thread had the
// processor.
inline double thread_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// Keeps the compiler from seeing through a value.
template <class T>
void keep(T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

inline constexpr std::size_t kFindBatch = 64;  // calls per reading of the clock
inline constexpr std::size_t kChecked = 512;   // queries of each list that go into a fingerprint

// The value below which `share` of all lie. Requires: values not empty.
inline double percentile(std::vector<double>& values, double share) {
  const auto at =
      std::min(static_cast<std::size_t>(static_cast<double>(values.size()) * share), values.size() - 1);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

// The blocks of a workload as an index takes them.
class IndexFeed {
 public:
  explicit IndexFeed(const IndexWorkload& workload) : workload_(workload) {
    const std::size_t depth = workload.depth;
    stored_.reserve(workload.names.size());
    backwards_.resize(workload.names.size());
    for (std::size_t i = 0; i < workload.names.size(); ++i) {
      stored_.push_back({workload.locals[i], workload.names[i]});
      backwards_[i / depth * depth + (depth - 1 - i % depth)] = workload.names[i];
    }
  }

  const IndexWorkload& workload() const noexcept { return workload_; }
  index::Worker worker(std::uint32_t sequence) const noexcept {
    return {index::WorkerId(workload_.worker_of[sequence]), 0};
  }
  std::optional<index::BlockName> parent(const IndexEvent& event) const noexcept {
    if (event.begin == 0) return std::nullopt;
    return stored_[std::size_t{event.sequence} * workload_.depth + event.begin - 1].name;
  }
  std::span<const index::StoredBlock> blocks(const IndexEvent& event) const noexcept {
    return std::span(stored_).subspan(std::size_t{event.sequence} * workload_.depth + event.begin,
                                      event.blocks());
  }
  // The names of an event, from its last block to its first.
  std::span<const index::BlockName> removed(const IndexEvent& event) const noexcept {
    return std::span(backwards_)
        .subspan((std::size_t{event.sequence} + 1) * workload_.depth - event.end, event.blocks());
  }

  template <class Index>
  void apply(Index& index, const IndexEvent& event) const {
    if (event.kind == IndexEvent::kStore) {
      const auto verdict = index.store({.worker = worker(event.sequence),
                                        .tier = index::StorageTier::kDevice,
                                        .parent = parent(event),
                                        .start_position = std::nullopt,
                                        .blocks = blocks(event)});
      ASHLAR_CHECK(verdict == index::StoreVerdict::kApplied, "a store of the workload: %s",
                   events::to_string(verdict).data());
    } else {
      const auto names = removed(event);
      const std::size_t gone = index.remove(worker(event.sequence), index::StorageTier::kDevice, names);
      ASHLAR_CHECK(gone == names.size(), "%zu of %zu names removed", gone, names.size());
    }
  }
  // Returns when all are applied, queues drained.
  template <class Index>
  void apply(Index& index, std::span<const IndexEvent> events) const {
    for (const IndexEvent& event : events) apply(index, event);
    if constexpr (requires { index.settle(); }) index.settle();
  }
  // Nanoseconds until all events are applied.
  template <class Index>
  double timed_apply(Index& index, std::span<const IndexEvent> events) const {
    const auto start = BenchClock::now();
    apply(index, events);
    return nanoseconds_since(start);
  }

 private:
  const IndexWorkload& workload_;
  std::vector<index::StoredBlock> stored_;
  std::vector<index::BlockName> backwards_;  // sequence after sequence, each from its end
};

// A fingerprint of scores: the same for the same workers and depths, in whatever order they come.
class ScoreFingerprint {
 public:
  void add(std::size_t query, const index::MatchScores& scores) {
    scores.for_each([&](const index::Worker& worker, const index::Score& score) {
      ++matches_;
      sum_ += mix(mix(mix(query) ^ worker.id.value()) ^ score.depth);
    });
  }
  // "matches:sum", the sum in hex.
  std::string to_string() const {
    std::array<char, 48> text;
    std::snprintf(text.data(), text.size(), "%" PRIu64 ":%016" PRIx64, matches_, sum_);
    return text.data();
  }

 private:
  std::uint64_t matches_ = 0;
  std::uint64_t sum_ = 0;
};

// What the index answers now to the first queries of some lists.
template <class Index>
std::string fingerprint(const Index& index, const IndexWorkload& workload,
                        std::initializer_list<std::string_view> lists) {
  ScoreFingerprint found;
  index::MatchScores scores;
  std::vector<index::LocalHash> hashes(workload.depth);
  for (const std::string_view list : lists) {
    const std::vector<IndexQuery>& queries = workload.queries_of(list);
    for (std::size_t q = 0; q < std::min(kChecked, queries.size()); ++q) {
      workload.expand(queries[q], hashes);
      index.find_matches(hashes, scores, {});
      found.add(q, scores);
    }
  }
  return found.to_string();
}
template <class Index>
std::string fingerprint(const Index& index, const IndexWorkload& workload) {
  return fingerprint(index, workload, {kHits, kPartialHits, kMisses, kMixed});
}

// Nanoseconds per call of find(query, hashes), the median over batches.
template <class Find>
double time_finds(const IndexWorkload& workload, std::span<const IndexQuery> queries, Find&& find) {
  std::vector<std::vector<index::LocalHash>> staged(kFindBatch,
                                                    std::vector<index::LocalHash>(workload.depth));
  std::vector<double> times;
  for (std::size_t first = 0; first + kFindBatch <= queries.size(); first += kFindBatch) {
    for (std::size_t i = 0; i < kFindBatch; ++i) workload.expand(queries[first + i], staged[i]);
    const auto start = BenchClock::now();
    for (std::size_t i = 0; i < kFindBatch; ++i) find(queries[first + i], staged[i]);
    times.push_back(nanoseconds_since(start) / kFindBatch);
  }
  return percentile(times, 0.5);
}
template <class Index>
double time_finds(const Index& index, const IndexWorkload& workload, std::string_view list) {
  index::MatchScores scores;
  return time_finds(workload, workload.queries_of(list),
                    [&](const IndexQuery&, std::span<const index::LocalHash> hashes) {
                      index.find_matches(hashes, scores, {});
                      keep(scores);
                    });
}

// The same for an index that answers several queries at once, kBatchedQueries per call.
inline constexpr std::size_t kBatchedQueries = 8;

template <class Index>
concept BatchedIndex =
    requires(const Index& index, std::span<const std::span<const index::LocalHash>> queries,
             std::span<index::MatchScores> scores) { index.find_matches(queries, scores); };

template <BatchedIndex Index>
double time_batched_finds(const Index& index, const IndexWorkload& workload, std::string_view list) {
  static_assert(kFindBatch % kBatchedQueries == 0);
  std::array<std::span<const index::LocalHash>, kBatchedQueries> together;
  std::array<index::MatchScores, kBatchedQueries> scores;
  std::size_t filled = 0;
  return time_finds(workload, workload.queries_of(list),
                    [&](const IndexQuery&, std::span<const index::LocalHash> hashes) {
                      together[filled++] = hashes;
                      if (filled < kBatchedQueries) return;
                      index.find_matches(together, scores);
                      keep(scores);
                      filled = 0;
                    });
}

// What one reader saw: the time of every call, and how many answers were too short: a sequence that stays
// stored must be found whole, whatever the writer does.
struct ReaderResult {
  std::vector<double> times;
  std::uint64_t cut_short = 0;
};

// Asks the mixed queries, from the `first` one on, until `done`.
template <class Index>
ReaderResult read_until(const Index& index, const IndexFeed& feed, std::size_t first,
                        const std::atomic<bool>& done) {
  const IndexWorkload& workload = feed.workload();
  const std::vector<IndexQuery>& queries = workload.queries_of(kMixed);
  ReaderResult result;
  result.times.reserve(std::size_t{1} << 20);
  index::MatchScores scores;
  std::vector<index::LocalHash> hashes(workload.depth);
  // relaxed: a hint to stop; the join orders everything else.
  for (std::size_t turn = first; !done.load(std::memory_order_relaxed); ++turn) {
    const IndexQuery& query = queries[turn % queries.size()];
    workload.expand(query, hashes);
    const auto start = BenchClock::now();
    index.find_matches(hashes, scores, {});
    result.times.push_back(nanoseconds_since(start));
    if (workload.stays(query.sequence)) {
      const auto score = scores.of(feed.worker(query.sequence));
      result.cut_short += !score || score->depth < query.keep;
    }
  }
  return result;
}

struct MixedResult {
  double write_ns = 0;  // per block
  double finds_per_second = 0;
  double find_p50 = 0;
  double find_p99 = 0;
  std::uint64_t finds = 0;
  std::uint64_t cut_short = 0;
};

// One thread applies events until none is left, `readers` others ask until then.
template <class Index>
MixedResult run_mixed(Index& index, const IndexFeed& feed, std::span<const IndexEvent> events,
                      std::size_t readers) {
  std::atomic<bool> done{false};
  std::vector<ReaderResult> seen(readers);
  std::barrier start(static_cast<std::ptrdiff_t>(readers) + 1);
  double elapsed = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < readers; ++r) {
      threads.emplace_back([&, r] {
        start.arrive_and_wait();
        seen[r] = read_until(index, feed, r * 97, done);
      });
    }
    start.arrive_and_wait();
    elapsed = feed.timed_apply(index, events);
    done.store(true, std::memory_order_relaxed);
  }
  MixedResult result;
  result.write_ns = elapsed / static_cast<double>(blocks_in(events));
  std::vector<double> times;
  for (const ReaderResult& reader : seen) {
    times.insert(times.end(), reader.times.begin(), reader.times.end());
    result.cut_short += reader.cut_short;
  }
  result.finds = times.size();
  if (times.empty()) return result;
  result.finds_per_second = static_cast<double>(times.size()) / elapsed * 1e9;
  result.find_p50 = percentile(times, 0.50);
  result.find_p99 = percentile(times, 0.99);
  return result;
}

}  // namespace ashlar::bench
