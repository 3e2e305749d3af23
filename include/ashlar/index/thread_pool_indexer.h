// ThreadPoolIndexer<Index>: writes go through queues to a few threads, queries run on the caller.
//
//   auto index = ThreadPoolIndexer<ConcurrentRadixTree>::create({.threads = 4});
//
// Every (worker, rank) belongs to one queue with its thread, so its events are applied in the order of the
// calls; events of different workers are applied concurrently. A call copies its event into the queue and
// returns. A full queue makes the caller wait (counted), so memory is bounded. A thread takes all waiting
// events at once.
//
//   caller 1 ── store(w1) ──► queue 0  ■ ■ ■ ──► thread ──► ┌───────┐
//   caller 2 ── store(w2) ──► queue 1  ■     ──► thread ──► │ Index │ ◄── find_matches() of any caller
//                                                           └───────┘
//
// What the answers mean. store() returns kApplied when the event is accepted; whether the index applied it
// shows in counters(), where every refusal is counted. remove() returns how many names were accepted. After
// shutdown() store() returns kFull, remove() returns 0, and calls only count (ThreadPoolCounters::refused;
// stores also in IndexCounters::full). Without memory for the queue store() returns kFull, counted alike;
// remove() and clear() throw std::bad_alloc and accept nothing.
//
// Barriers. settle() waits for everything accepted before it, in all queues; dump(), sizes() and counters()
// settle first; presence() and list() wait for the events of their worker. remove_worker() waits for the
// queues of the worker's ranks and is done when it returns; concurrent calls for that worker wait for it.
// clear() is an event like others.
//
// Requires: Index may be written by several threads at a time, each with other workers, and read at the same
// time
// (LockedIndex makes any structure so).
//
// Thread safety: thread-safe.
// Complexity:    about 100 ns per event on top of applying it; no allocation in steady state. Memory: per
//                queue at most twice its capacity (waiting events, and those its thread took), 16 bytes per
//                block; not part of sizes().
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

struct ThreadPoolOptions {
  static constexpr std::size_t kMaxThreads = 1024;
  static constexpr std::size_t kMaxQueueCapacity = std::size_t{1} << 32;

  std::size_t threads = 4;
  // Blocks and names that may wait in one queue; an event without any counts as one. The event that reaches
  // the limit is accepted whole.
  std::size_t queue_capacity = std::size_t{1} << 16;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

struct WriteQueueCounters {
  std::uint64_t queued = 0;    // events accepted
  std::uint64_t waits = 0;     // calls that found the queue full and waited
  std::size_t depth = 0;       // blocks and names waiting now
  std::size_t high_water = 0;  // maximum of depth

  friend bool operator==(const WriteQueueCounters&, const WriteQueueCounters&) = default;
};

struct ThreadPoolCounters {
  std::uint64_t queued = 0;          // events accepted, over all queues
  std::uint64_t waits = 0;           // calls that waited, over all queues
  std::uint64_t refused = 0;         // calls after shutdown and stores without memory; they had no effect
  std::uint64_t refused_stores = 0;  // of these: stores
  std::size_t workers = 0;           // (worker, rank)s that have a queue
  std::vector<WriteQueueCounters> queues;
};

namespace detail {

// The threads and queues of ThreadPoolIndexer, over any IndexSink.
//
// A (worker, rank) belongs to one queue, assigned round robin on its first event. Its route says which queue
// that is and the number of its last event there; routes lie in shards by worker id. A route lives while the
// worker may hold something: from a store until a remove_worker() or clear() is applied. Of other workers at
// most kMaxIdleRoutes keep a route without an event in flight; the order of their events does not depend on
// it. A call holds its shard's lock while it appends to the queue, never while it waits.
//
// Thread safety: thread-safe. Takes a shard's lock, then a queue's.
// Complexity:    a call costs two uncontended locks, one look-up of O(log workers) and a copy of the event.
//                Stores of known workers allocate nothing in steady state. remove_worker() is O(ranks), plus
//                the wait.
class WriterPool {
 public:
  // Routes kept for workers that hold nothing and have no event in flight; the most recent ones stay.
  static constexpr std::size_t kMaxIdleRoutes = 1024;

  // Errors: those of validate(); kCapacity: no thread or no memory. `target` must outlive the pool.
  static Result<std::unique_ptr<WriterPool>> create(IndexSink& target, const ThreadPoolOptions& options);
  ~WriterPool();
  WriterPool(const WriterPool&) = delete;
  WriterPool& operator=(const WriterPool&) = delete;

  // Each waits while the queue is full. Returns false after shutdown: nothing was accepted. Without
  // memory store() returns false too, and the others throw std::bad_alloc.
  bool store(const BlocksStored& event);
  bool remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  bool clear(const Worker& worker);
  // Waits until every event of the worker's ranks is applied, then removes it before returning.
  bool remove_worker(WorkerId worker);

  // Returns when everything accepted before the call is applied.
  void settle() const;
  // The same for the events of one (worker, rank).
  void settle(const Worker& worker) const;
  // Applies accepted events and ends the threads. Later calls are refused. Idempotent; every caller waits
  // until it is done.
  void shutdown();

  ThreadPoolCounters counters() const;

 private:
  struct State;
  explicit WriterPool(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace detail

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
      ASHLAR_TRY(auto pool, detail::WriterPool::create(inner->sink, options));
      return ThreadPoolIndexer(std::move(inner), std::move(pool));
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kCapacity, "out of memory");
    }
  }
  // A moved-from indexer may only be destroyed.
  ThreadPoolIndexer(ThreadPoolIndexer&&) noexcept = default;
  ThreadPoolIndexer& operator=(ThreadPoolIndexer&&) = delete;

  // The index inside. Its own rules say what may be written to it beside the queues.
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
  // Both wait until every event of the worker is applied.
  bool presence(const Worker& worker, std::span<const BlockName> names, std::span<BlockPresence> out) const {
    pool_->settle(worker);
    return presence_in(inner_->index, worker, names, out);
  }
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const {
    pool_->settle(worker);
    return list_of(inner_->index, worker, out);
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

  // Applies accepted events and ends the threads; queries keep working. Idempotent.
  void shutdown() { pool_->shutdown(); }
  ThreadPoolCounters pool_counters() const { return pool_->counters(); }

 private:
  struct Inner {
    template <class... Args>
    explicit Inner(Args&&... args) : index(std::forward<Args>(args)...), sink(index) {}

    Index index;
    SinkOf<Index> sink;
  };

  ThreadPoolIndexer(std::unique_ptr<Inner> inner, std::unique_ptr<detail::WriterPool> pool) noexcept
      : inner_(std::move(inner)), pool_(std::move(pool)) {}

  std::unique_ptr<Inner> inner_;
  std::unique_ptr<detail::WriterPool> pool_;  // behind inner_: its threads end before the index does
};

}  // namespace ashlar::index
