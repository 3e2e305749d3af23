#include "ashlar/index/detail/lane_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "ashlar/base/interleaving.h"
#include "ashlar/base/mutex.h"
#include "index/event_lane.h"

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

// Where a (worker, rank) goes.
struct Route {
  EventLane* lane = nullptr;
  std::uint64_t last = 0;  // the number of its last event there
};

struct alignas(64) Shard {
  Mutex mu;
  std::unordered_map<Worker, Route> routes ASHLAR_GUARDED_BY(mu);
  // Workers that are being removed; their callers wait.
  std::vector<WorkerId> leaving ASHLAR_GUARDED_BY(mu);
  CondVar left;

  void wait_while_leaving(WorkerId worker) ASHLAR_REQUIRES(mu) {
    while (std::ranges::find(leaving, worker) != leaving.end()) left.wait(mu);
  }
};

}  // namespace

struct LanePool::State {
  std::vector<std::unique_ptr<EventLane>> lanes;
  IndexSink* target = nullptr;
  std::array<Shard, kShards> shards;
  std::atomic<std::size_t> next_lane{0};
  std::atomic<bool> closed{false};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> refused_stores{0};
  Mutex shutdown_mu;  // held until the threads have ended, so that every caller of shutdown() waits for that

  Shard& shard_of(WorkerId worker) noexcept { return shards[(worker.value() * 0x9E3779B97F4A7C15u) >> 58]; }

  // The route of a worker, a new one where there is none.
  Route& route_locked(Shard& shard, const Worker& worker) ASHLAR_REQUIRES(shard.mu) {
    Route& route = shard.routes[worker];
    if (route.lane == nullptr) {
      // relaxed: only the number itself matters.
      const std::size_t turn = next_lane.fetch_add(1, std::memory_order_relaxed);
      route.lane = lanes[turn % lanes.size()].get();
    }
    return route;
  }

  bool push(const EventHead& head, std::span<const StoredBlock> blocks, std::span<const BlockName> names) {
    Shard& shard = shard_of(head.worker.id);
    for (;;) {
      EventLane* lane = nullptr;
      {
        const MutexLock lock(shard.mu);
        shard.wait_while_leaving(head.worker.id);
        Route& route = route_locked(shard, head.worker);
        const EventLane::Push pushed = route.lane->try_push(head, blocks, names, route.last);
        if (pushed == EventLane::Push::kAccepted) return true;
        if (pushed == EventLane::Push::kClosed) break;
        lane = route.lane;
      }
      lane->wait_for_room();
    }
    refused.fetch_add(1);
    if (head.kind == EventHead::Kind::kStore) refused_stores.fetch_add(1);
    return false;
  }
};

static_assert(kShards == std::size_t{1} << (64 - 58), "shard_of() takes the top bits");

LanePool::LanePool(std::unique_ptr<State> state) : state_(std::move(state)) {}

LanePool::~LanePool() {
  shutdown();
}

Result<std::unique_ptr<LanePool>> LanePool::create(IndexSink& target, const ThreadPoolOptions& options) {
  if (auto valid = options.validate(); !valid) return std::move(valid).error();
  auto state = std::make_unique<State>();
  state->target = &target;
  for (std::size_t i = 0; i < options.threads; ++i) {
    state->lanes.push_back(std::make_unique<EventLane>(target, options.queue_capacity));
  }
  // From here on the pool's destructor ends the threads that were started.
  std::unique_ptr<LanePool> pool(new LanePool(std::move(state)));
  std::size_t started = 0;
  try {
    for (; started < options.threads; ++started) pool->state_->lanes[started]->start();
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kCapacity, "the system gave %zu of %zu threads: %s; use fewer", started,
                      options.threads, error.what());
  }
  return pool;
}

bool LanePool::store(const BlocksStored& event) {
  const EventHead head{.worker = event.worker,
                       .parent = event.parent.value_or(BlockName{}),
                       .count = event.blocks.size(),
                       .start_position = event.start_position.value_or(0),
                       .kind = EventHead::Kind::kStore,
                       .tier = event.tier,
                       .has_parent = event.parent.has_value(),
                       .has_position = event.start_position.has_value()};
  return state_->push(head, event.blocks, {});
}

bool LanePool::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  EventHead head;
  head.worker = worker;
  head.count = names.size();
  head.kind = EventHead::Kind::kRemove;
  head.tier = tier;
  return state_->push(head, {}, names);
}

bool LanePool::clear(const Worker& worker) {
  EventHead head;
  head.worker = worker;
  head.kind = EventHead::Kind::kClear;
  return state_->push(head, {}, {});
}

bool LanePool::remove_worker(WorkerId worker) {
  if (state_->closed.load()) {
    state_->refused.fetch_add(1);
    return false;
  }
  Shard& shard = state_->shard_of(worker);
  std::vector<Route> routes;
  {
    const MutexLock lock(shard.mu);
    shard.wait_while_leaving(worker);
    shard.leaving.push_back(worker);
    for (const auto& [who, route] : shard.routes) {
      if (who.id == worker) routes.push_back(route);
    }
  }
  interleaving_point("remove_worker.leaving");
  for (const Route& route : routes) route.lane->wait_until_applied(route.last);
  state_->target->remove_worker(worker);
  {
    const MutexLock lock(shard.mu);
    std::erase_if(shard.routes, [&](const auto& entry) { return entry.first.id == worker; });
    std::erase(shard.leaving, worker);
  }
  shard.left.notify_all();
  return true;
}

void LanePool::settle() const {
  // First the numbers of all lanes, then the waits: what comes meanwhile is not waited for.
  std::vector<std::uint64_t> numbers;
  numbers.reserve(state_->lanes.size());
  for (const auto& lane : state_->lanes) numbers.push_back(lane->accepted());
  for (std::size_t i = 0; i < numbers.size(); ++i) state_->lanes[i]->wait_until_applied(numbers[i]);
}

void LanePool::shutdown() {
  const MutexLock lock(state_->shutdown_mu);
  state_->closed.store(true);
  for (const auto& lane : state_->lanes) lane->close();
  for (const auto& lane : state_->lanes) lane->join();
}

ThreadPoolCounters LanePool::counters() const {
  ThreadPoolCounters counters;
  for (const auto& lane : state_->lanes) {
    counters.lanes.push_back(lane->counters());
    counters.queued += counters.lanes.back().queued;
    counters.waits += counters.lanes.back().waits;
  }
  for (Shard& shard : state_->shards) {
    const MutexLock lock(shard.mu);
    counters.workers += shard.routes.size();
  }
  counters.refused = state_->refused.load();
  counters.refused_stores = state_->refused_stores.load();
  return counters;
}

}  // namespace detail
}  // namespace ashlar::index
