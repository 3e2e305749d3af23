// ThreadPoolIndexer<Index>: writes go through queues to a few threads, queries run on the caller.
//
//   auto index = ThreadPoolIndexer<ConcurrentRadixTree>::create({.threads = 4});
//
// Every (worker, rank) belongs to one thread, its lane, so its events are applied in the order of the calls;
// events of different workers are applied side by side. A call copies its event into the lane's queue and
// returns; a full queue makes the caller wait (counted), so memory is bounded. A lane takes all that waits in
// one go.
//
//   caller 1 ── store(w1) ──► lane 0  ■ ■ ■ ──► thread ──► ┌───────┐
//   caller 2 ── store(w2) ──► lane 1  ■     ──► thread ──► │ Index │ ◄── find_matches() of any caller
//                                                          └───────┘
//
// What the answers mean. store() returns kApplied when the event is accepted; whether the index took it shows
// in counters(), where every refusal is counted. remove() returns how many names were accepted. After
// shutdown() store() returns kFull, remove() 0, and all calls do nothing but count
// (ThreadPoolCounters::refused; stores also in IndexCounters::full). Without memory for the queue store()
// returns kFull, counted alike; remove() and clear() throw std::bad_alloc, and nothing was accepted.
//
// Barriers. settle() waits for everything accepted before it, in all lanes; dump(), sizes() and counters() do
// so first. remove_worker() waits for the lanes of the worker's ranks, and is done when it returns; calls for
// that worker that other threads make meanwhile wait for it. clear() is an event like others.
//
// Requires: Index may be written by several threads at a time, each with other workers, and read beside that
// (LockedIndex makes any structure so).
//
// Thread safety: thread-safe.
// Complexity:    about 100 ns per event on top of applying it, and nothing allocated in steady state. Memory:
//                per lane at most twice the queue (what waits, and what the lane took), 16 bytes per block;
//                it is not part of sizes().
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/index/detail/lane_pool.h"
#include "ashlar/index/detail/sink_of.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

template <Indexer Index>
class ThreadPoolIndexer {
 public:
  // Verdicts say that a call was accepted, not that it was applied.
  static constexpr bool kAppliesLater = true;

  // `args` make the index inside. Errors: those of ThreadPoolOptions::validate(); kCapacity when the system
  // gives no thread or no memory.
  template <class... Args>
    requires std::constructible_from<Index, Args...>
  static Result<ThreadPoolIndexer> create(const ThreadPoolOptions& options, Args&&... args) {
    try {
      auto inner = std::make_unique<Inner>(std::forward<Args>(args)...);
      auto pool = detail::LanePool::create(inner->sink, options);
      if (!pool) return std::move(pool).error();
      return ThreadPoolIndexer(std::move(inner), std::move(pool).value());
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kCapacity, "out of memory");
    }
  }
  // A moved-from indexer may only be destroyed.
  ThreadPoolIndexer(ThreadPoolIndexer&&) noexcept = default;
  ThreadPoolIndexer& operator=(ThreadPoolIndexer&&) = delete;

  // The index inside. Writing to it beside the lanes is up to its own rules.
  Index& get() noexcept { return inner_->index; }
  const Index& get() const noexcept { return inner_->index; }

  StoreVerdict store(const BlocksStored& event) {
    return pool_->store(event) ? StoreVerdict::kApplied : StoreVerdict::kFull;
  }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
    return pool_->remove(worker, tier, names) ? names.size() : 0;
  }
  void clear(const Worker& worker) { pool_->clear(worker); }
  void remove_worker(WorkerId worker) { pool_->remove_worker(worker); }

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const {
    inner_->index.find_matches(locals, scores, options);
  }
  void dump(IndexSink& sink) const {
    pool_->settle();
    inner_->index.dump(sink);
  }
  IndexSizes sizes() const {
    pool_->settle();
    return inner_->index.sizes();
  }
  IndexCounters counters() const {
    pool_->settle();
    IndexCounters counters = inner_->index.counters();
    counters.full += pool_->counters().refused_stores;
    return counters;
  }
  void settle() const { pool_->settle(); }

  // Applies what was accepted and ends the threads; queries go on. Idempotent.
  void shutdown() { pool_->shutdown(); }
  ThreadPoolCounters pool_counters() const { return pool_->counters(); }

 private:
  struct Inner {
    template <class... Args>
    explicit Inner(Args&&... args) : index(std::forward<Args>(args)...), sink(index) {}

    Index index;
    detail::SinkOf<Index> sink;
  };

  ThreadPoolIndexer(std::unique_ptr<Inner> inner, std::unique_ptr<detail::LanePool> pool) noexcept
      : inner_(std::move(inner)), pool_(std::move(pool)) {}

  std::unique_ptr<Inner> inner_;
  std::unique_ptr<detail::LanePool> pool_;  // behind inner_: its threads end before the index does
};

}  // namespace ashlar::index
