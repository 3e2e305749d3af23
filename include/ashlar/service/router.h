// Router: chooses a worker for each request, from what the workers hold and do, and can prove each choice.
//
// Every input (a block stored or removed, a worker that comes, goes or changes its state, a request, its first
// byte, its end) passes one lock and gets a number. A choice is a function of the inputs before it: fed again
// in that order (service/journal.h), they lead to the same choices.
//
// The cost of a worker, in thousandths of a block, smaller is better:
//
//   prefill  what is left to compute: its prefill load, plus the request, minus a credit per cached block
//   decode   blocks of the requests that run there, plus those of this one
//   requests that run there
//   session  minus a bonus where the session's last request ran
//
// Claims. A worker is EXACT if its events are complete, numbered and from a known start; DEGRADED while that
// is being repaired or cannot be said; FALLBACK without events. `cached_tokens` of a decision counts blocks
// that the worker itself reported; predictions count in costs, and in the claim of a FALLBACK worker only,
// whose decisions say so.
//
// Thread safety: thread-safe.
// Complexity:    choose() is O(workers + depth / 8).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/tokens/token.h"

namespace ashlar::service {

enum class Policy : std::uint8_t { kPrefix, kLeastLoaded, kRoundRobin, kRandom };
// "prefix", "least_loaded", "round_robin", "random".
std::string_view to_string(Policy policy) noexcept;
Result<Policy> parse_policy(std::string_view name);

// In thousandths of a block.
struct CostWeights {
  // Credit for a cached block, by its fastest tier.
  std::array<std::int32_t, events::kStorageTiers> credit = {1000, 750, 250, 250, 500};
  std::int32_t prefill = 1000;  // of a block that is left to compute
  std::int32_t decode = 250;    // of a block of a running request
  std::int32_t request = 1000;  // of a running request
  std::int32_t session = 2000;  // bonus
  // Above 0, a choice by chance: thousandths of the spread of costs.
  std::int32_t temperature = 0;

  friend bool operator==(const CostWeights&, const CostWeights&) = default;
};

enum class WorkerState : std::uint8_t { kExact, kDegraded, kFallback };
std::string_view to_string(WorkerState state) noexcept;

}  // namespace ashlar::service
