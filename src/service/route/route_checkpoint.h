// RouteCheckpoint: everything that the choices of a RouteCore depend on, but the blocks that workers report
// (RouteCore::reported() dumps those).
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/index/approximate_index.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

struct RouteCheckpoint {
  struct RankPart {
    std::uint64_t number = 0;  // of its life: a rank that comes back under the same name is another one
    WorkerState state = WorkerState::kFallback;
    std::uint32_t requests = 0;
    std::uint64_t prefill_tokens = 0;
    std::uint64_t decode_blocks = 0;
    std::uint64_t chosen = 0;
    WorkerChanges changes;
    std::array<TierChanges, events::kStorageTiers> tiers{};
  };
  struct WorkerPart {
    WorkerSpec spec;
    bool is_up = true;
    std::vector<RankPart> ranks;
  };
  struct RunningPart {
    DecisionId decision;
    events::Worker worker;
    std::uint64_t rank_number = 0;
    std::uint64_t prefill_tokens = 0;
    std::uint64_t decode_blocks = 0;
  };
  struct SessionPart {
    std::uint64_t session = 0;
    events::Worker worker;
  };
  struct GroupPart {
    std::string name;
    std::uint64_t turn = 0;
    std::vector<std::pair<std::uint64_t, Clock::TimePoint>>
        expected;  // when prompts were noted, by their key
    std::vector<index::PredictedBlock> soon;
    std::vector<index::PredictedBlock> lasting;
  };

  Clock::TimePoint now{};
  std::uint64_t next_decision = 1;
  std::uint64_t next_rank = 1;
  std::vector<WorkerPart> workers;
  std::vector<RunningPart> running;
  std::vector<SessionPart> sessions;  // the oldest use first
  std::vector<GroupPart> groups;
};

}  // namespace ashlar::service
