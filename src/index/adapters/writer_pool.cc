#include "ashlar/index/thread_pool_indexer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <new>
#include <system_error>
#include <utility>

#include "ashlar/base/mutex.h"
#include "base/interleaving.h"
#include "index/adapters/write_queue.h"

namespace ashlar::index {

Result<void> ThreadPoolOptions::validate() const {
  if (threads == 0 || threads > kMaxThreads) {
    return make_error(ErrorCode::kInvalidArgument, "threads is %zu; a pool has 1 to %zu", threads,
                      kMaxThreads);
  }
  if (queue_capacity == 0 || queue_capacity > kMaxQueueCapacity) {
    return make_error(ErrorCode::kInvalidArgument, "queue_capacity is %zu blocks; it must be 1 to %zu",
                      queue_capacity, kMaxQueueCapacity);
  }
  return {};
}

namespace detail {

namespace {

constexpr std::size_t kShards = 64;

// Ranks or routes examined under one hold of a shard's lock.
constexpr std::size_t kPerHold = 1024;

// Ranks waited for at a time.
constexpr std::size_t kPerWait = 64;

// The queue of a (worker, rank).
struct Route {
  WriteQueue* queue = nullptr;
  std::uint64_t last = 0;  // the number of its last event there
  bool stored = false;     // a store was accepted, and no clear() after it
};

// A route to drop when its last event is applied, unless another event comes first.
struct Ending {
  Worker worker;
  WriteQueue* queue;
  std::uint64_t last;
};

struct alignas(64) RouteShard {
  static constexpr std::size_t kIdle = WriterPool::kMaxIdleRoutes / kShards;

  Mutex mu;
  std::map<Worker, Route> routes ASHLAR_GUARDED_BY(mu);
  std::deque<Ending> ending ASHLAR_GUARDED_BY(mu);  // in the order of acceptance
  // Workers being removed; calls for them wait.
  std::vector<WorkerId> leaving ASHLAR_GUARDED_BY(mu);
  CondVar left;

  void wait_while_leaving(WorkerId worker) ASHLAR_REQUIRES(mu) {
    while (std::ranges::find(leaving, worker) != leaving.end()) left.wait(mu);
  }

  // Drops up to `most` routes that have ended; keeps the last kIdle. Returns how many it examined.
  std::size_t forget_ended(std::size_t most) ASHLAR_REQUIRES(mu) {
    std::size_t looked_at = 0;
    for (; looked_at < most && ending.size() > kIdle; ++looked_at) {
      const Ending& end = ending.front();
      if (end.queue->applied() < end.last) break;
      const auto route = routes.find(end.worker);
      if (route != routes.end() && route->second.queue == end.queue && route->second.last == end.last)
        routes.erase(route);
      ending.pop_front();
    }
    return looked_at;
  }
};

}  // namespace

struct WriterPool::State {
  std::vector<std::unique_ptr<WriteQueue>> queues;
  IndexSink* target = nullptr;
  std::array<RouteShard, kShards> shards;
  std::atomic<std::size_t> next_queue{0};
  std::atomic<bool> closed{false};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> refused_stores{0};
  Mutex shutdown_mu;  // held until the threads have ended, so that every shutdown() waits for that

  RouteShard& shard_of(WorkerId worker) noexcept {
    return shards[(worker.value() * 0x9E3779B97F4A7C15u) >> 58];
  }

  // The route of a worker, created if missing.
  std::map<Worker, Route>::iterator route_locked(RouteShard& shard, const Worker& worker)
      ASHLAR_REQUIRES(shard.mu) {
    const auto [at, is_new] = shard.routes.try_emplace(worker);
    if (is_new) {
      // relaxed: only the number itself matters.
      const std::size_t turn = next_queue.fetch_add(1, std::memory_order_relaxed);
      at->second.queue = queues[turn % queues.size()].get();
    }
    return at;
  }

