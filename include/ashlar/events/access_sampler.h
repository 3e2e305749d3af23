// AccessSampler: which blocks are hit, by looking at one hit of many.
//
// Every `every`-th hit of a thread is counted for its block, `every` times; the rest cost an addition. Nobody
// waits or allocates: a hit that meets another thread's, or finds the table full, is left out and counted in
// missed(). report() turns what was seen into Access events and begins anew.
//
// Thread safety: thread-safe.
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
    std::size_t capacity = 8192;  // blocks between two reports; what comes then is missed
  };
  AccessSampler() : AccessSampler(Options{}) {}
  explicit AccessSampler(const Options& options);

  // `count` hits in a tier; hash_of(i) names the block of the i-th.
  template <class HashOf>
  void note(TierId tier, std::size_t count, const HashOf& hash_of) noexcept {
    thread_local std::uint64_t phase = 0;
    std::uint64_t until = every_ - phase % every_;  // hits up to the next one that counts
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
  Mutex mu_;                                        // only ever tried by those who are hit
  std::vector<Cell> cells_ ASHLAR_GUARDED_BY(mu_);  // open addressing; never grows
  std::size_t used_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::events
