// A worker as the fleet keeps it.
//
// Thread safety: guarded by the fleet's lock, but for what is constant.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "service/gateway/fleet.h"

namespace ashlar::service {

struct Fleet::Member {
  events::WorkerId id;
  WorkerOptions options;  // constant
  bool is_registered = false;
  std::string routing_group;

  // Guarded by the fleet's lock.
  WorkerKey key;
  std::string group;  // empty: not known yet
  std::vector<ModelEntry> models;
  std::uint32_t ranks = 1;
  bool is_gone = false;
  bool is_up = false;
  std::string problem = "not asked yet";
  std::uint32_t failures = 0;    // of requests, since one was answered to its end
  std::uint32_t unanswered = 0;  // other connections that did not come about, since its /health answered
  bool may_be_another = false;   // its /health was refused since it last answered
  Clock::TimePoint rests_until{};
  Clock::TimePoint health_at{};  // when it is asked next
  Clock::TimePoint models_at{};
  std::map<std::uint32_t, std::string> endpoints;
  std::set<std::uint32_t> leaving;  // ranks whose followers are being ended
  std::map<std::uint32_t, std::shared_ptr<EngineFollower>> followers;
  SavedRanks offers;  // of a snapshot, for followers that are still to come
};

}  // namespace ashlar::service