  // Throws std::bad_alloc with nothing accepted.
  bool push(const CallHead& head, std::span<const StoredBlock> blocks, std::span<const BlockName> names) {
    RouteShard& shard = shard_of(head.worker.id);
    for (;;) {
      WriteQueue* queue = nullptr;
      {
        const MutexLock lock(shard.mu);
        shard.wait_while_leaving(head.worker.id);
        const auto at = route_locked(shard, head.worker);
        queue = at->second.queue;
        const WriteQueue::Push pushed = try_push_locked(shard, at, head, blocks, names);
        if (pushed == WriteQueue::Push::kAccepted) return true;
        if (pushed == WriteQueue::Push::kClosed) break;
      }
      queue->wait_for_room();
    }
    refuse(head);
    return false;
  }

  WriteQueue::Push try_push_locked(RouteShard& shard, std::map<Worker, Route>::iterator at,
                                   const CallHead& head, std::span<const StoredBlock> blocks,
                                   std::span<const BlockName> names) ASHLAR_REQUIRES(shard.mu) {
    Route& route = at->second;
    const bool stored =
        head.kind == CallHead::Kind::kStore || (route.stored && head.kind != CallHead::Kind::kClear);
    const bool is_new = route.last == 0;  // made just now
    bool may_end = false;
    try {
      // An accepted event cannot be taken back, so allocate first.
      if (!stored) {
        shard.ending.push_back({head.worker, route.queue, 0});
        may_end = true;
      }
      const WriteQueue::Push pushed = route.queue->try_push(head, blocks, names, route.last);
      if (pushed == WriteQueue::Push::kAccepted) {
        route.stored = stored;
        if (may_end) shard.ending.back().last = route.last;
        shard.forget_ended(2);
        return pushed;
      }
      if (may_end) shard.ending.pop_back();
      if (is_new && pushed == WriteQueue::Push::kClosed) shard.routes.erase(at);
      return pushed;
    } catch (...) {
      if (may_end) shard.ending.pop_back();
      if (is_new) shard.routes.erase(at);
      throw;
    }
  }

  void refuse(const CallHead& head) noexcept {
    refused.fetch_add(1);
    if (head.kind == CallHead::Kind::kStore) refused_stores.fetch_add(1);
  }

  // Resumes calls for a worker that waited for its removal.
  void end_leaving(RouteShard& shard, WorkerId worker) {
    {
      const MutexLock lock(shard.mu);
      std::erase(shard.leaving, worker);
    }
    shard.left.notify_all();
  }

  // Returns when all events of the worker's ranks are applied. Requires: no caller adds ranks or events.
  void wait_until_applied(RouteShard& shard, WorkerId worker) {
    Worker next{worker, 0};
    for (bool more = true; more;) {
      std::array<Route, kPerWait> routes;
      std::size_t count = 0;
      {
        const MutexLock lock(shard.mu);
        auto at = shard.routes.lower_bound(next);
        const auto end = shard.routes.end();
        const auto is_rank = [&] { return at != end && at->first.id == worker; };
        for (; count < routes.size() && is_rank(); ++count, ++at) routes[count] = at->second;
        more = is_rank();
        if (more) next = at->first;
      }
      for (const Route& route : std::span(routes).first(count)) route.queue->wait_until_applied(route.last);
    }
  }

  // Forgets the routes of the worker's ranks.
  void forget_routes(RouteShard& shard, WorkerId worker) {
    for (bool more = true; more;) {
      const MutexLock lock(shard.mu);
      auto at = shard.routes.lower_bound({worker, 0});
      const auto end = shard.routes.end();
      const auto is_rank = [&] { return at != end && at->first.id == worker; };
      for (std::size_t i = 0; i < kPerHold && is_rank(); ++i) at = shard.routes.erase(at);
      more = is_rank();
    }
  }
};

static_assert(kShards == std::size_t{1} << (64 - 58), "shard_of() takes the top bits");

WriterPool::WriterPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

WriterPool::~WriterPool() {
  shutdown();
}

Result<std::unique_ptr<WriterPool>> WriterPool::create(IndexSink& target, const ThreadPoolOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  std::size_t started = 0;
  try {
    auto state = std::make_unique<State>();
    state->target = &target;
    for (std::size_t i = 0; i < options.threads; ++i) {
      state->queues.push_back(std::make_unique<WriteQueue>(target, options.queue_capacity));
    }
    // From here on the pool's destructor ends the started threads.
    std::unique_ptr<WriterPool> pool(new WriterPool(std::move(state)));
    for (; started < options.threads; ++started) pool->state_->queues[started]->start();
    return pool;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kCapacity, "out of memory");
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kCapacity, "the system gave %zu of %zu threads: %s; use fewer", started,
                      options.threads, error.what());
  }
}

