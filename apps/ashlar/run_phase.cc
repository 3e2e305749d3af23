#include "apps/ashlar/run_phase.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace ashlar::apps {
namespace {

constexpr std::string_view kHitsMetric = "ashlar_tier_hits_total{";
constexpr std::string_view kTierLabel = "tier=\"g";

}  // namespace

TierCounts tier_hits_of(std::string_view metrics) {
  TierCounts hits = {};
  for (std::size_t at = 0; at < metrics.size();) {
    const std::size_t end = std::min(metrics.find('\n', at), metrics.size());
    const std::string_view line = metrics.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(kHitsMetric)) continue;
    const std::size_t label = line.find(kTierLabel);
    const std::size_t value = line.rfind(' ');
    if (label == std::string_view::npos || value == std::string_view::npos) continue;
    const std::size_t tier = static_cast<std::size_t>(line[label + kTierLabel.size()]) - '1';
    std::uint64_t blocks = 0;
    std::from_chars(line.data() + value + 1, line.data() + line.size(), blocks);
    if (tier < hits.size()) hits[tier] += blocks;
  }
  return hits;
}

void print_phases(const std::vector<RunPhase>& phases) {
  std::printf("\n%-12s %9s %14s %11s %10s %10s %12s\n", "routing", "requests", "prompt tokens", "from cache",
              "TTFT p50", "TTFT p99", "requests/s");
  for (const RunPhase& phase : phases)
    std::printf("%-12s %9zu %14llu %9.1f %% %7.1f ms %7.1f ms %12.1f\n", phase.name.c_str(), phase.requests,
                static_cast<unsigned long long>(phase.prompt_tokens), 100 * phase.hit_rate(),
                phase.first_at(0.5), phase.first_at(0.99),
                static_cast<double>(phase.requests) / phase.seconds);
  std::printf("\n%-12s %9s %14s %11s %10s   blocks found, by the fastest tier that had them\n", "hits", "G1",
              "G2", "G3, files", "G4, volume");
  for (const RunPhase& phase : phases)
    std::printf(
        "%-12s %9llu %14llu %11llu %10llu\n", phase.name.c_str(),
        static_cast<unsigned long long>(phase.hits[0]), static_cast<unsigned long long>(phase.hits[1]),
        static_cast<unsigned long long>(phase.hits[2]), static_cast<unsigned long long>(phase.hits[3]));
}

std::string phases_json(const std::vector<RunPhase>& phases) {
  std::string out = "[";
  char text[512];
  for (const RunPhase& phase : phases) {
    std::snprintf(
        text, sizeof text,
        "%s{\"routing\":\"%s\",\"requests\":%zu,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,"
        "\"hit_blocks\":{\"g1\":%llu,\"g2\":%llu,\"g3\":%llu,\"g4\":%llu},"
        "\"ttft_p50_ms\":%.3f,\"ttft_p99_ms\":%.3f,\"seconds\":%.3f,\"different_answers\":%zu}",
        out.size() == 1 ? "" : ",", phase.name.c_str(), phase.requests,
        static_cast<unsigned long long>(phase.prompt_tokens),
        static_cast<unsigned long long>(phase.cached_tokens), static_cast<unsigned long long>(phase.hits[0]),
        static_cast<unsigned long long>(phase.hits[1]), static_cast<unsigned long long>(phase.hits[2]),
        static_cast<unsigned long long>(phase.hits[3]), phase.first_at(0.5), phase.first_at(0.99),
        phase.seconds, phase.wrong);
    out += text;
  }
  return out + "]";
}

}  // namespace ashlar::apps
