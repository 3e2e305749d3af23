// KvMetrics: the counters of a KvBlockManager, and their names in a MetricRegistry.
//
// Thread safety: thread-safe.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/events/tier.h"
#include "ashlar/tiers/onboard_handle.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

class KvMetrics {
 public:
  struct Tier {
    Counter hits;       // requested blocks for which this tier was the fastest source
    Counter onboarded;  // of these, onboarded from here
    Counter damaged;    // bytes that did not match their checksum
    Counter failed;     // could not be read
  };

  Tier& of(events::TierId tier) noexcept { return tiers_[tier.value()]; }
  const Tier& of(events::TierId tier) const noexcept { return tiers_[tier.value()]; }
  // Requested blocks that were not onboarded, by the tier that had them at lookup; empty: none.
  Counter& missed(std::optional<events::TierId> tier, Miss why) noexcept {
    return misses_[tier ? tier->value() : events::kMaxTiers][static_cast<std::size_t>(why)];
  }
  // Over all tiers.
  std::uint64_t missed(Miss why) const noexcept;

  using Labels = std::vector<std::pair<std::string, std::string>>;
  // Registers all metrics of one tier, and its misses. The pool outlives the registrations. Errors: those of
  // the registry.
  Result<void> add_tier(MetricRegistry& registry, const Labels& labels, const TierPool& pool,
                        std::vector<MetricRegistration>& out) const;
  // Misses of the tiers, and of no tier.
  Result<void> add_misses(MetricRegistry& registry, const Labels& labels, std::span<TierPool* const> pools,
                          std::vector<MetricRegistration>& out) const;

 private:
  std::array<Tier, events::kMaxTiers> tiers_;
  std::array<std::array<Counter, kMisses>, events::kMaxTiers + 1> misses_;
};

}  // namespace ashlar::tiers
