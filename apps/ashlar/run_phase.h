// RunPhase: how one way of routing did in `ashlar run`, and what is printed of all of them.
//
// Thread safety: values, functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::apps {

inline constexpr std::size_t kEngineTiers = 4;  // G1 to G4
// Blocks, by tier.
using TierCounts = std::array<std::uint64_t, kEngineTiers>;

struct RunPhase {
  std::string name;
  std::size_t requests = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;
  TierCounts hits = {};                         // by the fastest tier that had them, as the engines count
  std::vector<double> first_ms;                 // sorted
  std::vector<std::vector<std::string>> texts;  // of each client, in order
  std::size_t wrong = 0;                        // answers with another text than without a cache
  double seconds = 0;
  std::string problem;

  double hit_rate() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
  }
  double first_at(double share) const {
    return first_ms.empty()
               ? 0
               : first_ms[static_cast<std::size_t>(share * static_cast<double>(first_ms.size() - 1))];
  }
};

// Of an engine's GET /metrics: ashlar_tier_hits_total of its tiers, over its ranks.
TierCounts tier_hits_of(std::string_view metrics);

// Two tables.
void print_phases(const std::vector<RunPhase>& phases);
// The array of the phases, as JSON.
std::string phases_json(const std::vector<RunPhase>& phases);

}  // namespace ashlar::apps
