// The names of policies and states of workers.
#include <array>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/service/router.h"

namespace ashlar::service {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 4> kPolicyNames = {{
    {Policy::kPrefix, "prefix"},
    {Policy::kLeastLoaded, "least_loaded"},
    {Policy::kRoundRobin, "round_robin"},
    {Policy::kRandom, "random"},
}};

}  // namespace

std::string_view to_string(Policy policy) noexcept {
  for (const auto& [known, name] : kPolicyNames)
    if (known == policy) return name;
  return "unknown";
}

Result<Policy> parse_policy(std::string_view name) {
  for (const auto& [policy, known] : kPolicyNames)
    if (known == name) return policy;
  return make_error(ErrorCode::kInvalidArgument,
                    "no policy is called '%s'; write prefix, least_loaded, round_robin or random",
                    printable(name.substr(0, 64)).c_str());
}

std::string_view to_string(WorkerState state) noexcept {
  switch (state) {
    case WorkerState::kExact:
      return "EXACT";
    case WorkerState::kDegraded:
      return "DEGRADED";
    case WorkerState::kFallback:
      return "FALLBACK";
  }
  return "unknown";
}

}  // namespace ashlar::service
