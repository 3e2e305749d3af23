// AccessSampler: which blocks are hit, by looking at one hit of many.
//
// Every `every`-th hit of a thread is counted for its block, `every` times; the rest cost an addition. Nobody waits: a hit that
// meets another thread's is left out and counted in missed(). report() turns what was seen into Access events and begins anew.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
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
  struct Key {
    tokens::SequenceHash hash;
    TierId tier;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<tokens::SequenceHash>()(key.hash) + key.tier.value();
    }
  };
  void add(TierId tier, const tokens::SequenceHash& hash) noexcept;

  const std::uint64_t every_;
  const std::size_t capacity_;
  std::atomic<std::uint64_t> missed_{0};
  std::mutex mu_;  // only ever tried by those who are hit
  std::unordered_map<Key, std::uint32_t, KeyHash> hits_;
};

}  // namespace ashlar::events
