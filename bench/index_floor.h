// index_floor: the least that an index must do, as plain loops over the same workload. Nothing is decided,
// nothing is kept consistent; what these loops cost is what the machine charges for touching the memory.
//
// FIND: compare the query with the stored hashes of its sequence by vector loads, and write one score per
// worker. STORE: put names into an open-addressing table of 64-byte buckets, the bucket of the 16th next name
// prefetched. REMOVE: look them up there.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <latch>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ashlar/index/indexer.h"
#include "base/large_array.h"
#include "index_measure.h"
#include "index_workload.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ASHLAR_FLOOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ASHLAR_FLOOR_CLONES
#endif

namespace ashlar::bench {

// How many hashes agree, counted in steps of 32.
ASHLAR_FLOOR_CLONES
inline std::size_t equal_hashes(const std::uint64_t* left, const std::uint64_t* right, std::size_t count) {
  using Vector [[gnu::vector_size(64)]] = std::uint64_t;
  constexpr std::size_t kLanes = sizeof(Vector) / sizeof(std::uint64_t);
  std::size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    Vector differ = {};
    for (std::size_t k = 0; k < 4 * kLanes; k += kLanes) {
      Vector a, b;
      std::memcpy(&a, left + i + k, sizeof(a));
      std::memcpy(&b, right + i + k, sizeof(b));
      differ |= a ^ b;
    }
    std::uint64_t any = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) any |= differ[lane];
    if (any != 0) break;
  }
  return i;
}

class FindFloor {
 public:
  explicit FindFloor(const IndexWorkload& workload)
      : depth_(workload.depth), stored_(workload.locals), scores_(workload.workers) {
    std::unordered_map<std::uint64_t, std::uint32_t> by_end;
    for (std::uint32_t s = 0; s < workload.sequences(); ++s) {
      const std::uint64_t end = workload.names[(std::size_t{s} + 1) * workload.depth - 1].value();
      content_of_.push_back(by_end.emplace(end, s).first->second);
    }
  }

  void find(const IndexQuery& query, std::span<const index::LocalHash> hashes) {
    const auto stored = std::span(stored_).subspan(std::size_t{content_of_[query.sequence]} * depth_, depth_);
    const std::size_t depth =
        equal_hashes(reinterpret_cast<const std::uint64_t*>(stored.data()),
                     reinterpret_cast<const std::uint64_t*>(hashes.data()), hashes.size());
    std::ranges::fill(scores_, static_cast<std::uint32_t>(depth));
    keep(scores_);
  }

 private:
  std::size_t depth_;
  std::vector<index::LocalHash> stored_;   // apart from the workload, which the queries are written from
  std::vector<std::uint32_t> content_of_;  // the first sequence of the same blocks: an index holds them once
  std::vector<std::uint32_t> scores_;
};

// The names of all blocks of a list, in its order.
inline std::vector<std::uint64_t> names_in(const IndexFeed& feed, std::span<const IndexEvent> events) {
  std::vector<std::uint64_t> names;
  for (const IndexEvent& event : events) {
    for (const index::BlockName name : feed.removed(event)) names.push_back(name.value());
    if (event.kind == IndexEvent::kStore) std::ranges::reverse(std::span(names).last(event.blocks()));
  }
  return names;
}

class NameTableFloor {
 public:
  static constexpr std::size_t kAhead = 16;

  explicit NameTableFloor(std::size_t contents)
      : buckets_(std::bit_ceil(std::max<std::size_t>(contents / 3, 2))),
        shift_(64 - static_cast<unsigned>(std::countr_zero(buckets_.size()))) {}

