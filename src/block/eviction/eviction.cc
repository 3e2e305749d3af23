// The backends that configuration can name. A new backend adds its header above and one line to kBackends.
#include "ashlar/block/eviction.h"

#include <algorithm>
#include <array>

#include "ashlar/base/check.h"
#include "ashlar/block/reuse_policy.h"
#include "block/eviction/fifo_backend.h"
#include "block/eviction/lfu_backend.h"
#include "block/eviction/lineage_backend.h"
#include "block/eviction/lru_backend.h"
#include "block/eviction/multi_lru_backend.h"
#include "block/eviction/retention_backend.h"
#include "block/eviction/s3_fifo_backend.h"

namespace ashlar::block {
namespace {

struct NamedBackend {
  std::string_view name;
  EvictionFactory (*factory)();
};

constexpr std::array kBackends = {
    NamedBackend{"fifo", fifo_eviction},
    NamedBackend{"hashmap_fifo", [] { return hashmap_eviction(ReuseOrder::kFifo); }},
    NamedBackend{"hashmap_lifo", [] { return hashmap_eviction(ReuseOrder::kLifo); }},
    NamedBackend{"hashmap_lru", [] { return hashmap_eviction(ReuseOrder::kLru); }},
    NamedBackend{"hashmap_priority", [] { return hashmap_eviction(ReuseOrder::kPriority); }},
    NamedBackend{"lfu", lfu_eviction},
    NamedBackend{"lineage", [] { return lineage_eviction(LineageOrder::kOldestChainFirst); }},
    NamedBackend{"lineage_round_robin", [] { return lineage_eviction(LineageOrder::kRoundRobin); }},
    NamedBackend{"lru", lru_eviction},
    NamedBackend{"multi_lru", [] { return multi_lru_eviction(); }},
    NamedBackend{"retention", [] { return retention_eviction(); }},
    NamedBackend{"s3_fifo", s3_fifo_eviction},
};

}  // namespace

EvictionFactory lru_eviction() {
  return eviction_of<LruBackend>();
}

EvictionFactory fifo_eviction() {
  return eviction_of<FifoBackend>();
}

EvictionFactory lfu_eviction() {
  return eviction_of<LfuBackend>();
}

EvictionFactory s3_fifo_eviction() {
  return eviction_of<S3FifoBackend>();
}

EvictionFactory hashmap_eviction(ReuseOrder order) {
  switch (order) {
    case ReuseOrder::kFifo:
      return eviction_of<HashMapBackend<FifoReuse>>();
    case ReuseOrder::kLifo:
      return eviction_of<HashMapBackend<LifoReuse>>();
    case ReuseOrder::kLru:
      return eviction_of<HashMapBackend<LruReuse>>();
    case ReuseOrder::kPriority:
      return eviction_of<HashMapBackend<PriorityReuse>>();
  }
  ASHLAR_CHECK(false, "there is no reuse order %u", static_cast<unsigned>(order));
  return {};
}

EvictionFactory multi_lru_eviction(const MultiLruThresholds& thresholds) {
  return eviction_of<MultiLruBackend>(thresholds);
}

EvictionFactory retention_eviction(const RetentionOptions& options) {
  return eviction_of<RetentionBackend>(options);
}

EvictionFactory lineage_eviction(LineageOrder order) {
  return eviction_of<LineageBackend>(order);
}

Result<EvictionFactory> eviction_by_name(std::string_view name) {
  for (const NamedBackend& backend : kBackends) {
    if (backend.name == name) return backend.factory();
  }
  std::string known;
  for (const std::string& each : eviction_names()) known += (known.empty() ? "" : ", ") + each;
  return make_error(ErrorCode::kNotFound, "there is no eviction backend '%.*s'; there are: %s",
                    static_cast<int>(name.size()), name.data(), known.c_str());
}

std::vector<std::string> eviction_names() {
  std::vector<std::string> names;
  names.reserve(kBackends.size());
  for (const NamedBackend& backend : kBackends) names.emplace_back(backend.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ashlar::block
