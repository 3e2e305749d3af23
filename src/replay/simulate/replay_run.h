// ReplayRun: drives a trace through workers and counts what happens. Simulation and real replay differ in the
// caches only.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ashlar/replay/simulate.h"
#include "replay/simulate/fleet_router.h"
#include "replay/simulate/presence.h"
#include "replay/simulate/worker_cache.h"

namespace ashlar::replay {

// Hears each request after it was served, for tests.
using ServedHearer = std::function<void(std::uint32_t worker, const CacheChange& change)>;

class ReplayRun {
 public:
  // Requires: config.validate(). The trace and the log, which may be null, must outlive the run.
  explicit ReplayRun(const TraceTable& trace, const ReplayConfig& config, service::RouteLog* log = nullptr);

  Presence& presence() noexcept { return presence_; }
  // One per worker, in order.
  void add_cache(std::unique_ptr<WorkerCache> cache) { caches_.push_back(std::move(cache)); }
  // Errors: those of the caches; kCancelled.
  Result<ReplayOutcome> run(const ReplayProgress& progress, const ServedHearer& each = {});

 private:
  ReplayCounts& window_of(const TraceTable::Request& request);
  Result<void> serve(std::uint32_t number, const ServedHearer& each);
  // Adds a served request up; returns the tokens found.
  std::uint64_t count(const TraceTable::Request& request, ReplayCounts& into);
  void estimate(const TraceTable::Request& request, std::uint32_t worker, std::uint64_t hit_tokens,
                ReplayCounts& window);
  void finish();

  const TraceTable& trace_;
  const ReplayConfig config_;
  Presence presence_;
  FleetRouter router_;
  std::vector<std::unique_ptr<WorkerCache>> caches_;
  ReplayOutcome outcome_;
  CacheChange change_;
  std::vector<MissReason> reasons_;                    // of the blocks of the request, were they missing
  std::vector<double> free_at_ms_;                     // by worker
  std::vector<float> latencies_;                       // by request
  std::vector<std::vector<std::uint32_t>> served_by_;  // requests of each worker
};

}  // namespace ashlar::replay
