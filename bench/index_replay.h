// index_replay: a trace of requests turned into what a routing index is told and asked.
//
// Every request goes to the worker that has the longest prefix of it, when that is at least half of it, else
// to the one that was given the fewest blocks so far. A worker has a cache of a fixed number of blocks: it
// stores what it lacks and evicts what was used longest ago, the end of a prefix before its start. So a
// request becomes a find, perhaps a removal, perhaps a store, in this order. The answer of every find is
// known beforehand from the caches themselves.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"
#include "index_measure.h"

namespace ashlar::bench {

struct IndexRequest {
  double at = 0;                   // milliseconds
  std::vector<std::uint64_t> ids;  // of the blocks of the prompt, in order; equal ids are equal blocks
};

// One JSON object per line with an array `hash_ids` and a number `timestamp` in milliseconds; without that
// requests come a millisecond apart. The requests are in the order of their times.
// Errors: kIo when the file cannot be read, kInvalidArgument with the line that has no ids.
Result<std::vector<IndexRequest>> read_trace(const std::string& path);
// Conversations of several turns, each turn with the whole history before it, on a few system prompts.
std::vector<IndexRequest> generate_trace();

struct ReplayOptions {
  std::uint32_t workers = 16;
  std::size_t cache_blocks = 4096;
};

struct ReplayStep {
  enum Kind : std::uint8_t { kFind, kRemove, kStore };
  Kind kind;
  std::uint32_t worker;  // of a removal or a store
  std::size_t first;     // in locals, removed or stored of the replay
  std::size_t count;
  std::optional<index::BlockName> parent;  // of a store
  std::uint32_t depth = 0;                 // the right answer of a find: the longest prefix
  double at = 0;                           // milliseconds since the first request
};

struct Replay {
  std::vector<ReplayStep> steps;
  std::vector<index::LocalHash> locals;
  std::vector<index::BlockName> removed;
  std::vector<index::StoredBlock> stored;
  std::size_t hits = 0;  // blocks that a request found on its worker

  static Replay plan(std::span<const IndexRequest> trace, const ReplayOptions& options);

  template <class Index>
  void write(Index& index, const ReplayStep& step) const {
    const index::Worker worker{index::WorkerId(step.worker), 0};
    if (step.kind == ReplayStep::kStore) {
      const auto verdict = index.store({.worker = worker,
                                        .tier = index::StorageTier::kDevice,
                                        .parent = step.parent,
                                        .start_position = std::nullopt,
                                        .blocks = std::span(stored).subspan(step.first, step.count)});
      ASHLAR_CHECK(verdict == index::StoreVerdict::kApplied, "a store of the replay: %s",
                   events::to_string(verdict).data());
    } else {
      const auto names = std::span(removed).subspan(step.first, step.count);
      ASHLAR_CHECK(index.remove(worker, index::StorageTier::kDevice, names) == step.count,
                   "a removal of the replay");
    }
  }
  template <class Index>
  std::uint32_t find(const Index& index, const ReplayStep& step, index::MatchScores& scores) const {
    index.find_matches(std::span(locals).subspan(step.first, step.count), scores, {});
    return scores.longest();
  }
};

struct ReplayResult {
  double block_operations_per_second = 0;  // blocks stored and removed, over the time that took
  double find_p50 = 0;
  double find_p99 = 0;
  std::size_t wrong = 0;  // finds whose longest prefix was not the right one
};

// All steps in order, on one thread.
template <class Index>
ReplayResult play(Index& index, const Replay& replay) {
  ReplayResult result;
  std::vector<double> finds;
  index::MatchScores scores;
  double writing = 0;
  for (const ReplayStep& step : replay.steps) {
    const auto start = BenchClock::now();
    if (step.kind == ReplayStep::kFind) {
      const std::uint32_t longest = replay.find(index, step, scores);
      finds.push_back(nanoseconds_since(start));
      result.wrong += longest != step.depth;
    } else {
      replay.write(index, step);
      if constexpr (requires { index.settle(); }) index.settle();
      writing += nanoseconds_since(start);
    }
  }
  const std::size_t blocks = replay.stored.size() + replay.removed.size();
  result.block_operations_per_second = static_cast<double>(blocks) / writing * 1e9;
  result.find_p50 = percentile(finds, 0.50);
  result.find_p99 = percentile(finds, 0.99);
  return result;
}

// One thread writes as fast as it can, another asks the same finds over and over until it is done.
template <class Index>
ReplayResult play_apart(Index& index, const Replay& replay) {
  std::atomic<bool> done{false};
  std::vector<double> finds;
  double writing = 0;
  {
    const std::jthread reader([&] {
      index::MatchScores scores;
      std::size_t at = 0;
      do {
        const ReplayStep& step = replay.steps[at++ % replay.steps.size()];
        if (step.kind != ReplayStep::kFind) continue;
        const auto start = BenchClock::now();
        (void)replay.find(index, step, scores);
        finds.push_back(nanoseconds_since(start));
        // relaxed: a hint to stop; the join orders everything else.
      } while (finds.empty() || !done.load(std::memory_order_relaxed));
    });
    const auto start = BenchClock::now();
    for (const ReplayStep& step : replay.steps)
      if (step.kind != ReplayStep::kFind) replay.write(index, step);
    if constexpr (requires { index.settle(); }) index.settle();
    writing = nanoseconds_since(start);
    done.store(true, std::memory_order_relaxed);
  }
  const std::size_t blocks = replay.stored.size() + replay.removed.size();
  return {static_cast<double>(blocks) / writing * 1e9, percentile(finds, 0.50), percentile(finds, 0.99), 0};
}

struct TimedResult {
  double faster = 0;  // than the trace
  double offered_blocks = 0;
  double achieved_blocks = 0;  // stored and removed, per second
  double late_p99 = 0;         // how long after its time a write was done, in nanoseconds
  double find_p50 = 0;         // from the time of a find to its answer
  double find_p99 = 0;
};

// Plays the steps at their times, so much faster that the trace takes `seconds`: one thread writes, another
// one asks. Whoever is late goes on at once, and what waits is counted from when it was due.
template <class Index>
TimedResult play_timed(Index& index, const Replay& replay, double seconds) {
  const double span = std::max(replay.steps.back().at, 1.0);
  const double scale = seconds * 1e9 / span;  // nanoseconds per millisecond of the trace
  std::vector<double> finds;
  std::vector<double> late;
  double elapsed = 0;
  const auto start = BenchClock::now();
  const auto wait_for = [&](const ReplayStep& step) {
    while (nanoseconds_since(start) < step.at * scale) {
    }
    return step.at * scale;
  };
  {
    const std::jthread reader([&] {
      index::MatchScores scores;
      for (const ReplayStep& step : replay.steps) {
        if (step.kind != ReplayStep::kFind) continue;
        const double due = wait_for(step);
        (void)replay.find(index, step, scores);
        finds.push_back(nanoseconds_since(start) - due);
      }
    });
    for (const ReplayStep& step : replay.steps) {
      if (step.kind == ReplayStep::kFind) continue;
      const double due = wait_for(step);
      replay.write(index, step);
      late.push_back(nanoseconds_since(start) - due);
    }
    if constexpr (requires { index.settle(); }) index.settle();
    elapsed = nanoseconds_since(start);
  }
  const auto blocks = static_cast<double>(replay.stored.size() + replay.removed.size());
  return {span / 1e3 / seconds,   blocks / seconds,        blocks / elapsed * 1e9,
          percentile(late, 0.99), percentile(finds, 0.50), percentile(finds, 0.99)};
}

}  // namespace ashlar::bench
