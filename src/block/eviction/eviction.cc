// The backends that configuration can name. A new backend adds its header above and one line to kBackends.
#include "ashlar/block/eviction.h"

#include <algorithm>
#include <array>

#include "ashlar/block/hash_map_backend.h"
#include "ashlar/block/lineage_backend.h"
#include "ashlar/block/lru_backend.h"
#include "ashlar/block/multi_lru_backend.h"
#include "ashlar/block/retention_backend.h"

namespace ashlar::block {
namespace {

struct Named {
  std::string_view name;
  EvictionFactory (*factory)();
};

constexpr std::array kBackends = {
    Named{"hashmap_fifo", [] { return hashmap_eviction(ReuseOrder::kFifo); }},
    Named{"hashmap_lifo", [] { return hashmap_eviction(ReuseOrder::kLifo); }},
    Named{"hashmap_lru", [] { return hashmap_eviction(ReuseOrder::kLru); }},
    Named{"hashmap_priority", [] { return hashmap_eviction(ReuseOrder::kPriority); }},
    Named{"lineage", [] { return eviction_of<LineageBackend>(LineageOrder::kOldestChainFirst); }},
    Named{"lineage_round_robin", [] { return eviction_of<LineageBackend>(LineageOrder::kRoundRobin); }},
    Named{"lru", [] { return eviction_of<LruBackend>(); }},
    Named{"multi_lru", [] { return eviction_of<MultiLruBackend>(); }},
    Named{"retention", [] { return eviction_of<RetentionBackend>(); }},
};

}  // namespace

Result<EvictionFactory> eviction_by_name(std::string_view name) {
  for (const Named& backend : kBackends) {
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
  for (const Named& backend : kBackends) names.emplace_back(backend.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ashlar::block
