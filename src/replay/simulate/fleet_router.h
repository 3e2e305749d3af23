// FleetRouter: chooses the worker of each request of a replay, by the router of the service.
//
// It hears at once what workers store and remove, so that they are EXACT; loads end by the estimates. Sticky
// routing is its own: a session stays at the worker that its hash names; requests without a session go
// round.
//
// A log is told everything, also where there is nothing to choose; what a sticky request may not choose is
// told as tried. The choices are the same with it.
//
// Thread safety: thread-compatible.
// Complexity:    choose() as RouteCore::choose().
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "ashlar/replay/simulate.h"
#include "replay/simulate/worker_cache.h"
#include "service/route/route_core.h"

namespace ashlar::replay {

class FleetRouter {
 public:
  // `log` may be null.
  FleetRouter(const TraceTable& trace, const ReplayConfig& config, service::RouteLog* log = nullptr);

  // Requires: arrivals do not go back.
  std::uint32_t choose(const TraceTable::Request& request);
  // What the chosen worker did with the request, and when it has computed the prompt and answered.
  void served(const TraceTable::Request& request, const CacheChange& change, double first_token_ms,
              double end_ms);

 private:
  // A load that ends.
  struct End {
    double at_ms = 0;
    service::DecisionId decision;
    bool is_first_token = false;
    friend bool operator>(const End& a, const End& b) {
      if (a.at_ms != b.at_ms) return a.at_ms > b.at_ms;
      if (a.decision != b.decision) return a.decision > b.decision;
      return a.is_first_token < b.is_first_token;
    }
  };

  // Ends what has ended by then.
  void end_until(double at_ms);

  const TraceTable& trace_;
  const Routing routing_;
  const std::uint32_t workers_;
  service::RouteLog* const log_;
  const bool knows_prefixes_;                 // what workers hold is told to the core
  std::unique_ptr<service::RouteCore> core_;  // null: there is nothing to choose, or sticky, and no log
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::vector<tokens::LocalHash> locals_;
  std::vector<events::StoredBlock> run_;
  std::vector<events::BlockName> names_;
  std::vector<events::Worker> others_;  // than the one of a sticky request
  service::DecisionId decision_;
  std::uint32_t chosen_ = 0;
  std::uint64_t turn_ = 0;
};

}  // namespace ashlar::replay