  // Returns how many names were new.
  std::size_t insert(std::span<const std::uint64_t> names) {
    std::size_t fresh = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      __builtin_prefetch(&buckets_[names[std::min(i + kAhead, names.size() - 1)] >> shift_], 1);
      fresh += insert(names[i], static_cast<std::uint32_t>(i));
    }
    return fresh;
  }
  // Returns how many names were found.
  std::size_t look_up(std::span<const std::uint64_t> names) const {
    std::size_t found = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      __builtin_prefetch(&buckets_[names[std::min(i + kAhead, names.size() - 1)] >> shift_]);
      found += find(names[i]) != nullptr;
    }
    return found;
  }

 private:
  static constexpr std::size_t kSlots = 5;
  struct alignas(64) Bucket {
    std::uint64_t names[kSlots];
    std::uint32_t values[kSlots];
    std::uint32_t used;
  };
  static_assert(sizeof(Bucket) == 64);

  const std::uint32_t* find(std::uint64_t name) const {
    for (std::size_t at = name >> shift_;; at = (at + 1) & (buckets_.size() - 1)) {
      const Bucket& bucket = buckets_[at];
      for (std::uint32_t i = 0; i < bucket.used; ++i)
        if (bucket.names[i] == name) return &bucket.values[i];
      if (bucket.used < kSlots) return nullptr;
    }
  }
  bool insert(std::uint64_t name, std::uint32_t value) {
    for (std::size_t at = name >> shift_;; at = (at + 1) & (buckets_.size() - 1)) {
      Bucket& bucket = buckets_[at];
      for (std::uint32_t i = 0; i < bucket.used; ++i)
        if (bucket.names[i] == name) return false;
      if (bucket.used == kSlots) continue;
      bucket.names[bucket.used] = name;
      bucket.values[bucket.used++] = value;
      return true;
    }
  }

  LargeArray<Bucket> buckets_;
  unsigned shift_;
};

// The floor of run_mixed() with one reader: one thread puts in and looks up, another one compares.
inline MixedResult run_mixed_floor(const IndexFeed& feed, std::span<const IndexEvent> events) {
  const IndexWorkload& workload = feed.workload();
  NameTableFloor table(workload.contents + std::size_t{workload.added} * workload.depth);
  // Neighbours of one kind in one list, so that the next names are known within it.
  std::vector<std::vector<std::uint64_t>> inserted, looked_up;
  for (std::size_t at = 0; at < events.size();) {
    std::size_t end = at;
    while (end < events.size() && events[end].kind == events[at].kind) ++end;
    const auto run = events.subspan(at, end - at);
    (run[0].kind == IndexEvent::kStore ? inserted : looked_up).push_back(names_in(feed, run));
    at = end;
  }
  const auto& queries = workload.queries_of(kMixed);
  std::atomic<bool> done{false};
  std::vector<double> times;
  times.reserve(std::size_t{1} << 20);
  FindFloor floor(workload);
  std::latch ready(1);
  std::jthread reader([&] {
    std::vector<index::LocalHash> hashes(workload.depth);
    ready.count_down();
    // relaxed: a hint to stop; the join orders everything else.
    while (!done.load(std::memory_order_relaxed)) {
      const IndexQuery& query = queries[times.size() % queries.size()];
      workload.expand(query, hashes);
      const auto start = BenchClock::now();
      floor.find(query, hashes);
      times.push_back(nanoseconds_since(start));
    }
  });
  ready.wait();
  const auto start = BenchClock::now();
  for (std::size_t i = 0; i < std::max(inserted.size(), looked_up.size()); ++i) {
    std::size_t touched = 0;
    if (i < inserted.size()) touched += table.insert(inserted[i]);
    if (i < looked_up.size()) touched += table.look_up(looked_up[i]);
    keep(touched);
  }
  const double elapsed = nanoseconds_since(start);
  done.store(true, std::memory_order_relaxed);
  reader.join();
  MixedResult result;
  result.write_ns = elapsed / static_cast<double>(blocks_in(events));
  result.finds = times.size();
  if (times.empty()) return result;
  result.find_p50 = percentile(times, 0.50);
  result.find_p99 = percentile(times, 0.99);
  return result;
}

}  // namespace ashlar::bench