bool WriterPool::store(const BlocksStored& event) {
  const CallHead head{.worker = event.worker,
                      .parent = event.parent.value_or(BlockName{}),
                      .count = event.blocks.size(),
                      .start_position = event.start_position.value_or(0),
                      .kind = CallHead::Kind::kStore,
                      .tier = event.tier,
                      .has_parent = event.parent.has_value(),
                      .has_position = event.start_position.has_value()};
  try {
    return state_->push(head, event.blocks, {});
  } catch (const std::bad_alloc&) {
    state_->refuse(head);
    return false;
  }
}

bool WriterPool::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  CallHead head;
  head.worker = worker;
  head.count = names.size();
  head.kind = CallHead::Kind::kRemove;
  head.tier = tier;
  return state_->push(head, {}, names);
}

bool WriterPool::clear(const Worker& worker) {
  CallHead head;
  head.worker = worker;
  head.kind = CallHead::Kind::kClear;
  return state_->push(head, {}, {});
}

bool WriterPool::remove_worker(WorkerId worker) {
  if (state_->closed.load()) {
    state_->refused.fetch_add(1);
    return false;
  }
  RouteShard& shard = state_->shard_of(worker);
  {
    const MutexLock lock(shard.mu);
    shard.wait_while_leaving(worker);
    shard.leaving.push_back(worker);
  }
  // No caller adds ranks now. Ranks whose events are applied may be forgotten.
  interleaving_point("remove_worker.leaving");
  try {
    state_->wait_until_applied(shard, worker);
    state_->target->remove_worker(worker);
  } catch (...) {
    state_->end_leaving(shard, worker);
    throw;
  }
  state_->forget_routes(shard, worker);
  state_->end_leaving(shard, worker);
  return true;
}

void WriterPool::settle() const {
  // First the numbers of all queues, then the waits: later events are not waited for.
  std::vector<std::uint64_t> numbers;
  numbers.reserve(state_->queues.size());
  for (const auto& queue : state_->queues) numbers.push_back(queue->accepted());
  for (std::size_t i = 0; i < numbers.size(); ++i) state_->queues[i]->wait_until_applied(numbers[i]);
}

void WriterPool::settle(const Worker& worker) const {
  Route route;
  {
    RouteShard& shard = state_->shard_of(worker.id);
    const MutexLock lock(shard.mu);
    shard.wait_while_leaving(worker.id);
    const auto at = shard.routes.find(worker);
    if (at == shard.routes.end()) return;  // forgotten after its last event was applied
    route = at->second;
  }
  route.queue->wait_until_applied(route.last);
}

void WriterPool::shutdown() {
  const MutexLock lock(state_->shutdown_mu);
  state_->closed.store(true);
  for (const auto& queue : state_->queues) queue->close();
  for (const auto& queue : state_->queues) queue->join();
}

ThreadPoolCounters WriterPool::counters() const {
  ThreadPoolCounters counters;
  for (const auto& queue : state_->queues) {
    counters.queues.push_back(queue->counters());
    counters.queued += counters.queues.back().queued;
    counters.waits += counters.queues.back().waits;
  }
  for (RouteShard& shard : state_->shards) {
    for (bool more = true; more;) {
      const MutexLock lock(shard.mu);
      more = shard.forget_ended(kPerHold) == kPerHold;
      if (!more) counters.workers += shard.routes.size();
    }
  }
  counters.refused = state_->refused.load();
  counters.refused_stores = state_->refused_stores.load();
  return counters;
}

}  // namespace detail
}  // namespace ashlar::index
