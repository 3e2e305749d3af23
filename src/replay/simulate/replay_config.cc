#include <algorithm>
#include <cmath>
#include <utility>

#include "ashlar/block/eviction.h"
#include "ashlar/replay/simulate.h"

namespace ashlar::replay {
namespace {

constexpr std::array<std::string_view, 5> kRoutingNames = {"round_robin", "random", "prefix", "least_loaded",
                                                           "sticky"};
static_assert(kRoutingNames.size() == static_cast<std::size_t>(Routing::kSticky) + 1, "a name per router");

}  // namespace

std::string_view to_string(Routing routing) noexcept {
  return kRoutingNames[static_cast<std::size_t>(routing)];
}

Result<Routing> parse_routing(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < kRoutingNames.size(); ++i) {
    if (kRoutingNames[i] == name) return static_cast<Routing>(i);
    names += (i == 0 ? "" : ", ") + std::string(kRoutingNames[i]);
  }
  return Error(ErrorCode::kInvalidArgument,
               "there is no router \"" + std::string(name) + "\"; the routers are " + names);
}

Result<void> ReplayConfig::validate() const {
  const auto refuse = [](const char* what) { return Error(ErrorCode::kInvalidArgument, what); };
  if (workers == 0 || workers > 4'096) return refuse("workers must be 1 to 4096");
  if (tier_blocks[0] == 0) return refuse("G1 needs at least one block");
  if (tier_blocks[2] != 0 && tier_blocks[1] == 0)
    return refuse("blocks reach G3 through G2: give G2 blocks too");
  for (const std::uint32_t blocks : tier_blocks)
    if (blocks > UINT32_MAX - 2) return refuse("a tier has at most 2^32 - 3 blocks");
  ASHLAR_RETURN_IF_ERROR(block::eviction_by_name(policy));
  for (const std::string& own : tier_policy)
    if (!own.empty()) ASHLAR_RETURN_IF_ERROR(block::eviction_by_name(own));
  if (bytes_per_token == 0) return refuse("bytes per token must be 1 or more");
  const auto is_rate = [](double rate) { return std::isfinite(rate) && rate > 0; };
  if (!is_rate(prefill_tokens_per_second))
    return refuse("the prefill rate must be above 0 tokens per second");
  if (!std::isfinite(decode_ms_per_token) || decode_ms_per_token < 0)
    return refuse("the time of a decoded token must be 0 ms or more");
  for (const double rate : tier_bytes_per_second)
    if (!std::isfinite(rate) || rate < 0) return refuse("the bandwidth of a tier must be 0 or more");
  if (windows == 0 || windows > 10'000) return refuse("windows must be 1 to 10000");
  return {};
}

}  // namespace ashlar::replay
