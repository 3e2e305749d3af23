// AccessSampler: which blocks are hit, estimated from a sample of hits.
//
// Every `every`-th hit of a thread counts `every` times for its block; other hits cost one addition. note()
// never waits or allocates: a hit that collides with another thread's, or finds the table full, is dropped
// and counted in missed(). report() turns the sample into Access events and starts a new one.
//
// Thread safety: thread-safe.
// Complexity:    note() is O(hits / every); report() is O(capacity). Memory: 2 * capacity cells, taken at
//                construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/events/kv_event.h"

namespace ashlar::events {

class AccessSampler {
 public:
  struct Options {
    std::uint32_t every = 64;     // 1: every hit
    std::size_t capacity = 8192;  // blocks between two reports; more are missed
  };
  AccessSampler() : AccessSampler(Options{}) {}
  explicit AccessSampler(const Options& options);

  // `count` hits in a tier; hash_of(i) names the block of the i-th.
  template <class HashOf>
  void note(TierId tier, std::size_t count, const HashOf& hash_of) noexcept {
    thread_local std::uint64_t phase = 0;
    std::uint64_t until = every_ - phase % every_;  // hits until the next one that counts
    phase += count;
    for (std::size_t i = 0; until <= count - i; i += until, until = every_) add(tier, hash_of(i + until - 1));
  }

  // Appends one Access event per (block, tier) that was hit since the last call.
  void report(std::vector<KvEvent>& out);
  std::uint64_t missed() const noexcept { return missed_.load(std::memory_order_relaxed); }

 private:
  struct Cell {
    tokens::SequenceHash hash;
    std::uint32_t hits = 0;  // 0: free
    TierId tier;
  };
  void add(TierId tier, const tokens::SequenceHash& hash) noexcept;

  const std::uint64_t every_;
  const std::size_t capacity_;
  std::atomic<std::uint64_t> missed_{0};
  Mutex mu_;                                        // note() only tries it, and never waits
  std::vector<Cell> cells_ ASHLAR_GUARDED_BY(mu_);  // open addressing; never grows
  std::size_t used_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::events
