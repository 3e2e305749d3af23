// Every eviction backend, as the options of a tier take it: those with a name, some with options of their
// own, and one that a user might write.
#pragma once

#include <string>
#include <vector>

#include "ashlar/block/eviction.h"
#include "ashlar/block/reuse_policy.h"
#include "ashlar/tiers/kv_options.h"
#include "examples/lower_tier_first.h"

namespace ashlar::tiers {

struct EvictionCase {
  std::string name;
  // For G1 to G4.
  std::vector<EvictionChoice> tiers;

  // In every tier that the options have. Counts uses, which some backends need.
  void apply(KvOptions& options) const {
    options.g1.eviction = tiers[0];
    if (options.g2) options.g2->eviction = tiers[1];
    if (options.g3) options.g3->eviction = tiers[2];
    if (options.g4) options.g4->eviction = tiers[3];
    options.registry.frequency = block::TinyLfuOptions{.capacity = 1024};
  }
};

inline std::vector<EvictionCase> every_eviction() {
  std::vector<EvictionCase> cases;
  for (const std::string& name : block::eviction_names())
    cases.push_back({name, std::vector<EvictionChoice>(4, name)});
  const auto same = [&](const char* name, const block::EvictionFactory& factory) {
    cases.push_back({name, std::vector<EvictionChoice>(4, factory)});
  };
  same("low_thresholds", block::multi_lru_eviction({.warm = 1, .hot = 2, .very_hot = 3}));
  same("never_hit_first",
       block::retention_eviction(
           {.default_priority = 10, .retained_share = 0.25, .half_life = {}, .never_hit_first = true}));
  using LowerTierFirst = block::HashMapBackend<examples::LowerTierFirst>;
  cases.push_back(
      {"lower_tier_first",
       {block::eviction_of<LowerTierFirst>(), block::eviction_of<LowerTierFirst>(events::kTierId<events::G3>),
        block::eviction_of<LowerTierFirst>(events::kTierId<events::G4>), "lru"}});
  return cases;
}

}  // namespace ashlar::tiers
