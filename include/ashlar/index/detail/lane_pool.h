// LanePool: the threads and queues of ThreadPoolIndexer (which see), over any IndexSink.
//
// A (worker, rank) belongs to one lane, given round robin when it is first heard of. Which lane that is, and
// the number of its last event there, is its route, kept in shards by worker id. A route stays while the
// worker may hold something: from a store on until remove_worker() or a clear() is applied. Of other workers
// at most kMaxIdleRoutes have a route and no event on its way; the order of a worker's events does not depend
// on it then. A call holds its shard's lock while it appends to the lane, never while it waits.
//
// Thread safety: thread-safe. Takes a shard's lock, then a lane's.
// Complexity:    a call costs two uncontended locks, one look-up of O(log workers) and a copy of the event.
//                Stores of known workers allocate nothing once the queues have reached their working size.
//                remove_worker() is O(ranks), beside waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

struct ThreadPoolOptions {
  static constexpr std::size_t kMaxThreads = 1024;
  static constexpr std::size_t kMaxQueueCapacity = std::size_t{1} << 32;

  std::size_t threads = 4;
  // Blocks and names that may wait in one lane; an event without any counts as one. The event that reaches
  // the limit is still taken whole.
  std::size_t queue_capacity = std::size_t{1} << 16;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

struct LaneCounters {
  std::uint64_t queued = 0;    // events accepted
  std::uint64_t waits = 0;     // calls that found the queue full and waited
  std::size_t depth = 0;       // blocks and names that wait now
  std::size_t high_water = 0;  // the most that ever waited

  friend bool operator==(const LaneCounters&, const LaneCounters&) = default;
};

struct ThreadPoolCounters {
  std::uint64_t queued = 0;          // events accepted, over all lanes
  std::uint64_t waits = 0;           // calls that waited, over all lanes
  std::uint64_t refused = 0;         // calls after shutdown and stores without memory, which did nothing
  std::uint64_t refused_stores = 0;  // of these: stores
  std::size_t workers = 0;           // (worker, rank)s that have a lane
  std::vector<LaneCounters> lanes;
};

namespace detail {

class LanePool {
 public:
  // Routes of workers that hold nothing and have no event on its way: those that were heard of last keep
  // their lane.
  static constexpr std::size_t kMaxIdleRoutes = 1024;

  // Errors: those of validate(); kCapacity when the system gives no thread or no memory. `target` must
  // outlive the pool.
  static Result<std::unique_ptr<LanePool>> create(IndexSink& target, const ThreadPoolOptions& options);
  ~LanePool();
  LanePool(const LanePool&) = delete;
  LanePool& operator=(const LanePool&) = delete;

  // Each waits while the lane's queue is full. Returns false after shutdown: nothing was accepted. Without
  // memory store() returns false too, and the others throw std::bad_alloc.
  bool store(const BlocksStored& event);
  bool remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  bool clear(const Worker& worker);
  // Waits until every event of the worker's ranks is applied, then removes it before returning.
  bool remove_worker(WorkerId worker);

  // Returns when everything accepted before the call is applied.
  void settle() const;
  // Applies what was accepted and ends the threads. Later calls are refused. Idempotent; every caller returns
  // when all is done.
  void shutdown();

  ThreadPoolCounters counters() const;

 private:
  struct State;
  explicit LanePool(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace detail
}  // namespace ashlar::index
