// OffloadPolicy: which blocks are worth copying down.
//
// A policy is a function; those here can be combined. It is asked when a block is offered, outside every
// lock.
//
//   all_of({absent_below(), used_at_least(2)})
//
// Thread safety: thread-safe, as long as a user's own function is.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ashlar/tiers/tier_pool.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

struct OffloadCandidate {
  tokens::SequenceHash hash;
  std::uint8_t priority = 0;
  unsigned uses = 0;  // recent ones, by the registry's tracker; 0 without one
  TierPool* to = nullptr;
};

using OffloadPolicy = std::function<bool(const OffloadCandidate&)>;

inline OffloadPolicy every_block() {
  return [](const OffloadCandidate&) { return true; };
}
// The tier below does not have it yet.
inline OffloadPolicy absent_below() {
  return [](const OffloadCandidate& block) { return !block.to->has(block.hash); };
}
inline OffloadPolicy used_at_least(unsigned uses) {
  return [uses](const OffloadCandidate& block) { return block.uses >= uses; };
}
inline OffloadPolicy priority_at_least(std::uint8_t priority) {
  return [priority](const OffloadCandidate& block) { return block.priority >= priority; };
}
// Copying it now costs less than computing it again later, by the caller's own reckoning in [0, 1] of reuse.
inline OffloadPolicy worth_it(std::function<double(const OffloadCandidate&)> chance_of_reuse,
                              double recompute_seconds, double copy_seconds) {
  return [chance = std::move(chance_of_reuse), recompute_seconds, copy_seconds](
             const OffloadCandidate& block) { return chance(block) * recompute_seconds > copy_seconds; };
}
inline OffloadPolicy all_of(std::vector<OffloadPolicy> policies) {
  return [policies = std::move(policies)](const OffloadCandidate& block) {
    for (const OffloadPolicy& policy : policies)
      if (!policy(block)) return false;
    return true;
  };
}
inline OffloadPolicy any_of(std::vector<OffloadPolicy> policies) {
  return [policies = std::move(policies)](const OffloadCandidate& block) {
    for (const OffloadPolicy& policy : policies)
      if (policy(block)) return true;
    return false;
  };
}

}  // namespace ashlar::tiers
