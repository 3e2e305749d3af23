#include "tiers/onboard/kv_metrics.h"

namespace ashlar::tiers {

namespace {

template <class Instrument>
Result<void> add_metric(MetricRegistry& registry, const char* name, const char* help,
                        const KvMetrics::Labels& labels, const Instrument& instrument,
                        std::vector<MetricRegistration>& out) {
  ASHLAR_TRY(MetricRegistration added, registry.add({name, help, labels}, instrument));
  out.push_back(std::move(added));
  return {};
}

}  // namespace

static_assert(static_cast<std::size_t>(Miss::kUnwritten) + 1 == kMisses, "every reason has a counter");

std::uint64_t KvMetrics::missed(Miss why) const noexcept {
  std::uint64_t sum = 0;
  for (const auto& tier : misses_) sum += tier[static_cast<std::size_t>(why)].value();
  return sum;
}

Result<void> KvMetrics::add_tier(MetricRegistry& registry, const Labels& labels, const TierPool& pool,
                                 std::vector<MetricRegistration>& out) const {
  Labels with_tier = labels;
  with_tier.emplace_back("tier", std::string(pool.name()));
  const Tier& tier = of(pool.tier());
  const RecordTable& records = pool.records();
  const struct {
    const char* name;
    const char* help;
    const Counter& counter;
  } counters[] = {
      {"ashlar_tier_hits_total", "Requested blocks for which this tier was the fastest source.", tier.hits},
      {"ashlar_tier_onboarded_total", "Blocks onboarded from this tier.", tier.onboarded},
      {"ashlar_tier_damaged_total", "Blocks of this tier whose bytes did not match their checksum.",
       tier.damaged},
      {"ashlar_tier_read_failures_total", "Blocks of this tier that could not be read.", tier.failed},
      {"ashlar_tier_evictions_total", "Blocks evicted from this tier.", records.evictions()},
  };
  for (const auto& [name, help, counter] : counters)
    ASHLAR_RETURN_IF_ERROR(add_metric(registry, name, help, with_tier, counter, out));
  ASHLAR_RETURN_IF_ERROR(add_metric(registry, "ashlar_tier_age_at_hit_seconds",
                                    "Age of blocks in the tier when they were hit.", with_tier,
                                    records.age_at_hit(), out));
  return add_metric(registry, "ashlar_tier_age_at_eviction_seconds",
                    "Age of blocks in the tier when they were evicted.", with_tier, records.age_at_eviction(),
                    out);
}

Result<void> KvMetrics::add_misses(MetricRegistry& registry, const Labels& labels,
                                   std::span<TierPool* const> pools,
                                   std::vector<MetricRegistration>& out) const {
  const auto add_all = [&](const std::string& tier,
                           const std::array<Counter, kMisses>& misses) -> Result<void> {
    for (std::size_t i = 1; i < kMisses; ++i) {
      Labels with_reason = labels;
      with_reason.emplace_back("tier", tier);
      with_reason.emplace_back("reason", std::string(to_string(static_cast<Miss>(i))));
      ASHLAR_RETURN_IF_ERROR(
          add_metric(registry, "ashlar_tier_misses_total",
                     "Requested blocks that were not onboarded, by the tier that had them and the reason.",
                     with_reason, misses[i], out));
    }
    return {};
  };
  for (const TierPool* const pool : pools)
    ASHLAR_RETURN_IF_ERROR(add_all(std::string(pool->name()), misses_[pool->tier().value()]));
  return add_all("none", misses_[events::kMaxTiers]);
}

}  // namespace ashlar::tiers
