// The backends that configuration can name. A new backend adds its header above and one line to kBackends.
#include "ashlar/block/eviction.h"

#include <algorithm>
#include <array>

#include "ashlar/block/hash_map_backend.h"
#include "ashlar/block/lru_backend.h"

namespace ashlar::block {
namespace {

template <EvictionBackend Backend>
std::unique_ptr<InactivePool> pool_of(Backend backend) {
  return std::make_unique<InactivePoolOf<Backend>>(std::move(backend));
}

struct Named {
  std::string_view name;
  Result<std::unique_ptr<InactivePool>> (*make)(const EvictionContext&);
};

constexpr std::array kBackends = {
    Named{"hashmap_fifo",
          [](const EvictionContext& c) -> Result<std::unique_ptr<InactivePool>> {
            return pool_of(HashMapBackend<FifoReuse>(FifoReuse(c)));
          }},
    Named{"lru",
          [](const EvictionContext& c) -> Result<std::unique_ptr<InactivePool>> {
            return pool_of(LruBackend(c));
          }},
};

}  // namespace

Result<EvictionFactory> eviction_by_name(std::string_view name) {
  for (const Named& backend : kBackends) {
    if (backend.name == name) return EvictionFactory(backend.make);
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
